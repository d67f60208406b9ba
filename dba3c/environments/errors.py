"""What goes wrong inside an environment, said with its index, its seed and its step."""

from __future__ import annotations

from dba3c.errors import UserError


class EnvironmentFailed(UserError):
    """An environment broke more often than `environment_restarts` allows; the line names index, seed and step.

    A fault of the process that plays it, like a crash: whoever supervises that process starts it again.
    """


def failure_line(env_id: str, index: int, seed: int, step: int, what: str) -> str:
    """One line: which environment, its seed, the step of its life (0 is the reset), and what it did."""
    return f"{env_id} environment {index} (seed {seed}, step {step}): {what}"
