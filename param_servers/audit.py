"""The log from which a run can be checked: every commit, roll-back and expulsion, one JSON object a line.

    {"kind": "commit", "term": 1, "step": 7, "members": [[0, 0, 8], [2, 1, 3]], "data_points": 1280, ...}
    {"kind": "rollback", "term": 2, "step": 5, "data_points": 960}

`members` are (worker, incarnation, sequence). Whoever kept the gradients can repeat the run: see `replay`.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from param_servers.config import OptimizerConfig
from param_servers.decisions import Commit
from param_servers.shard import Shard

GradientOf = Callable[[int, int, int], Tensor]
"""(worker, incarnation, sequence) -> gradient [P] float32."""


class AuditLog:
    """Appends to one file; each line is in the kernel's hands before the decision it records is sent."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def commit(self, commit: Commit, members: Iterable[tuple[int, int, int]], learning_rate: float) -> None:
        """One committed step."""
        self.write(
            "commit",
            term=commit.term,
            step=commit.step,
            members=[list(member) for member in members],
            data_points_before=commit.data_points_before,
            data_points=commit.data_points,
            learning_rate=learning_rate,
            **({"staleness": list(commit.staleness)} if any(commit.staleness) else {}),  # async only
        )

    def write(self, kind: str, **fields: Any) -> None:
        """Any other line: rollback, expelled, shrunk, grown, stopped."""
        os.write(self._descriptor, json.dumps({"kind": kind, **fields}).encode() + b"\n")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_audit(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log; a last line cut off by a crash is left out."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def history(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The commits that count, by step: a roll-back undoes what came after its step."""
    commits: list[dict[str, Any]] = []
    for line in lines:
        if line["kind"] == "rollback":
            commits = [commit for commit in commits if commit["step"] < line["step"]]
        elif line["kind"] == "commit":
            commits.append(line)
    return commits


def replay(
    initial: Tensor, config: OptimizerConfig, lines: Iterable[dict[str, Any]], gradient_of: GradientOf
) -> Tensor:
    """Repeat a run in one process: the parameters [P] after the logged commits, bit-equal to the servers'.

    Args:
        initial: [P] float32, the parameters at step 0.
        config: the run's optimizer.
        lines: of the audit log, from step 0 on.
        gradient_of: the recorded gradients.
    """
    whole = Shard(initial, config)
    with torch.no_grad():
        for commit in history(lines):
            gradients = [gradient_of(*member) for member in sorted(commit["members"])]
            whole.apply(gradients, commit["learning_rate"])
    return whole.parameters
