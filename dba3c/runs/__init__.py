"""A run's folder: configuration, records, checkpoints, the lock, and why the run ended.

In: a path. Out: what stands there, checked; or one line that says why it cannot be used.
Never: two writers in one folder, or a reader that removes.
"""
