"""Who a rank is on a cluster: launchers and their variables, topology, node lists, addresses.

In: the environment a launcher made. Out: this process's (role, rank) and address, or the arithmetic that fails.
Never: rank = local rank, or loopback told to another host.
"""
