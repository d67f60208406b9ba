"""From a configuration to the objects of a role: its network, its exchange, its observation statistics.

In: a RunProcess (run folder, role, rank) and a TrainConfig. Out: what `workers` and `central` loop over.
Never: a loop of its own, or a choice that the configuration does not make.
"""
