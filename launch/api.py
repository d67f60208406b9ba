"""`dba3c.train`, `dba3c.resume` and `dba3c.stop`: what the commands of these names do, from Python.

The roles of a run are processes; this one supervises them, in the thread that calls or, detached, in one of its own.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from dba3c.api import Run
from dba3c.config import TrainConfig, refuse_normalized_replay, refuse_unread, replace_options, typed_options
from dba3c.errors import USER_ERROR_EXIT, UserError
from dba3c.metrics.watch import watched
from dba3c.own_code import name_of
from dba3c.resuming import changed_on_resume
from dba3c.runs.files import resolved
from dba3c.runs.folder import STOP_COMMAND, RunFolder
from launch import running
from launch.cli.configuration import said_of_samples, words_of
from launch.cli.runs import ask_to_end, run_dir_of
from launch.cluster.launchers import detect
from launch.local.resources import given_cores
from param_servers.errors import CheckpointError, ConfigError, RunBroken

if TYPE_CHECKING:
    import gymnasium

Beside = Callable[[RunFolder], AbstractContextManager[None]]
Trained: TypeAlias = "str | TrainConfig | Callable[[], gymnasium.Env[Any, Any]]"
"""An environment's id or a preset's name; a whole configuration; what makes an environment of one's own."""


class Training(Run):
    """A run that trains in the background of this process, which ends it, with a checkpoint, when it ends itself.

    Made by `train(..., detach=True)`; ready when its folder is there.
    """

    def __init__(self, supervise: Callable[[Beside], Run]) -> None:
        self._process = os.getpid()
        made: Future[Path] = Future()
        self._result: Future[Run] = Future()
        given_up = Event()

        @contextmanager
        def beside(folder: RunFolder) -> Iterator[None]:
            if given_up.is_set():  # nobody would hold it
                folder.request_stop(STOP_COMMAND)
            made.set_result(folder.path)
            yield

        def life() -> None:
            try:
                self._result.set_result(supervise(beside))
            except BaseException as error:
                self._result.set_exception(error)
                if not made.done():
                    made.set_exception(error)

        Thread(target=life, name="training", daemon=True).start()
        try:
            super().__init__(made.result())
        except BaseException:
            given_up.set()
            raise
        atexit.register(self._end_with_this_process)

    def wait(self, timeout_s: float | None = None) -> Run:
        """The run when it has ended; after `timeout_s` also while it is live. Raises what `train` does."""
        try:
            return self._result.result(timeout_s)
        except NotYet:  # or the run's own TimeoutError, which it is since Python 3.11
            return self._result.result() if self._result.done() else self

    def _end_with_this_process(self) -> None:
        if os.getpid() != self._process:  # a fork has this to do at its end, too, but not the thread that trains
            return
        if not self._result.done():
            self._folder.request_stop(STOP_COMMAND)
        self._result.exception()


@overload
def train(env_or_preset: Trained | None = ..., *, detach: Literal[True], **options: Any) -> Training: ...
@overload
def train(env_or_preset: Trained | None = ..., *, detach: bool = ..., **options: Any) -> Run: ...
def train(env_or_preset: Trained | None = None, *, detach: bool = False, **options: Any) -> Run:
    """Train on this machine until the run has what it was to have; progress is printed. Ctrl-C ends it with a
    checkpoint, and the run is returned: its `status` is then "stopped".

    Args:
        env_or_preset: any Gymnasium id, or a function or class that makes an environment ("package.module:function"),
            trained as the preset that fits has it; a preset's name; or a whole configuration. None: what the option
            `env` says; Breakout without it.
        detach: return at once, with a `Training`, and train in the background of this process.
        options: those of `dba3c train` by their names (`rollout_length=20`), short ones too (`workers=2`); `preset`,
            `protocol` and `resume` as there. For "package.module:attribute" also what it names.

    Raises:
        UserError: what cannot be, in one line.
        RunBroken: the run failed; the line says why. A `param_servers.ParamServersError`.
        KeyboardInterrupt: a second Ctrl-C, which did not wait for the checkpoint.
    """
    own: dict[str, Any] = {name: options.pop(name) for name in ("preset", "protocol", "resume") if name in options}
    for name in ("preset", "protocol"):
        if not isinstance(own.get(name, ""), str | None):
            raise UserError(f"{name} must be a name, not {own[name]!r}")
    cores, given = given_cores(os.environ), typed_options(options, ("preset", "protocol", "resume", "detach"))
    words = [] if env_or_preset is None else [repr(env_or_preset)]
    command = f"dba3c.train({', '.join([*words, *(f'{k}={v!r}' for k, v in {**own, **given}.items())])})"
    if isinstance(env_or_preset, TrainConfig):
        if own.keys() - {"resume"}:
            raise UserError(f"{' and '.join(own)}: a whole configuration was given, which has them")
        config, goes_on = replace_options(env_or_preset, **given), bool(own.get("resume"))
        if not goes_on:
            refuse_normalized_replay(config)
        refuse_unread(config, given)
        command, told = "dba3c.train(TrainConfig)", []
    else:
        if env_or_preset is not None and not isinstance(env_or_preset, str):
            env_or_preset = name_of(env_or_preset)
        said = words_of(env_or_preset, given, **own)
        config, goes_on = said.config(cores), said.resume
        told = said_of_samples(said, config)
    return _train(config, run_dir_of(config, goes_on), goes_on, command, detach, told)


def resume(run: str | os.PathLike[str], *, detach: bool = False, **options: Any) -> Run:
    """Go on with a run from its newest checkpoint; see `train`, also for what is raised.

    Args:
        options: of what may change (`dba3c.resuming.MAY_CHANGE`); any other is a UserError.
    """
    folder = RunFolder.open(run)
    given = typed_options(options, ("detach",))
    config = changed_on_resume(folder.train_config(), given)
    running.refuse_whole_cluster(config, folder)
    command = ", ".join([repr(str(folder.path)), *(f"{name}={value!r}" for name, value in given.items())])
    return _train(config, folder.path, True, f"dba3c.resume({command})", detach)


def stop(run: str | os.PathLike[str]) -> str:
    """Ask a live run, on whichever machine, to end with a checkpoint; returns one line on what becomes of it. One that
    has ended is left alone, and the line says why it did.

    Raises:
        UserError: it is broken, or waits in a queue for its next life.
    """
    return ask_to_end(run, may_have_ended=True)


def _search_path() -> list[str]:
    """What this process searches for modules, for one that is elsewhere. In a notebook or after `python -c` the current
    directory comes first; Python's own modules stay before it, for a queue.py there would end what imports queue."""
    entries = [entry for entry in sys.path if isinstance(entry, str)]
    if "" not in entries:
        return entries
    own = [sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")]
    return [*filter(None, own), *(entry or os.getcwd() for entry in entries)]


def _train(
    config: TrainConfig, run_dir: Path, goes_on: bool, command: str, detach: bool, told: Sequence[str] = ()
) -> Run:
    folder = resolved(run_dir)  # the program may go elsewhere before the run has ended
    path = _search_path()
    if current_thread() is main_thread() and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an ignored one is inherited: no exit code could be known
    place = detect(os.environ)
    if place.world_size > 1:
        raise UserError(f"{place.launcher} started {place.world_size} ranks, which `dba3c train` makes one run of")

    def supervise(beside: Beside) -> Run:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}  # roles import what we do
        try:
            code, why = running.train(
                config, run_dir, resume=goes_on, command=command, beside=beside, environ=environ, told=told
            )
        except (ConfigError, CheckpointError) as error:
            raise UserError(str(error)) from error
        if code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if code != 0:
            raise (UserError if code == USER_ERROR_EXIT else RunBroken)(f"{why}; folder: {folder}")
        return Run(folder)

    return Training(supervise) if detach else supervise(watched)
