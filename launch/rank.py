"""One rank of a run that srun, mpirun, torchrun, … started (`run_rank`).

1. The chief (rank 0) makes or resumes the run folder; the others wait for the folder of this very launch.
2. Each rank starts the processes that the topology deals it; the chief also the monitor.
3. It stays until they are gone. Processes find each other through the folder's rendezvous files.
"""

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

from dba3c.config import TrainConfig, has_own_code, replace_options
from dba3c.errors import RUN_BROKEN_EXIT, RUN_ENDED_BROKEN_EXIT, USER_ERROR_EXIT, UserError
from dba3c.metrics.trackers import check_clients
from dba3c.metrics.views import PlainView
from dba3c.metrics.watch import watched
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.ending import TRAINING_ROLES, note_end, note_failure, refusal, telling_refusals
from dba3c.runs.folder import RunFolder
from dba3c.runs.lock import process_started
from launch.cluster.launchers import ENDS_ALL_RANKS, REPLACEMENT, SRUN, TORCHRUN, LaunchPlace
from launch.cluster.network import LISTEN_HOST_VARIABLE, listen_address
from launch.cluster.topology import Assignment, Topology
from launch.local.child import taking_signals
from launch.local.fork_server import ForkServer
from launch.local.resources import (
    bind_to_own_cores,
    check_open_files,
    cores_of_all_ranks,
    given_cores,
    slow_precision,
    thread_environment,
    warn_of_few_threads,
)
from launch.local.supervisor import Supervisor
from launch.output import say_to_stderr
from launch.running import (
    CHECK_TIMEOUT_S,
    first_incarnation,
    had_finished,
    refuse_unbuildable,
    refuse_what_is_there,
    returns,
    role_processes,
    starts_before,
    wait_for_its_dead_lock,
)
from launch.slurm import controller
from param_servers.errors import ConfigError
from param_servers.timeouts import MARGIN_S

END_LOOK_S = 2.0
REFUSAL_HOLDS_S = 60.0
"""How much later than its chief a rank may begin to wait, where a launch may have the name of an earlier one: what was
refused, or began and has ended, before that, was the earlier one."""
PROGRESS_EVERY_S = 30.0
"""Between lines in the output of a job."""


def run_rank(
    config: TrainConfig, place: LaunchPlace, topology: Topology, run_dir: Path, *, resume: bool, command: str
) -> int:
    """Run what this rank has to run, until it is over; returns the exit code.

    Raises:
        UserError: the run folder is in use, or it or the chief's address did not appear within `join_timeout_s`;
            nothing was started then.
    """
    mine = topology.place(place.tasks_per_node)[place.rank]
    cores = given_cores(os.environ, place.local_world_size)
    if place.launcher == SRUN:
        bind_to_own_cores(os.environ, place.local_rank, place.local_world_size)
    with telling_refusals(run_dir, place.launch_id) if place.is_chief else nullcontext():
        try:
            check_open_files(place.world_size + config.environment.lanes - 1)
            nodes, wait_s = len(place.tasks_per_node), config.exchange.join_timeout_s
            listen_host = listen_address(config.exchange.interface, place.address, nodes, wait_s, say_to_stderr)
        except (UserError, ConfigError) as error:
            if not place.is_chief:  # whose folder may be long in coming
                say_to_stderr(f"{mine[0]} on {place.node_name}: {error}")
                _tell_all(error, place, mine[0], lambda: _folder_of_the_chief(config, place, run_dir))
            raise
        if place.is_chief:
            folder = _make_folder(config, place, topology, run_dir, resume=resume, cores=cores, command=command)
        else:
            folder = _folder_of_the_chief(config, place, run_dir)
    sets_threads = place.launcher == TORCHRUN and place.local_world_size > 1
    cores_of_each = max(1, cores // len(mine))
    environ = {
        **os.environ,
        **thread_environment(cores_of_each, os.environ, by_torchrun=sets_threads),
        LISTEN_HOST_VARIABLE: listen_host,
    }
    if any(part.role == "learner" for part in mine):
        warn_of_few_threads(environ, cores_of_each)
    if place.is_chief:
        mine = (*mine, Assignment("monitor", 0))
    with folder, _failure_told_to_all(folder, place, mine[0]):
        folder.end_process_when_lost(say_to_stderr)
        launch_id = str(folder.life().get("launch_id", ""))
        with (
            ForkServer(environ=environ) as fork_server,
            closing(MetricsWriter(folder, "launcher", place.rank)) as metrics,
        ):
            computes = any(part.role in ("worker", "learner") for part in mine)
            slow = slow_precision(folder.train_config().network)  # which the chief's processor may have chosen for all
            if computes and slow:
                metrics.record_event("slow_precision", f"{mine[0]} on {place.node_name}: {slow}")  # the chief prints it
            of_run = role_processes(config, folder.path, launch_id, first_incarnation(folder, place.rank))
            processes = [process for process in of_run if Assignment(process.role, process.rank) in mine]
            supervisor = Supervisor(
                fork_server,
                folder.path,
                processes,
                folder.request_stop,
                on_event=metrics.record_event,
                say=lambda line: say_to_stderr(f"[{mine[0]} on {place.node_name}] {line}"),
                whole_run=place.world_size == 1,
                stays=not place.is_chief and place.launcher in ENDS_ALL_RANKS,
                joins_late=place.launcher == REPLACEMENT,
                stop_timeout_s=config.exchange.timeouts.stop_s,
            )
            first_node = controller.FirstNode(folder.path, os.environ) if place.launcher == SRUN else None
            if place.is_chief:
                view = PlainView(PROGRESS_EVERY_S, sys.stderr, folder.life().get("started_s", 0.0))
                beside = watched(folder, view, poll_s=5.0)
            else:
                return_s = config.exchange.timeouts.return_s
                beside = _told_of_the_end(supervisor, folder, launch_id, first_node, return_s)
            with taking_signals(supervisor.take_signal):  # also while the view takes its last look
                with beside:
                    code = supervisor.run()
                if place.is_chief:
                    with suppress(UserError, OSError):
                        code = code or (RUN_ENDED_BROKEN_EXIT if folder.has_failed() else 0)
                    note_end(folder, code, supervisor.cause)
                    return code
            if code == 0 and place.launcher == TORCHRUN and lost_its_launcher(folder):
                code = RUN_BROKEN_EXIT  # with 0 its torchrun would not take part when the others start anew
            elif first_node is not None and (first_node.turns_out_lost() if code else first_node.is_lost()):
                why = controller.requeue_without_first_node(folder.path, place.launch_id, os.environ)
                metrics.record_event("first_node_lost", why)  # srun, which would pass on what is printed, is dead too
    return code


def _make_folder(
    config: TrainConfig,
    place: LaunchPlace,
    topology: Topology,
    run_dir: Path,
    *,
    resume: bool,
    cores: int,
    command: str,
) -> RunFolder:
    """The chief's: a new run's, or that of the run that goes on.

    Raises:
        UserError, RunBroken: it cannot be, or what the user wrote cannot run.
    """
    check_clients(config.run.track)
    goes_on = resume or returns(run_dir, place)
    if goes_on:
        if not resume:
            wait_for_its_dead_lock(run_dir)
        refuse_what_is_there(config, run_dir, resume=True)
        for line in had_finished(run_dir):
            say_to_stderr(line)
    if has_own_code(config):  # a mistake in it would be a traceback of every rank
        within_s = CHECK_TIMEOUT_S  # unless other ranks wait for this one
        if place.world_size > 1:
            within_s = min(within_s, max(MARGIN_S, config.exchange.join_timeout_s - MARGIN_S))
        with ForkServer(import_timeout_s=within_s) as fork_server:
            here = replace_options(config, device="cpu")  # a server's node may have no GPU
            refuse_unbuildable(fork_server, here, run_dir, goes_on, within_s)
    shape = {**asdict(topology), "nodes": len(place.tasks_per_node), "restart_count": place.restart_count}
    return RunFolder.launch(
        run_dir,
        config.to_json(),
        goes_on,
        topology={**shape, "run_name": place.run_name},
        cores=cores_of_all_ranks(os.environ, cores, place.world_size),
        launcher=place.launcher,
        starts=starts_before(run_dir),
        # each life of a run that torchrun starts again has an id of its own
        launch_id=f"{place.launch_id}-{secrets.token_hex(4)}" if place.launcher == TORCHRUN else place.launch_id,
        command=command,
    )


def _folder_of_the_chief(config: TrainConfig, place: LaunchPlace, run_dir: Path) -> RunFolder:
    """The folder that this launch's chief makes. Raises UserError: it refused, cannot make it, or did not in time."""
    # an indexed Job's id is a uid; torchrun's, and those that are set by hand, may come again
    unique = place.launch_id and place.launcher not in (TORCHRUN, "the environment")
    by_torchrun = place.launcher == TORCHRUN  # which starts all ranks at once, and again under the same name
    since_s = started_s() if by_torchrun else 0.0 if unique else time.time() - REFUSAL_HOLDS_S

    def look() -> None:
        if why := refusal(run_dir, place.launch_id, since_s):
            raise UserError(why)

    RunFolder.refuse_unusable(run_dir)
    wait_s = config.exchange.join_timeout_s
    name = place.run_name if by_torchrun else ""
    return RunFolder.open(
        run_dir, wait_s=wait_s, launch_id=place.launch_id, while_waiting=look, since_s=since_s, run_name=name
    )


def started_s() -> float:
    """When this process was started: before what it imports, which takes its time on a shared file system."""
    since_boot_s = float(process_started(os.getpid())) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s)


def lost_its_launcher(folder: RunFolder) -> bool:
    """Whether the run has ended because a rank was killed, whose processes then asked for its end."""
    with suppress(UserError, OSError):
        return (folder.stop_reason() or "").startswith(f"{signal.SIGTERM.name} at ")
    return False


@contextmanager
def _failure_told_to_all(folder: RunFolder, place: LaunchPlace, part: Assignment) -> Iterator[None]:
    """Else the others would wait for what this rank had to start."""
    try:
        yield
    except BaseException as error:
        if place.is_chief:
            with taking_signals(lambda signum: None):
                note_end(folder, 1, f"rank 0 on {place.node_name}: {type(error).__name__}: {error}")
        elif isinstance(error, Exception):
            _tell_all(error, place, part, lambda: folder)
        raise


def _tell_all(error: BaseException, place: LaunchPlace, part: Assignment, folder: Callable[[], RunFolder]) -> None:
    """A rank that cannot begin what it has to do in the training ends the run, which would wait for it."""
    if place.launcher == REPLACEMENT or part.role not in TRAINING_ROLES:
        return
    with suppress(UserError, OSError):
        run, code = folder(), USER_ERROR_EXIT if isinstance(error, (UserError, ConfigError)) else 1
        note_failure(run.path, part.role, part.rank, code, str(error), place.node_name)
        run.request_stop(f"{part} on {place.node_name}: {error}", failed=True)


@contextmanager
def _told_of_the_end(
    supervisor: Supervisor,
    folder: RunFolder,
    launch_id: str,
    first_node: controller.FirstNode | None,
    gone_s: float,
) -> Iterator[None]:
    """Tell a rank's supervisor when the chief notes the run's end: a worker that is still joining would not notice.

    Args:
        first_node: None where a chief may come back (a restarted pod).
        gone_s: a launch whose lock nobody holds for so long is over without a word, for a rank that has nobody else
            to notice it.
    """
    left = threading.Event()

    def look() -> None:
        broken_s = 0.0
        while not left.wait(END_LOOK_S):
            broken = False
            with suppress(UserError, OSError):  # a file system that is away says nothing of the launch
                broken = not supervisor.pids() and folder.status() == "broken"
            broken_s = broken_s + END_LOOK_S if broken else 0.0
            if (first_node is not None and first_node.is_lost()) or broken_s > gone_s:
                supervisor.run_has_ended(well=False)
                return
            with suppress(UserError):  # meta.json, seen while it was replaced on a slow file system
                life = folder.life()
                if not life:  # no meta.json: the mount is away, which says nothing of the launch
                    continue
                is_ours = life.get("launch_id") == launch_id
                if "ended" in life or not is_ours:  # a further life has no place for what is left of this one
                    supervisor.run_has_ended(well=is_ours and life["ended"]["outcome"] != "failed")
                    return

    threading.Thread(target=look, name="end", daemon=True).start()
    try:
        yield
    finally:
        left.set()
