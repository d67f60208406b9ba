"""Returns, losses, distributions, replay: functions and state machines on tensors; no environment, no process."""
