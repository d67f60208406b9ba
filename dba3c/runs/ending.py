"""How a run ends: who may say so, and how everybody hears of it.

1. Whoever has a reason asks, once, with stop.json (`RunFolder.request_stop`); the first reason stays. The coordinator
   has one when the frames or hours are over (`StopRule`), the monitor when the score or the processor time is reached,
   an evaluator when its games reach the score, and people and schedulers when they like. `finished` says that the run
   has had what it was to have; else somebody waits for its end.
2. The coordinator looks for stop.json at its step boundaries (`StopRule`), writes the last checkpoint, and each process
   that decides about the end says that it has left (`RunFolder.note_left`).
3. Who follows the run without training it asks `RunEnd`; an evaluator may play on for a while (`Overtime`).
4. The launch waits for all of them, then notes the end in meta.json (`note_end`). A launch whose lock nobody holds, and
   that has noted nothing, is gone.

What fails on the way is noted too, so that it is not lost among 64 ranks; and why a run does not begin (`refusal`), so
that the ranks that wait for their chief stop waiting.
"""

import contextlib
import json
import math
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dba3c.algorithms.config import REPLAYING
from dba3c.config import TrainConfig
from dba3c.errors import USER_ERROR_EXIT, UserError, warn_on_stderr
from dba3c.runs.files import checkpoint_steps, is_read_only, write_atomically
from dba3c.runs.folder import STOP_COMMAND, RunFolder
from param_servers.errors import ConfigError, RunBroken

LOOK_S = 1.0
GONE_AFTER_S = 60.0
"""A launch whose lock nobody holds for this long is gone."""
UNREADABLE_S = 60.0
"""A folder that cannot be read for so long (a shared file system that is away) is a fault."""
SETTLED_S = 2.0
"""After the request to end, this long without a record means that none is to come, where windows are not longer."""
LATE_S = 10.0
"""Longest wait for further processes of the training after the first has ended."""
LOADING_S = 60.0
"""Silence of an evaluator beyond its budget: the last checkpoint is written before, and loaded."""
TRAINING_ROLES = ("server", "worker", "learner", "actor")
"""Bad input to one of these is bad input to the run."""
REFUSED = ".refused.json"


class FolderUnreadable(RunBroken):
    """This machine cannot read the run's folder: nothing is known of the run, which may go on."""


class StopRule:
    """When the coordinator ends a run: it was asked to, or its frames or hours are over.

    Called with (step, data_points) at step boundaries; looks into the run folder at most once a second. The one rule of
    `total_frames`: data points × the frame skip, its mean where it is random. Hours are those of one life.
    """

    def __init__(self, folder: RunFolder, config: TrainConfig) -> None:
        self.folder = folder
        self.frames_per_point = config.environment.frames_per_step
        self.total_frames = config.run.total_frames
        self.max_hours = config.run.max_hours
        self.replay_frames = frames_before_learning(config)
        now_s = time.time()  # compared once with the launch's: a clock that is set later changes no run's hours
        past_s = now_s - float(folder.life().get("started_s", now_s))
        self._until_s = math.inf if self.max_hours is None else time.monotonic() + self.max_hours * 3600 - past_s
        self._next_look_s = 0.0
        self._unreadable_since_s = math.inf

    def __call__(self, step: int, data_points: int) -> str | None:
        """Why the run should end now, None to go on."""
        del step
        now_s = time.monotonic()
        looks = now_s >= self._next_look_s
        limit = self._frames_reached(data_points)
        if limit is None and looks and now_s >= self._until_s:
            limit = f"{self.max_hours} hours of this life are over"
        if limit is not None:
            self.folder.stop_here(limit, finished=True)  # monitor, evaluator and recorder look for it there
            return limit
        if not looks:
            return None
        self._next_look_s = now_s + LOOK_S
        try:
            reason = self.folder.stop_reason()
        except OSError as error:  # a shared file system that is away for a while is no end
            self._unreadable_since_s = min(self._unreadable_since_s, now_s)
            if now_s - self._unreadable_since_s > UNREADABLE_S:
                raise RunBroken(f"the run cannot be read for {UNREADABLE_S:g} s: {error}") from error
            return None
        self._unreadable_since_s = math.inf
        return reason

    def _frames_reached(self, data_points: int) -> str | None:
        frames = data_points * self.frames_per_point
        if self.total_frames is None or frames < self.total_frames:
            return None
        late = self.replay_frames > self.total_frames
        filled = f"; {self.replay_frames:,.0f} had filled the replay before the first update" if late else ""
        return f"{frames:,.0f} frames trained on{filled}"


def frames_before_learning(config: TrainConfig) -> float:
    """Frames that are stepped before the first update, in every learner's replay; 0 where nothing is replayed."""
    if config.algorithm.algorithm not in REPLAYING:
        return 0.0
    steps, central = config.replay.replay_start * config.exchange.num_workers, config.central
    if config.algorithm.algorithm == "r2d2":  # nor before there is a sequence, at about the same time everywhere
        unrolls = config.replay.burn_in // central.unroll_length + 2
        steps = max(steps, central.actors * central.envs_per_actor * unrolls * central.unroll_length)
    return steps * config.environment.frames_per_step


def before_the_first_update(config: TrainConfig) -> str:
    """What is said of a run that ended without an update."""
    frames = frames_before_learning(config)
    why = f", while the replay was filling: it begins with {frames:,.0f} frames" if frames else ""
    return f"before the first update{why}"


class RunEnd:
    """Follows the end of a run from a process that is not part of its training; looks once in `look_s`.

    Attributes:
        reason: why the run has ended (it was asked to, or its launch noted its end), None while it has not.
        finished: it has had what it was to have, and nobody has stopped it.
    """

    def __init__(self, folder: RunFolder, *, look_s: float = LOOK_S) -> None:
        self.reason: str | None = None
        self.finished = False
        self._folder = folder
        self.look_s = look_s
        self._status = "live"
        config = folder.train_config()
        self._settled_s = max(SETTLED_S, 2 * config.record_window_s)
        self._evaluator_s = max(self._settled_s, config.run.evaluation_budget_s + LOADING_S)
        self._has_evaluator, self._evaluator_plays = config.run.evaluators > 0, False
        self._next_look_s = 0.0
        self._unreadable_since_s = self._broken_since_s = math.inf

    def __call__(self) -> str | None:
        """The reason the run has ended, None while it has not; called as often as one likes.

        Raises:
            RunBroken: the launch is gone without a word, or the folder could not be read for a minute.
        """
        self._look()
        if self.reason is None and time.monotonic() - self._broken_since_s > GONE_AFTER_S:
            raise RunBroken(
                f"the launch of {self._folder.path} is gone: nobody has held its lock for {GONE_AFTER_S:.0f} s"
            )
        return self.reason

    def nothing_more_comes(self, silent_s: float) -> bool:
        """Whether all that the run writes is there: its launch is over, or it was asked to end and went silent.

        The launch waits for its monitor before it notes the end, hence the silence; where it has started all processes,
        it tells its monitor that they are gone. The evaluator of a finished run may be silent for longer, within its
        budget.

        Args:
            silent_s: seconds since the last new record.

        Raises:
            FolderUnreadable: for a minute.
        """
        self._look()
        silence_s = self._evaluator_s if self._evaluator_plays else self._settled_s
        over = self._status == "finished" or time.monotonic() - self._broken_since_s > GONE_AFTER_S
        return over or (self.reason is not None and silent_s > silence_s)

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + self.look_s
        try:
            reason, self.finished = self._folder.stop_reason(), self._folder.has_finished()
            self._status = self._folder.status()
            if reason is None and self._status == "finished":
                reason = str(self._folder.life()["ended"].get("reason", "the run has ended"))
            plays = self._has_evaluator and self.finished
            self._evaluator_plays = plays and not self._folder.has_left("evaluator", 0)
        except (UserError, OSError) as error:  # a shared file system that is away for a while is no end
            self._unreadable_since_s = min(self._unreadable_since_s, now_s)
            if now_s - self._unreadable_since_s > UNREADABLE_S:
                raise FolderUnreadable(f"the run cannot be read for {UNREADABLE_S:g} s: {error}") from error
            return
        self.reason = self.reason or reason
        self._unreadable_since_s = math.inf
        is_broken = self._status == "broken" and not is_read_only(self._folder.path)
        self._broken_since_s = min(self._broken_since_s, now_s) if is_broken else math.inf


class Overtime:
    """Why an evaluator has to leave its games now, None while it may play on; called as often as one likes.

    It may as long as the run goes on; then, when the run has had what it was to have, until `evaluation_budget_s` after
    the training has ended: half of it with a checkpoint that is not the last. Not when somebody has stopped the run,
    before its end or after.

    Attributes:
        step: of the checkpoint that is played with.
    """

    def __init__(self, folder: RunFolder, config: TrainConfig, run_end: RunEnd) -> None:
        counts = config.processes
        writes = next(role for role in ("server", "learner", "worker") if counts[f"{role}s"])
        plays = "worker" if counts["workers"] else "actor"  # and keeps observation statistics
        roles = {writes, plays} if config.environment.normalize_observations else {writes}
        self.step = 0
        self.budget_s = config.run.evaluation_budget_s
        self._folder, self._run_end = folder, run_end
        self._awaited = [(role, rank) for role in roles for rank in range(counts[f"{role}s"])]
        self._write_s = config.exchange.checkpoint_timeout_s
        self._next_look_s = 0.0
        self._asked_s: float | None = None
        self._first_ended_s: float | None = None
        self._ended_s: float | None = None
        self._last_step = 0

    def __call__(self) -> str | None:
        reason = self._run_end()
        if reason is None:
            return None
        if not self._run_end.finished:
            return f"somebody waits for the run's end ({reason})"
        if not self.training_has_ended():
            return None
        assert self._ended_s is not None
        left_s = self.budget_s if self.step == self._last_step else self.budget_s / 2
        over = time.monotonic() - self._ended_s >= left_s
        return f"{left_s:.0f} s after the run's end were over" if over else None

    def training_has_ended(self) -> bool:
        """Whether the last checkpoint is there, and what belongs to it. Asked after the run's end; true at last,
        whoever says nothing."""
        now_s = time.monotonic()
        if self._ended_s is None and now_s >= self._next_look_s:
            self._next_look_s = now_s + self._run_end.look_s
            self._asked_s = self._asked_s or now_s
            with contextlib.suppress(OSError):  # away for a while, which `RunEnd` bounds: the next look sees more
                ended = sum(self._folder.has_left(*process) for process in self._awaited)
                if ended and self._first_ended_s is None:
                    self._first_ended_s = now_s
                late = self._first_ended_s is not None and now_s - self._first_ended_s > LATE_S
                if ended == len(self._awaited) or late or now_s - self._asked_s > self._write_s + LATE_S:
                    self._last_step = max(checkpoint_steps(self._folder.checkpoints), default=0)
                    self._ended_s = now_s
        return self._ended_s is not None


def note_end(folder: RunFolder, code: int, cause: str) -> str:
    """Write into meta.json how this life ended; returns the reason. A disk that refuses does not change the end.

    Args:
        cause: what failed, in one line; "" where nothing did.
    """
    reason = cause or f"exit code {code}"
    try:
        how, reason = outcome(code, folder, cause)
        folder.end_life(how, reason)
    except (UserError, OSError) as error:
        warn_on_stderr(f"how the run ended cannot be noted: {error}")
    return reason


def outcome(code: int, folder: RunFolder, cause: str = "") -> tuple[str, str]:
    """How a life ended, for meta.json: (finished | stopped | failed, reason). `cause`: see `note_end`."""
    asked = folder.stop_reason()
    refused = [f for f in failures(folder.path) if f.code == USER_ERROR_EXIT and f.role in TRAINING_ROLES]
    if code != 0 or refused or folder.has_failed():
        return "failed", cause or asked or f"exit code {code}"
    if asked is not None and (asked.startswith("SIG") or asked == STOP_COMMAND):
        return "stopped", asked
    return "finished", asked or "the run has seen what it was to see"


@dataclass(frozen=True)
class Failure:
    """What is known of a process that ended the run."""

    time_s: float
    role: str
    rank: int
    node: str
    code: int
    tail: str


def note_failure(run_dir: Path, role: str, rank: int, code: int, tail: str, node: str | None = None) -> None:
    """Write ``logs/failure-ROLE-RANK.json``; an older one of the same process is replaced. What the disk refuses is
    said on stderr: it is no reason not to end the run well."""
    failure = Failure(time.time(), role, rank, node or socket.gethostname(), code, tail)
    path = run_dir / "logs" / f"failure-{role}-{rank}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(failure)) + "\n")
    except OSError as error:
        warn_on_stderr(f"cannot write {path}: {error.strerror}")


def failures(run_dir: Path) -> list[Failure]:
    """The failures noted in the newest life, the first first; a torn note is passed over."""
    found = []
    for path in sorted((run_dir / "logs").glob("failure-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Failure(**json.loads(path.read_text())))
    return sorted(found, key=lambda failure: failure.time_s)


@contextlib.contextmanager
def telling_refusals(run_dir: Path, launch_id: str) -> Iterator[None]:
    """Inside, the chief begins a run: why it cannot is noted for the ranks that wait for it, before it is raised.

    What cannot be noted, each rank finds out for itself: `RunFolder.refuse_unusable`.
    """
    path = run_dir / REFUSED
    with contextlib.suppress(OSError):
        if refusal(run_dir, launch_id):
            path.unlink(missing_ok=True)  # of an earlier try
    try:
        yield
    except Exception as error:
        why = str(error) if isinstance(error, (UserError, ConfigError)) else f"{type(error).__name__}: {error}"
        try:
            RunFolder.refuse_unusable(run_dir)
            write_atomically(path, json.dumps({"launch_id": launch_id, "why": why, "time_s": time.time()}) + "\n")
        except (OSError, UserError) as silenced:
            print(f"the ranks that wait cannot be told, and look for themselves: {silenced}", file=sys.stderr)
        raise


def refusal(run_dir: Path, launch_id: str | None = None, since_s: float = 0.0) -> str:
    """Why the chief of this launch (None: of any) refused to begin since then; "" where it has not."""
    try:
        noted = json.loads((run_dir / REFUSED).read_text())
        is_ours = launch_id in (None, noted["launch_id"]) and noted["time_s"] >= since_s
        return str(noted["why"]) if is_ours else ""
    except (OSError, ValueError, LookupError, TypeError):  # the next look is soon
        return ""
