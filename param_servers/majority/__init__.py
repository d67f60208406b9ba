"""All-reduce with backup workers: the first g ranks ready at a step are its members, late ranks add zeros.

In: a gradient [P] a rank. Out: the same parameters on every rank, at the pace of the g fastest.
Never: a rank in two sets of one step, or a dead rank waited for beyond its timeout.
"""
