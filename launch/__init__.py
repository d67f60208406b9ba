"""Who am I, and start me: the command line, the processes of a machine, the ranks of a cluster, Slurm's jobs.

In: words and the environment that a launcher made. Out: a configuration that fits, and processes that are watched until
they are gone; an exit code that says how the run ended. Never: learning, tensors, or a process that is left behind.
"""
