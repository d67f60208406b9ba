"""The processes of one machine: forked from one that has torch, watched, started again within bounds, ended after their
checkpoint. In: the roles of this rank. Out: an exit code that says how the run ended, and the line that says why.
Never: a child that outlives its parent.
"""
