"""What learners with a replay share: how many gradients they owe, and where their target networks are.

Target networks are a learner's own, beside the run's checkpoints: `targets/learner-R/step-N.safetensors` is the target
network as it was when the parameters were those of step N. A learner that resumes at step S takes the newest one up to
S:

    R2D2  written whenever the target is copied, so that the one of S is always there: restored exactly
    SAC   written at the steps of checkpoints and when the run ends: exact there; where servers went on without their
          learner, the target is behind by what it missed

A file that is torn is passed over; without any the target begins as a copy of the parameters. The replay is not kept.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn


class ReplayDebt:
    """Counts agent steps gathered against steps sampled.

    Args:
        start: steps to gather before the first gradient; they are owed nothing.
        ratio: steps to sample for each step gathered after that.
        per_update: steps that one gradient samples.
    """

    def __init__(self, start: int, ratio: float, per_update: int) -> None:
        self._start, self._ratio, self._per_update = start, ratio, per_update
        self._gathered = self._sampled = 0

    @property
    def owes(self) -> bool:
        """Whether a gradient is due."""
        past_start = self._gathered - self._start
        return past_start >= 0 and self._sampled < max(1, past_start) * self._ratio

    def gathered(self, steps: int) -> None:
        """Steps that train were added to the replay."""
        self._gathered += steps

    def paid(self) -> None:
        """One gradient was computed."""
        self._sampled += self._per_update


class TargetStore:
    """One learner's target networks.

    Args:
        folder: where they are; made when the first is written.
        keep: how many.
        tell: told (event, one line) of what was restored, or could not be.
    """

    def __init__(self, folder: Path, keep: int, tell: Callable[[str, str], None] = lambda event, line: None) -> None:
        self._folder, self._keep, self._tell = folder, keep, tell

    def save(self, step: int, target: nn.Module) -> None:
        """The target network that goes with the parameters of ``step``. A disk that is full costs a line."""
        path = self._folder / f"step-{step}.safetensors"
        temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save_file({name: tensor.cpu().contiguous() for name, tensor in target.state_dict().items()}, temporary)
            os.replace(temporary, path)
            for old in self._steps()[: -self._keep]:
                (self._folder / f"step-{old}.safetensors").unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            self._tell("target", f"the target network of step {step} was not written: {error}")

    def restore(self, step: int, target: nn.Module) -> int | None:
        """Load the newest one up to ``step`` into ``target``; the step it belongs to, None when there is none.

        Those of later steps belong to a life that was rolled back, and are deleted.
        """
        found = None
        for there in reversed(self._steps()):
            path = self._folder / f"step-{there}.safetensors"
            if there > step:
                path.unlink(missing_ok=True)
                continue
            try:
                target.load_state_dict(load_file(path))
            except (OSError, SafetensorError, RuntimeError) as error:
                self._tell("target", f"{path.name} is passed over: {str(error).splitlines()[0]}")
                continue
            found = there
            break
        if step > 0:
            what = "begins as a copy of the parameters" if found is None else f"is that of step {found}"
            self._tell("resumed", f"at step {step}: the target network {what}; the replay begins empty")
        return found

    def _steps(self) -> list[int]:
        """Oldest first."""
        names = [path.name[len("step-") : -len(".safetensors")] for path in self._folder.glob("step-*.safetensors")]
        return sorted(int(name) for name in names if name.isdigit())
