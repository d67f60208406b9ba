"""The processes of a run: what a supervisor needs to know of each, which there are, and which incarnation is the next.

What is started again must not pass for its dead predecessor: by its supervisor, its launcher, or as a resumed run. Nor
may the histories of a run's lives be mistaken for each other: server 0's terms follow from its incarnation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dba3c.config import TrainConfig
from dba3c.errors import RUN_ENDED_BROKEN_EXIT, RUN_TAKEN_OVER_EXIT, USER_ERROR_EXIT
from dba3c.runs.atomic_files import write_atomically
from dba3c.runs.ending import TRAINING_ROLES

FINAL_EXITS = (USER_ERROR_EXIT, RUN_ENDED_BROKEN_EXIT, RUN_TAKEN_OVER_EXIT)

RESTART_WINDOW_S = 3600.0
RESTARTS = 5
"""Of each process, within `RESTART_WINDOW_S`."""
PER_START = 100
"""Incarnations that one start of a rank may use up; more than any role is restarted by its supervisor."""
DRAIN_TIMEOUT_S = 30.0
"""Of a process that has nothing to do after the run's end; evaluators have their budget on top."""


@dataclass(frozen=True, kw_only=True)
class RoleProcess:
    """A process to keep running, and what its loss means."""

    role: str
    rank: int
    words: Callable[[int], Sequence[str]]
    """Incarnation → what its `main` is called with."""
    main: str = "launch.role:main"
    max_restarts: int = 0
    """How often within `RESTART_WINDOW_S` it is started again after it was lost; one of `FINAL_EXITS` is final."""
    essential: bool = True
    """Lost for good, it ends the run; otherwise the run goes on without it."""
    decides: bool = True
    """Its exit with 0 means that the run has ended."""
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    """How long it may go on after the run has ended."""

    @property
    def takes_part(self) -> bool:
        """Whether it trains: bad input to it is bad input to the run, which a monitor's or recorder's need not be."""
        return self.role in TRAINING_ROLES

    @property
    def keeps_the_run(self) -> bool:
        """Whether all that was learned is lost with it: the only learner, the chief of workers without servers."""
        return self.essential or (self.decides and self.rank == 0)

    @property
    def only_reads(self) -> bool:
        """What others write: when they are gone, it has nothing to wait for."""
        return self.role == "monitor"

    @property
    def name(self) -> str:
        return f"{self.role} {self.rank}"


def role_processes(config: TrainConfig, run_dir: Path, launch_id: str, first: int = 0) -> list[RoleProcess]:
    """The processes of a run on one machine, servers first; their incarnations count from ``first``."""

    def process(role: str, rank: int, **what: object) -> RoleProcess:
        def words(incarnation: int) -> list[str]:
            return [
                "--run-dir", str(run_dir), "--role", role, "--rank", str(rank),
                "--incarnation", str(first + incarnation), "--launch-id", launch_id,
            ]  # fmt: skip

        made = RoleProcess(role=role, rank=rank, words=words, **what)  # type: ignore[arg-type]
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


def first_incarnation(run_dir: Path, rank: int) -> int:
    """0 for the first start of a rank in this run folder, then 100, 200, …: counted in ``logs/rank-RANK.json``."""
    path = run_dir / "logs" / f"rank-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        starts = int(json.loads(path.read_text())["starts"])
    except FileNotFoundError:
        starts = 0
    write_atomically(path, json.dumps({"starts": starts + 1}) + "\n")
    return starts * PER_START
