"""A whole run on this machine: every role a process, one supervisor, one picture of how it goes."""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path

from dba3c.config import TrainConfig
from dba3c.errors import UserError
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.ending import before_the_first_update
from dba3c.runs.run_folder import RunFolder, checkpoint_steps
from launch.cluster.incarnations import counting_from, first_incarnation
from launch.local.role_process import DRAIN_TIMEOUT_S, RoleProcess
from launch.local.supervisor import Supervisor, say_to_stderr
from launch.local.verdict import end_when_taken_over, note_end

RUNS = Path("runs")
RESTARTS = 5
"""Of each process, within `RESTART_WINDOW_S`."""


def train(config: TrainConfig, *, resume: bool, command: str, launch_id: str = "", run_name: str = "") -> int:
    """Train until the run ends; returns the exit code.

    Args:
        launch_id, run_name: as in `LaunchPlace`, where a launcher started this and may start it again.

    Raises:
        UserError: the run folder is in use, or holds another run.
    """
    # torch: not for the ranks of a cluster, which only start processes
    from dba3c.assembly.construction import check_buildable
    from dba3c.metrics.watch import watched

    run_dir = config.run.run_dir or (newest_run_dir(config) if resume else default_run_dir(config))
    check_buildable(config, run_dir / "checkpoints" if resume else None)
    launch_id = launch_id or secrets.token_hex(4)
    shape = {**topology_of(config), **({"run_name": run_name} if run_name else {})}
    life = {"launcher": "local", "topology": shape, "launch_id": launch_id, "command": command}
    with RunFolder.launch(run_dir, config.to_json(), resume, **life) as folder:
        end_when_taken_over(folder, say_to_stderr)
        print(f"run folder: {folder.path}", flush=True)
        metrics = MetricsWriter(folder, "launcher", 0)
        first = first_incarnation(folder.path, rank=0)
        processes = [
            replace(process, command=counting_from(first, process.command))
            for process in role_processes(config, folder.path, launch_id)
        ]
        supervisor = Supervisor(
            folder.path, processes, folder.request_stop,
            on_event=metrics.record_event, stop_timeout_s=config.exchange.timeouts.stop_s,
        )  # fmt: skip
        code = 1
        try:
            with watched(folder):
                code = supervisor.run()
        finally:
            reason = note_end(folder, code, supervisor.cause)
            metrics.close()
        if code == 0 and not max(checkpoint_steps(folder.checkpoints), default=0):
            reason += f", {before_the_first_update(config)}"
        print(f"run {'ended' if code == 0 else 'failed'}: {reason}; folder: {folder.path}", flush=True)
        return code


def role_processes(config: TrainConfig, run_dir: Path, launch_id: str) -> list[RoleProcess]:
    """The processes of a run on one machine, servers first."""

    def process(role: str, rank: int, **what: object) -> RoleProcess:
        def command(incarnation: int) -> list[str]:
            return [
                sys.executable, "-m", "launch.roles", "--run-dir", str(run_dir), "--role", role, "--rank", str(rank),
                "--incarnation", str(incarnation), "--launch-id", launch_id,
            ]  # fmt: skip

        made = RoleProcess(role=role, rank=rank, command=command, **what)  # type: ignore[arg-type]
        return replace(made, drain_timeout_s=config.exchange.timeouts.drain_s) if made.decides else made

    counts = topology_of(config)
    servers = [process("server", i, max_restarts=RESTARTS) for i in range(counts["servers"])]
    all_needed = config.exchange.exchange == "allreduce"  # nobody can take a lost rank's place in a collective
    workers = [
        process(role, i, max_restarts=0 if all_needed else RESTARTS, essential=all_needed, decides=not servers)
        for role in ("worker", "learner")
        for i in range(counts[f"{role}s"])
    ]
    actors = [
        process("actor", i, max_restarts=RESTARTS, essential=False, decides=False) for i in range(counts["actors"])
    ]
    drain_timeout_s = DRAIN_TIMEOUT_S + (config.run.evaluation_budget_s if counts["evaluators"] else 0.0)
    helpers = [
        process(role, i, max_restarts=RESTARTS, essential=False, decides=False, drain_timeout_s=drain_timeout_s)
        for role in ("evaluator", "recorder", "monitor")
        for i in range(counts[f"{role}s"])
    ]
    return [*servers, *workers, *actors, *helpers]


def topology_of(config: TrainConfig) -> dict[str, int]:
    """How many processes of each role."""
    has_servers = config.exchange.exchange in ("servers", "async")
    central = config.central.mode == "central"
    return {
        "servers": config.exchange.num_servers if has_servers else 0,
        "workers": 0 if central else config.exchange.num_workers,
        "learners": config.exchange.num_workers if central else 0,
        "actors": config.central.actors if central else 0,
        "evaluators": config.run.evaluators,
        "recorders": config.run.recorders,
        "monitors": 1,
    }


def default_run_dir(config: TrainConfig) -> Path:
    """runs/breakout-20171231-235959, for ALE/Breakout-v5."""
    return RUNS / f"{game_of(config)}-{time.strftime('%Y%m%d-%H%M%S')}"


def newest_run_dir(config: TrainConfig) -> Path:
    """The youngest of this game's runs under runs/.

    Raises:
        UserError: there is none.
    """
    found = sorted(RUNS.glob(f"{game_of(config)}-[0-9]*-[0-9]*/config.json"))
    if not found:
        raise UserError(
            f"nothing to resume: no run of {config.environment.env_id} under {RUNS}/; name one with --run-dir"
        )
    return found[-1].parent


def game_of(config: TrainConfig) -> str:
    """ "breakout" for ALE/Breakout-v5, "make_env" for package.module:make_env."""
    return config.environment.env_id.split("/")[-1].split(":")[-1].rsplit("-v", 1)[0].lower()
