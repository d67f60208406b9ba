"""Measurements of this package, each a command: ``python -m dba3c.benchmarks.batch_size``.

In: what to measure. Out: a table, and the same as CSV, with the machine where it is kept.
Never: a number of one thing alone where the floor under it, or another way, can be measured in turn with it.
"""
