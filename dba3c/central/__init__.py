"""Central inference (SEED RL, Espeholt et al. 2020, arXiv 1910.06591) on the same agent as every other mode.

In: what actors' environments show (`actor` steps them and holds nothing of the model; `wire` is what it says). Out:
actions to the actors, in batches (`service`); gradients to the exchange, of complete `unrolls` (`learner`; one file for
each `algorithm`: `vtrace`, `r2d2`, `sac`). Never: a loss of its own (algorithms), or a way to travel (param_servers).
"""
