"""All-reduce: every rank averages with every other and takes the same optimizer step.

In: a gradient [P] a rank. Out: the same parameters on every rank, over torch.distributed, MPI or Horovod.
Never: a backup worker (that is `majority`), or two ranks that silently differ.
"""
