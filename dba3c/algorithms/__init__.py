"""Returns, losses, distributions, replay: pure functions and state machines on tensors [T, B]; no environment, no process."""
