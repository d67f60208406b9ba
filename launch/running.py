"""A run, once its configuration fits, whole on this machine: every role is a process, under one supervisor."""

import errno
import json
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from dba3c.config import TrainConfig
from dba3c.errors import RUN_ENDED_BROKEN_EXIT, RUN_TAKEN_OVER_EXIT, USER_ERROR_EXIT, UserError, writing
from dba3c.metrics.watch import watched
from dba3c.metrics.writer import MetricsWriter
from dba3c.resuming import refuse_another_run
from dba3c.roles import PER_START
from dba3c.runs.ending import before_the_first_update, note_end
from dba3c.runs.files import checkpoint_steps, is_there, write_atomically
from dba3c.runs.folder import STOP_COMMAND, RunFolder
from dba3c.runs.host_facts import namespace, started_by
from dba3c.runs.lock import HEARTBEAT_LOST_S, HEARTBEAT_S, NOBODY, living_holder, taken_over
from launch.cluster.launchers import TORCHRUN, LaunchPlace
from launch.local.child import Child, describe_exit, raise_interrupt, taking_signals
from launch.local.fork_server import ForkServer
from launch.local.resources import check_machine, given_cores
from launch.local.role_process import DRAIN_TIMEOUT_S, RoleProcess
from launch.local.supervisor import Supervisor
from launch.output import say, say_to_stderr
from param_servers.errors import RunBroken

MOST_PROCESSES_ON_A_CORE = 4
"""Lanes and actors, with which the run of a cluster may go on here."""
CHECK_TIMEOUT_S = 600.0
"""For building the network and an environment, and trying own code once: a shared file system may be slow."""
RESTARTS = 5
"""Of each process, within `RESTART_WINDOW_S`."""


@contextmanager
def all_of_a_process(folder: RunFolder) -> Iterator[None]:
    """Beside a run that its process is there for: it is shown, and the process ends when the folder is taken over."""
    folder.end_process_when_lost(say_to_stderr)
    with watched(folder):
        yield


def train(
    config: TrainConfig,
    run_dir: Path,
    *,
    resume: bool,
    command: str,
    launch_id: str = "",
    run_name: str = "",
    beside: Callable[[RunFolder], AbstractContextManager[None]] = all_of_a_process,
    environ: Mapping[str, str] | None = None,
    told: Sequence[str] = (),
) -> tuple[int, str]:
    """Train until the run ends; returns the exit code, and why it ended.

    Args:
        launch_id, run_name: as in `LaunchPlace`, where a launcher started this and may start it again.
        beside: entered while the roles run.
        environ: of the roles; None: this process's.
        told: lines about the run, printed once it is not refused.

    Raises:
        UserError: the run folder is in use or holds another run, or the run cannot be trained here.
        RunBroken: whether it can could not be found out, or not in time.
    """
    refuse_what_is_there(config, run_dir, resume)
    told = [*(had_finished(run_dir) if resume else ()), *told]
    env_id = config.environment.env_id
    say(f"{env_id} in {run_dir}: looking whether it can be trained here, which takes seconds")
    check_machine(config, sum(config.processes.values()))
    raise_interrupt()  # what came while modules were imported
    with ForkServer(environ=environ) as fork_server:
        refuse_unbuildable(fork_server, config, run_dir, resume)
        launch_id = launch_id or secrets.token_hex(4)
        shape = {**config.processes, **({"run_name": run_name} if run_name else {})}
        life = {"launcher": "local", "topology": shape, "launch_id": launch_id, "command": command}
        cores = given_cores(os.environ if environ is None else environ)
        with RunFolder.launch(
            run_dir, config.to_json(), resume, cores=cores, starts=starts_before(run_dir), **life
        ) as folder:
            say("\n".join([f"run folder: {folder.path}", *told]))
            try:
                metrics = MetricsWriter(folder, "launcher", 0)
                first = first_incarnation(folder, rank=0)
            except BaseException as error:  # its life has begun: without an end it would pass for a broken one
                note_end(folder, USER_ERROR_EXIT, str(error) or "interrupted before anything had begun")
                raise
            processes = role_processes(config, folder.path, launch_id, first)
            supervisor = Supervisor(
                fork_server, folder.path, processes, folder.request_stop,
                on_event=metrics.record_event, stop_timeout_s=config.exchange.timeouts.stop_s,
            )  # fmt: skip
            code = 1
            with taking_signals(supervisor.take_signal):  # also while the view takes its last look
                try:
                    with beside(folder):
                        raise_interrupt()
                        code = supervisor.run()
                    with suppress(UserError, OSError):
                        code = code or (RUN_ENDED_BROKEN_EXIT if folder.has_failed() else 0)
                finally:
                    why = note_end(folder, code, supervisor.cause)
                    metrics.close()
            with suppress(UserError):  # of what cannot be looked at nothing is said
                if code in (0, RUN_TAKEN_OVER_EXIT) and not is_there(folder.path / "config.json"):
                    code, why = RUN_TAKEN_OVER_EXIT, taken_over(folder.path, NOBODY)
            reason = why
            with suppress(OSError):  # what was saved is not known, then
                saved = max(checkpoint_steps(folder.checkpoints), default=0)
                if code == 0 and not saved:
                    reason += f", {before_the_first_update(config)}"
                elif code not in (0, RUN_TAKEN_OVER_EXIT) and saved:
                    reason += f"; --resume goes on from step {saved:,}"
            say(f"run {'ended' if code == 0 else 'failed'}: {reason}; folder: {folder.path}")
            return code, why


def refuse_whole_cluster(config: TrainConfig, folder: RunFolder) -> None:
    """Raise UserError where a cluster's run would go on here, all its processes on one machine."""
    launcher = folder.life().get("launcher", "local")
    processes = config.exchange.num_workers * config.environment.lanes + config.processes["actors"]
    cores = given_cores(os.environ)
    if launcher != "local" and processes > MOST_PROCESSES_ON_A_CORE * cores:
        raise UserError(
            f"this run was started by {launcher}, with {processes} processes in all, and here are {cores} cores: start "
            f"it the same way, with --resume --run-dir {folder.path}"
        )


def refuse_what_is_there(config: TrainConfig, run_dir: Path, resume: bool) -> None:
    """Raise UserError where this cannot be launched there, for what is there."""
    RunFolder.refuse_launch(run_dir, resume)
    if resume:
        refuse_another_run(config, RunFolder(run_dir.expanduser()).train_config())


def had_finished(run_dir: Path) -> Iterator[str]:
    """Why a run that goes on had finished, if it had."""
    ended = RunFolder(run_dir.expanduser()).life().get("ended") or {}
    if ended.get("outcome") == "finished":
        yield f"this run had finished: {ended.get('reason')}; it trains on until it does so anew"


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="dba3c-")
    except OSError as error:
        raise UserError(f"{error.strerror or error}: set TMPDIR to a folder with room") from error


def refuse_unbuildable(
    fork_server: ForkServer, config: TrainConfig, run_dir: Path, resume: bool, within_s: float = CHECK_TIMEOUT_S
) -> None:
    """`launch.role.check`, in a process of its own: this one needs no torch.

    Args:
        within_s: imports included. Ranks that wait for the chief wait no longer than `join_timeout_s`.

    Raises:
        UserError: a network, environment or checkpoint that cannot be, or no room for checkpoints.
        RunBroken: it may be well, but could not be looked at, or not in time.
    """
    until_s = time.monotonic() + within_s
    ended: Future[int] = Future()
    with _temporary_folder() as place:
        why_not = Path(place) / "why_not"
        words = [config.to_json(), str(run_dir), "resume" if resume else "", str(why_not)]
        child = Child(fork_server, "launch.role:check", words, Path(place) / "said", ended.set_result, signal.SIGKILL)
        try:
            code = ended.result(max(0.0, until_s - time.monotonic()))
        except NotYet:
            child.signal(signal.SIGKILL)
            raise RunBroken(f"the check of what is to run did not end within {within_s:g} s") from None
        except BaseException:
            child.signal(signal.SIGKILL)
            raise
        said = child.tail().splitlines()
        why = why_not.read_text(encoding="utf-8", errors="surrogateescape") if why_not.exists() else ""
    if code and not why:  # it crashed
        why = said.pop() if said and code > 0 else f"the check of what is to run ended: {describe_exit(code)}"
    for warning in said:
        say_to_stderr(warning)
    if why:
        raise (UserError if code == USER_ERROR_EXIT else RunBroken)(why)


def returns(run_dir: Path, place: LaunchPlace) -> bool:
    """Whether this chief's own launch has begun the run, which goes on: its pod was restarted, or all ranks were."""
    try:
        life = RunFolder(run_dir).life()
    except UserError:
        return False
    is_named = bool(place.run_name) and life.get("topology", {}).get("run_name") == place.run_name
    # which counts no restart where ranks became more or fewer, or others than its own had failed
    same_torchrun = place.launcher == TORCHRUN and life.get("started_by") == started_by()
    if (place.restart_count and is_named) or same_torchrun:
        ended = life.get("ended", {})  # not of an earlier launch, which has ended as somebody wanted
        asked = {ended.get("reason"), RunFolder(run_dir).stop_reason()}  # whatever failed then
        return ended.get("outcome") != "finished" and not asked & {STOP_COMMAND, "SIGINT"}
    is_ours = bool(place.launch_id) and life.get("launch_id") == place.launch_id
    ours = is_named if place.launcher == TORCHRUN else is_ours
    return ours and not place.restart_count and "ended" not in life


def wait_for_its_dead_lock(run_dir: Path) -> None:
    """Of a chief that returns. A container that was killed with all that ran in it seems to hold the folder until its
    heartbeat is old: another container does not see its processes. Raises UserError: the lock cannot be read."""
    until_s, told = time.monotonic() + HEARTBEAT_LOST_S + 2 * HEARTBEAT_S, False
    launch_id = RunFolder(run_dir).life().get("launch_id")  # torchrun's lives have ids of their own
    while time.monotonic() < until_s:
        with writing(run_dir):
            holder = living_holder(run_dir)
        if holder is None or holder.launch_id != launch_id or holder.pid_space == namespace("pid"):
            return
        if not told:
            say_to_stderr(
                f"{run_dir} was held by this launch on {holder.host} a moment ago: waiting until it is given up"
            )
            told = True
        time.sleep(HEARTBEAT_S)


def role_processes(config: TrainConfig, run_dir: Path, launch_id: str, first: int = 0) -> list[RoleProcess]:
    """The processes of a run on one machine, servers first; their incarnations count from ``first``."""

    def words(role: str, rank: int, incarnation: int) -> list[str]:
        return [
            "--run-dir", str(run_dir), "--role", role, "--rank", str(rank),
            "--incarnation", str(first + incarnation), "--launch-id", launch_id,
        ]  # fmt: skip

    counts, drain_s = config.processes, config.exchange.timeouts.drain_s
    all_needed = config.exchange.exchange == "allreduce"  # nobody can take a lost rank's place in a collective
    server: dict[str, Any] = {"max_restarts": RESTARTS, "drain_timeout_s": drain_s}
    trains = {"max_restarts": 0 if all_needed else RESTARTS, "essential": all_needed, "drain_timeout_s": drain_s}
    trains["saves_alone"] = config.exchange.exchange in ("allreduce", "majority")
    if counts["servers"]:  # which decide, and write the last checkpoint
        trains |= {"decides": False, "drain_timeout_s": DRAIN_TIMEOUT_S}
    helps: dict[str, Any] = {"max_restarts": RESTARTS, "essential": False, "decides": False}
    budget_s = config.run.evaluation_budget_s if counts["evaluators"] else 0.0
    # the two windows: how long all have to be silent before a monitor takes what it has for all (`RunEnd`)
    reads = {**helps, "drain_timeout_s": DRAIN_TIMEOUT_S + budget_s + 2 * config.record_window_s}
    kinds = {"server": server, "worker": trains, "learner": trains, "actor": helps}
    kinds |= {"evaluator": reads, "recorder": reads, "monitor": reads | {"missed": _missed_without_monitor(config)}}
    return [
        RoleProcess(role=role, rank=rank, words=partial(words, role, rank), **what)
        for role, what in kinds.items()
        for rank in range(counts[f"{role}s"])
    ]


def _missed_without_monitor(config: TrainConfig) -> str:
    run = config.run
    evaluators_look = run.evaluators and run.evaluation_games >= run.stop_games
    limits = {"--stop-score": None if evaluators_look else run.stop_score, "--max-core-hours": run.max_core_hours}
    names = " and ".join(name for name, limit in limits.items() if limit is not None)
    return names and f"so nobody looks for {names} any more: dba3c stop ends it"


def starts_before(run_dir: Path) -> int:
    """How often the rank was started that was so most often, in all lives that there are."""
    return max((_starts_in(path) for path in (run_dir / "logs").glob("rank-*.json")), default=0)


def _starts_in(path: Path) -> int:
    try:
        return int(json.loads(path.read_text())["starts"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # or torn by a crash: the lives are counted, too
        return 0


def first_incarnation(folder: RunFolder, rank: int) -> int:
    """0 for the first start of a rank in this run folder, then 250, 500, …: counted in ``logs/rank-RANK.json``.

    In a further life all begin beyond what any rank had: roles may be dealt anew, and a worker plays other games each
    time it is started.
    """
    path = folder.path / "logs" / f"rank-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        starts = _starts_in(path)
    except OSError as error:
        if error.errno != errno.ESTALE:  # NFS: it was replaced under us, and is there anew
            raise
        starts = _starts_in(path)
    starts = max(starts, int(folder.life().get("starts") or 0), folder.life_number())
    write_atomically(path, json.dumps({"starts": starts + 1}) + "\n")
    return starts * PER_START
