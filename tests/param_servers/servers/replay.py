"""What a run's audit log and its gradients make, computed again in one process: the servers' parameters, bit by bit."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from param_servers.config import OptimizerConfig
from param_servers.errors import ParamServersError
from param_servers.servers.audit import history
from param_servers.servers.shard import Shard

GradientOf = Callable[[int, int, int, int], Tensor]
"""(life, worker, incarnation, sequence) -> gradient [P] float32."""


def replay(
    initial: Tensor, config: OptimizerConfig, lines: Iterable[dict[str, Any]], gradient_of: GradientOf
) -> Tensor:
    """Repeat a run in one process: the parameters [P] after the logged commits, bit-equal to the servers'.

    Args:
        initial: [P] float32, the parameters at step 0.
        config: the run's optimizer.
        lines: of the audit log, from step 0 on, over all lives of the run.
        gradient_of: the recorded gradients.

    Raises:
        ParamServersError: a commit is missing (the disk was full).
    """
    whole = Shard(initial, config)
    with torch.no_grad():
        for step, commit in enumerate(history(lines)):
            if commit["step"] != step:
                raise ParamServersError(f"the log goes on with step {commit['step']} where step {step} should be")
            life = commit.get("life", 0)
            gradients = [gradient_of(life, *member) for member in sorted(commit["members"])]
            whole.apply(gradients, commit["learning_rate"])
    return whole.parameters
