"""A worker's life: pull, collect, differentiate, push, record.

In: an agent, environments, an exchange. Out: gradients to the exchange, records to the run's folder.
Never: a loss of its own (algorithms), or a way to travel (param_servers).
"""
