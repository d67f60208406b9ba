"""A discrete-event model of one synchronous step on a cluster: what servers, backup workers and links make of it.

In: a cluster, the work of a step (assumed, or read from run folders), a setup, a seed. Out: seconds of a step, data
points per second, dropped gradients, as tables of all setups.
Never: a number that is not said to be simulated, or that another run with the same seed would not give.
"""
