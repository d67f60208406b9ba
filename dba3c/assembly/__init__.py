"""From a configuration to the objects of a role: who this process is, its agent, its exchange, its records.

In: a Place (run folder, role, rank) and a TrainConfig. Out: what `train` and `central` loop over.
Never: a loop of its own, or a choice that the configuration does not make.
"""
