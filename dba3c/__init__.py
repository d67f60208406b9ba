"""dba3c: synchronous data-parallel reinforcement learning on clusters of CPUs."""
