"""Central inference (SEED RL, Espeholt et al. 2020, arXiv 1910.06591) on the same agent as every other mode.

    actor     steps environments, sends what they show, does as it is told; holds nothing of the model
    learner   answers actors with actions in batches, gathers their unrolls, trains on complete ones

Pure parts (no sockets, clocks or threads): `wire`, `stacks`, `unroll`, `unroll_batch`, `unroll_store`, `batching`.
Around them: `service` (the learner's side of the links), `learner` and `actor` (the two roles).
"""
