"""Sharded parameter servers: a worker's side, a shard, and the chief that carries out what the coordinator decides.

In: gradients of steps, from workers. Out: the parameters one step on, to all workers; a receipt for every push.
The deciding parts (step_commits, coordinator, …) are pure: no sockets, no clock.
"""
