"""Who am I, and start me: topology, launchers, resources, processes, Slurm and containers."""
