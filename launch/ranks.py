"""What one rank of srun, mpirun, torchrun, … does.

1. The chief (rank 0) makes or resumes the run folder; the others wait for the folder of this very launch.
2. Each rank starts the processes that the topology deals it; the chief also the monitor.
3. It stays until they are gone. Processes find each other through the folder's rendezvous files.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from dba3c.config import TrainConfig, replace_options
from dba3c.errors import UserError
from dba3c.metrics import MetricsWriter
from dba3c.run_folder import RunFolder
from launch.incarnations import first_incarnation
from launch.launchers import LaunchPlace
from launch.local import RUNS, game_of, role_processes
from launch.network import LISTEN_HOST_VARIABLE, listen_address
from launch.options import parse_train, value_of, with_long_names
from launch.resources import given_cores, thread_environment
from launch.supervisor import Supervisor, say_to_stderr
from launch.topology import Assignment, Topology, fit

COUNTS = ("num_workers", "num_gradients", "num_backup_workers")
END_LOOK_S = 2.0
COLOCATED = "--colocated-servers"
"""Servers share their ranks with workers: a matter of places only, so no part of the configuration."""


def train(words: Sequence[str], place: LaunchPlace, command: str) -> int:
    """``dba3c train`` as one rank of many; ``words`` are the same in all of them. Returns the exit code.

    Raises:
        UserError: bad options, or options that contradict the number of ranks.
    """
    counts, words = take_counts(words)
    colocated = COLOCATED in words
    words = [word for word in words if word != COLOCATED]
    arguments = parse_train(words, cores=place.world_size)
    config, topology = fit_config(arguments.config, place, counts, colocated)
    run_dir = config.run.run_dir or run_dir_of_launch(config, place)
    if place.is_chief:
        say_to_stderr(f"{topology.arithmetic()}; run folder: {run_dir}")
    return run_rank(config, place, topology, run_dir, resume=arguments.resume, command=command)


def take_counts(words: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Split what the ranks must add up to (`num_workers`, …) from the other options.

    Raises:
        UserError: a count is no number.
    """
    words = with_long_names(words)
    counts: dict[str, int] = {}
    for name in COUNTS:
        option = "--" + name.replace("_", "-")
        while (value := value_of(words, option)) is not None:
            if not value.isdigit():
                raise UserError(f"{option} should be a number, it is {value!r}")
            counts[name] = int(value)
            at = words.index(option)
            del words[at : at + 2]
    return counts, words


def run_dir_of_launch(config: TrainConfig, place: LaunchPlace) -> Path:
    """Where all ranks of a launch, and a requeued job's next life, look when --run-dir is not given."""
    name = os.environ.get("SLURM_JOB_ID") or place.launch_id
    if not name:
        raise UserError(f"{place.launcher} gives its ranks no common name: say --run-dir, the same for all")
    return RUNS / f"{game_of(config)}-{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}"


def fit_config(
    config: TrainConfig, place: LaunchPlace, counts: Mapping[str, int], colocated_servers: bool = False
) -> tuple[TrainConfig, Topology]:
    """The configuration and topology for as many ranks as there are.

    Args:
        counts: the counts that the user gave (see `COUNTS`): these must fit the ranks exactly; a preset's give way.

    Raises:
        UserError: what was given contradicts the number of ranks; the message is the arithmetic.
    """
    exchange, run = config.exchange, config.run
    servers = exchange.num_servers if exchange.exchange in ("servers", "async") else 0
    if exchange.exchange == "local" and place.world_size > 1:
        raise UserError(f"exchange local is one process, but {place.started_by} started {place.world_size} ranks")
    left = place.world_size - (0 if colocated_servers else servers) - run.evaluators - run.recorders
    backup_workers = counts.get("num_backup_workers")
    if backup_workers is None and "num_gradients" not in counts and exchange.backup_workers < left:
        backup_workers = exchange.backup_workers
    topology = fit(
        place.world_size,
        servers=servers,
        workers=counts.get("num_workers"),
        gradients=counts.get("num_gradients"),
        backup_workers=backup_workers,
        evaluators=run.evaluators,
        recorders=run.recorders,
        colocated_servers=colocated_servers,
        started_by=place.started_by,
    )
    g_and_b: dict[str, int | None] = {
        "num_gradients": topology.gradients,
        "num_backup_workers": topology.backup_workers,
    }
    if exchange.exchange == "async":
        g_and_b = dict.fromkeys(g_and_b)
    return replace_options(config, num_workers=topology.workers, **g_and_b), topology


def run_rank(
    config: TrainConfig, place: LaunchPlace, topology: Topology, run_dir: Path, *, resume: bool, command: str
) -> int:
    """Run what this rank has to run, until it is over; returns the exit code.

    Raises:
        UserError: the run folder is in use, or did not appear within `join_timeout_s`; nothing was started then.
    """
    mine = topology.place(place.tasks_per_node)[place.rank]
    nodes = len(place.tasks_per_node)
    listen_host = listen_address(config.exchange.interface, place.address, nodes)
    cores = given_cores(os.environ, place.tasks_per_node[place.node_rank])
    environ = {**thread_environment(max(1, cores // len(mine)), os.environ), LISTEN_HOST_VARIABLE: listen_host}
    if place.is_chief:
        mine = (*mine, Assignment("monitor", 0))
        life = {"launcher": place.launcher, "launch_id": place.launch_id, "command": command}
        shape = {**asdict(topology), "nodes": nodes, "restart_count": place.restart_count}
        folder = RunFolder.launch(
            run_dir,
            config.to_json(),
            resume or _returns(run_dir, place),
            topology=shape,
            cores=cores * place.world_size,
            **life,
        )
    else:
        folder = RunFolder.open(run_dir, wait_s=config.exchange.join_timeout_s, launch_id=place.launch_id)
    with folder:
        metrics = MetricsWriter(folder, "launcher", place.rank)
        try:
            first = first_incarnation(folder.path, place.rank)
            processes = [
                replace(process, environ=environ, command=_counting_from(first, process.command))
                for process in role_processes(config, folder.path, place.launch_id)
                if Assignment(process.role, process.rank) in mine
            ]
            supervisor = Supervisor(
                folder.path,
                processes,
                folder.request_stop,
                on_event=metrics.record_event,
                say=lambda line: say_to_stderr(f"[{mine[0]} on {place.node_name}] {line}"),
                whole_run=place.world_size == 1,
            )
            with _told_of_the_end(supervisor, folder, place):
                code = supervisor.run()
            if place.is_chief:
                folder.end_life(*outcome(code, folder))
        finally:
            metrics.close()
    return code


@contextmanager
def _told_of_the_end(supervisor: Supervisor, folder: RunFolder, place: LaunchPlace) -> Iterator[None]:
    """Tell a rank's supervisor when the chief notes the run's end: a worker that is still joining would not notice."""
    left = threading.Event()

    def look() -> None:
        while not left.wait(END_LOOK_S):
            with suppress(UserError):  # meta.json, seen while it was replaced on a slow file system
                life = folder.life()
                if life.get("launch_id") == place.launch_id and "ended" in life:
                    supervisor.run_has_ended(well=life["ended"]["outcome"] != "failed")
                    return

    if not place.is_chief:
        threading.Thread(target=look, name="end", daemon=True).start()
    try:
        yield
    finally:
        left.set()


def _counting_from(first: int, command: Callable[[int], Sequence[str]]) -> Callable[[int], Sequence[str]]:
    return lambda incarnation: command(first + incarnation)


def _returns(run_dir: Path, place: LaunchPlace) -> bool:
    """Whether this chief is the second of its own launch: its pod was restarted, and the run goes on."""
    try:
        life = RunFolder(run_dir).life()
    except UserError:
        return False
    return bool(place.launch_id) and life.get("launch_id") == place.launch_id and "ended" not in life


def outcome(code: int, folder: RunFolder) -> tuple[str, str]:
    """How a life ended, for meta.json: (finished | stopped | failed, reason)."""
    asked = folder.stop_reason()
    if code != 0:
        return "failed", asked or f"exit code {code}"
    if asked is not None and asked.startswith("SIG"):
        return "stopped", asked
    return "finished", asked or "the run has seen what it was to see"
