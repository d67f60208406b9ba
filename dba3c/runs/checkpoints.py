"""The trained parameters inside a checkpoint, without its optimizer state: found, checked and laid out for a network.

Written and checked by `param_servers.checkpoint.files`; this is what evaluation and recording need of them.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dba3c.environments.normalization import statistics_of
from dba3c.errors import UserError
from dba3c.runs.files import checkpoint_steps, is_there, resolved
from dba3c.runs.folder import RunFolder
from param_servers.checkpoint.files import load_checkpoint
from param_servers.errors import CheckpointError, CheckpointUnreadable, ConfigError
from param_servers.layout import FlatLayout

_STEPS_NAMED = 8
STATISTICS_S = 60.0
"""For observation statistics of a checkpoint's time; they come within a step of it."""


@dataclass(frozen=True, kw_only=True)
class TrainedParameters:
    """The parameters of one checkpoint."""

    parameters: Tensor
    """[P] float32, in the order of `layout`."""
    layout: FlatLayout
    step: int
    """Updates that made them."""
    data_points: int
    """Data points in those updates."""
    observation_statistics: dict[str, Any] | None = None
    """What observations are normalised by, where the run kept any (`dba3c.environments.normalization`)."""

    @property
    def sha256(self) -> str:
        """Of the parameters' bytes: tells two checkpoints of the same step (after a roll-back) apart."""
        return hashlib.sha256(self.parameters.numpy().tobytes()).hexdigest()

    def parameters_for(self, layout: FlatLayout) -> Tensor:
        """The parameters [P] float32, for a network of this layout.

        Raises:
            UserError: the checkpoint is of another network; the tensors that differ are named.
        """
        try:
            self.layout.refuse_another(layout)
        except ConfigError as error:
            raise UserError(f"checkpoint step-{self.step} is of another network: {error}") from None
        return self.parameters


def load_parameters(checkpoint: Path) -> TrainedParameters:
    """Check a checkpoint's directory and load its parameters.

    Raises:
        CheckpointError: it is torn, or gone.
        CheckpointUnreadable: the file system does not let it be read.
    """
    loaded = load_checkpoint(checkpoint)
    try:
        statistics = statistics_of(checkpoint.parent.parent, loaded.step)
    except OSError as error:
        raise CheckpointUnreadable(f"observation statistics of {checkpoint}: {error.strerror}") from error
    return TrainedParameters(
        parameters=loaded.parameters,
        layout=loaded.layout,
        step=loaded.step,
        data_points=loaded.data_points,
        observation_statistics=statistics,
    )


def find_parameters(checkpoints: Path, step: int | None, on_skip: Callable[[str], None]) -> TrainedParameters:
    """The parameters of one step, or the newest valid ones without a step; torn ones are then named through `on_skip`.

    Raises:
        UserError: there is no checkpoint (yet), none of them is whole, no such step (the steps there are are named), or
            the one asked for is torn.
        CheckpointUnreadable: the one that is wanted cannot be read.
    """
    steps = checkpoint_steps(checkpoints)
    if not steps:
        raise UserError(f"{checkpoints.parent} has no checkpoint yet")
    if step is not None and step not in steps:
        raise UserError(f"{checkpoints.parent} has no checkpoint of step {step}; there are {_named(steps)}")
    for tried in reversed(steps) if step is None else [step]:
        try:
            return load_parameters(checkpoints / f"step-{tried}")
        except CheckpointError as error:
            if step is not None:
                raise UserError(f"{error}; there are {_named(steps)}") from error
            on_skip(f"skipped: {error}")
    raise UserError(f"{checkpoints.parent}: every checkpoint is torn ({_named(steps)})")


def run_and_step(path: str | os.PathLike[str]) -> tuple[RunFolder, int | None]:
    """The run whose folder, or one of whose checkpoints, `path` is; and that checkpoint's step. Of a folder of seeds,
    as results/games/Pong, the first."""
    found = resolved(path)
    try:
        seeds = [run.parent for run in found.glob("seed-*/config.json")]
    except OSError as error:
        raise UserError(f"cannot read {found}: {error.strerror}") from error
    if seeds and not is_there(found / "config.json"):
        found = min(seeds, key=lambda seed: (len(seed.name), seed.name))
    named = found.name.removeprefix("step-")
    if found.parent.name == "checkpoints" and found.name != named and named.isdigit():
        return RunFolder.open(found.parent.parent), int(named)
    return RunFolder.open(found), None


def open_parameters(
    path: str | os.PathLike[str], step: int | None, on_skip: Callable[[str], None]
) -> tuple[RunFolder, TrainedParameters]:
    """A run and the parameters of one of its checkpoints: see `find_parameters`.

    Args:
        path: the run's folder; or the checkpoint itself, which `step` then need not say.
    """
    folder, named = run_and_step(path)
    if named is not None and step not in (None, named):
        raise UserError(f"{path} is not the checkpoint of step {step}")
    return folder, find_parameters(folder.checkpoints, step if named is None else named, on_skip)


def _named(steps: list[int]) -> str:
    newest = ", ".join(str(step) for step in steps[-_STEPS_NAMED:])
    return newest if len(steps) <= _STEPS_NAMED else f"… {newest}"


FOLDER_AWAY = -1
"""No checkpoint's step."""


class CheckpointWatch:
    """Hands out each new checkpoint of a run; the newest one when several came meanwhile.

    Args:
        run_end: ends the waiting.
        is_done: whether a policy was dealt with already, in an earlier life of this role.
        say: called with one line for each torn checkpoint.

    Attributes:
        unreadable: step of the checkpoint that the last look could not read, which is looked at again; `FOLDER_AWAY`:
            not even which there are; None: it could.
        passed_over: steps that came since the last policy was handed out and are older than the one handed out now.
    """

    def __init__(
        self,
        checkpoints: Path,
        run_end: Callable[[], str | None],
        *,
        is_done: Callable[[TrainedParameters], bool] = lambda trained: False,
        say: Callable[[str], None],
        look_s: float = 1.0,
    ) -> None:
        self._checkpoints = checkpoints
        self._run_end = run_end
        self._is_done = is_done
        self._say = say
        self._look_s = look_s
        self._seen: set[tuple[int, int]] = set()
        self._first_look = True
        self.unreadable: int | None = None
        self.passed_over: list[int] = []

    def wait(self) -> TrainedParameters | None:
        """The next new policy; None when the run has ended. Bounded by the run's life, which `run_end` watches.

        Where observations are normalised, statistics of its own are waited for: workers keep them when they hear that
        a checkpoint is due, and those before the first one may be of a game's first observations alone. Where they do
        not come (their disk refuses), earlier ones are used, which is said.
        """
        ahead_since_s = None  # not begun anew with a newer checkpoint: they may come faster than it ends
        while self._run_end() is None:
            seen = self._seen, self._first_look
            trained = self.newest_unseen()
            if trained is not None and not self._is_ahead_of_its_statistics(trained):
                return trained
            if trained is not None:
                ahead_since_s = ahead_since_s or time.monotonic()
                if time.monotonic() - ahead_since_s > STATISTICS_S:
                    older = (trained.observation_statistics or {}).get("step")
                    late = f"step-{trained.step}: no observation statistics of its time within {STATISTICS_S:g} s"
                    self._say(f"{late}: those of step {older} are used")
                    return trained
                self._seen, self._first_look = seen
            time.sleep(self._look_s)
        return None

    def _is_ahead_of_its_statistics(self, trained: TrainedParameters) -> bool:
        """Whether they are no newer than those of the checkpoint before."""
        before = max((step for step, _ in self._made() if step < trained.step), default=0)
        return bool(trained.step) and (trained.observation_statistics or {"step": trained.step})["step"] <= before

    def newest_unseen(self) -> TrainedParameters | None:
        """The newest whole checkpoint that was not there at the last look; the others count as seen, too."""
        unseen = self._made() - self._seen
        self._seen = self._seen | unseen
        first_look, self._first_look = self._first_look, False
        steps = sorted(step for step, _ in unseen)
        while steps:
            step = steps.pop()
            try:
                trained = load_parameters(self._checkpoints / f"step-{step}")
            except CheckpointError as error:
                self._say(f"skipped: {error}")
                continue
            except CheckpointUnreadable as error:  # nothing is known about it: the next look tries again
                self._seen = {seen for seen in self._seen if seen[0] != step}
                if step != self.unreadable:
                    self.unreadable = step
                    self._say(str(error))
                return None
            self.unreadable = None
            if self._is_done(trained):
                return None
            self.passed_over = [] if first_look else steps
            return trained
        return None

    def _made(self) -> set[tuple[int, int]]:
        """(step, when its directory was made, ns) of every checkpoint: after a roll-back a step is made anew."""
        made = set()
        try:
            for step in checkpoint_steps(self._checkpoints):
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    made.add((step, (self._checkpoints / f"step-{step}").stat().st_mtime_ns))
        except OSError as error:  # away for a while: the next look sees them; `run_end` bounds the while
            if self.unreadable is None:
                self._say(f"{self._checkpoints} cannot be read: {error.strerror or error}")
                self.unreadable = FOLDER_AWAY
        else:
            self.unreadable = None if self.unreadable == FOLDER_AWAY else self.unreadable
        return made
