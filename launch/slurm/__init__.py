"""Slurm: a job's requeue and preemption, its first node and its lost ones.

In: what Slurm told this job. Out: a run that survives requeue, preemption and lost nodes.
Never: a secret in a job's text or arguments.
"""
