"""What is learned from: returns, losses, policies, replay, as functions and state machines on tensors.

In: rollouts [T, B] or sequences, a network. Out: a loss, its statistics, targets.
Never: an environment, a process, or a way to travel.
"""
