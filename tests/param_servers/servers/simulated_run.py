"""What one seed declares, and the audit log that its chief writes, followed by a reference in one process."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.layout import FlatLayout, plan_shards
from param_servers.servers import cut_through
from param_servers.servers.audit import history
from param_servers.servers.shard import Shard
from param_servers.servers.step_commits import Commit
from param_servers.wire import even_push
from tests.param_servers.checkpoint.simulated_disk import SimDisk
from tests.param_servers.servers.simulated_network import SimNetwork

NUMEL = 7


class Broken(AssertionError):
    """An invariant does not hold."""


class SimulatedRun:
    """The topology and the rates of faults of one seed. It is the chief's audit log, too: see `commit`, `write`."""

    def __init__(self, seed: int, verbose: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.seed, self.verbose = seed, verbose
        cut_through.LEAST_BYTES = 0
        cut_through.LEAST_PART = cut_through.PART_MULTIPLE = rng.choice([2, 64])
        lead = 8 if seed % 4 == 2 else 64 << 10  # not drawn: old seeds keep their schedules
        holds = seed % 4 == 1 or seed % 8 == 6
        cut_through.ALL_WINDOWS, cut_through.SHORT_SLICE = (0, 0) if holds else (1 << 30, 0)
        cut_through.LEAST_LEAD = 0
        even_push.LEAST_LEAD_BYTES, even_push.FIRST_PIECE_BYTES = lead, lead // 4
        self.network, self.disk = SimNetwork(rng), SimDisk()
        k, n = rng.randint(1, 3), rng.randint(1, 4)
        g = rng.choice([n, rng.randint(1, n)])  # n: no backup workers, so updates are cut through
        self.asynchronous = rng.random() < 0.2
        self.exchange = ExchangeConfig(
            exchange="async" if self.asynchronous else "servers",
            num_workers=n,
            num_gradients=None if self.asynchronous else g,
            num_servers=k,
            max_staleness=rng.choice([None, 0, 1, 2]) if self.asynchronous else None,
            step_timeout_s=5.0,
            join_timeout_s=20.0,
            reconnect_timeout_s=40.0,
            min_workers=rng.choice([1, 1, 1 if self.asynchronous else g]),
            checkpoint_every_steps=rng.choice([0, 1, 2, 5]),
        )
        self.optimizer = OptimizerConfig(
            optimizer="adam" if rng.random() < 0.1 else "sgd", learning_rate="linear:1->0.5@100"
        )
        self.plan = plan_shards(FlatLayout.of({"w": (NUMEL,)}), k)
        self.initial = torch.arange(NUMEL, dtype=torch.float32)
        self.gradients_per_step = self.exchange.gradients_per_step
        """g, as shrunk and grown."""
        self.bad_gradients = rng.choice([0.0, 0.0, 0.1])
        self.faults = rng.choice([0.0, 0.01, 0.03])
        self.server_faults = self.faults * rng.choice([0.0, 0.3, 0.7])
        self.server_links_break = seed % 4 == 0  # else servers but 0 die; and disks are slow, to be overtaken
        self.disk.speed = 0.02 if self.server_links_break else 0.5
        self.gradients: dict[tuple[int, int, int], tuple[tuple[int, int], Tensor, int]] = {}
        self.lines: list[dict[str, Any]] = []
        self.reference = Shard(self.initial, self.optimizer)
        self.versions: dict[tuple[int, int], Tensor] = {}
        self.version_shards: dict[tuple[int, int], list[Tensor]] = {}
        """Views of `versions`, one for each server: compared at every event."""
        self.data_points: dict[tuple[int, int], int] = {}
        self.ever_committed: set[tuple[int, int, int]] = set()
        self.ended: tuple[str, bool] | None = None
        self.cut_through: Counter[str] = Counter()
        self.chief_checkpoints: Any = None

    def log(self, line: str) -> None:
        if self.verbose:
            print(f"{self.network.now_s:8.2f}  {line}")

    # -- the audit log -------------------------------------------------------------------------------------------

    def commit(self, commit: Commit, learning_rate: float) -> None:
        members = [(row.worker, row.incarnation, row.sequence) for row in commit.members]
        self.log(f"commit term {commit.term} step {commit.step} {members}")
        if len(members) != self.gradients_per_step:
            raise Broken(f"step {commit.step} has {len(members)} members, g is {self.gradients_per_step}")
        if len({worker for worker, _, _ in members}) != len(members):
            raise Broken(f"step {commit.step} counts a worker twice: {members}")
        points = 0
        for member in members:
            version, gradient, data_points = self.gradients[member]
            stale = commit.step - version[1]
            bound = self.exchange.max_staleness
            if version[0] != commit.term or (not self.asynchronous and stale) or (bound is not None and stale > bound):
                raise Broken(f"step {commit.step} of term {commit.term} takes a gradient of version {version}")
            if not torch.isfinite(gradient).all():
                raise Broken(f"step {commit.step} takes a gradient that is not finite")
            if any(list(member) in line["members"] for line in history(self.lines)):
                raise Broken(f"push {member} counts twice")
            points += data_points
        if commit.data_points != commit.data_points_before + points:
            raise Broken(f"step {commit.step} counts {commit.data_points} data points")
        self.ever_committed |= set(members)
        fields = {"members": [list(member) for member in members], "data_points": commit.data_points}
        self.lines.append({"kind": "commit", "term": commit.term, "step": commit.step, "lr": learning_rate, **fields})
        self.reference.apply([self.gradients[member][1] for member in members], learning_rate)
        self._remember(commit.term, commit.step + 1, commit.data_points)

    def write(self, kind: str, **fields: Any) -> None:
        self.lines.append({"kind": kind, **fields})
        if kind in ("shrunk", "grown"):
            self.gradients_per_step = fields["num_gradients"]
        if kind == "rollback":
            self.log(f"term {fields['term']} begins at step {fields['step']}")
            self._check_disk(fields["step"])
            self.reference = Shard(self.initial, self.optimizer)
            commits = history(self.lines)
            for line in commits:
                gradients = [self.gradients[tuple(member)][1] for member in line["members"]]
                self.reference.apply(gradients, line["lr"])
            if [line["step"] for line in commits] != list(range(fields["step"])):
                raise Broken(f"the history before step {fields['step']} has holes")
            self._remember(fields["term"], fields["step"], fields["data_points"])

    def _remember(self, term: int, step: int, data_points: int) -> None:
        if (term, step) in self.versions:
            raise Broken(f"version {(term, step)} comes into being twice")
        self.versions[term, step] = parameters = self.reference.parameters.clone()
        shards = range(self.exchange.num_servers)
        self.version_shards[term, step] = [parameters[self.plan.slice_of(shard)] for shard in shards]
        self.data_points[term, step] = data_points

    # -- invariants ----------------------------------------------------------------------------------------------

    def _check_disk(self, step: int) -> None:
        """A roll-back to `step`: no checkpoint of what it undoes is left, nor can one still come."""
        later = sorted(saved for saved in self.disk.finished if saved > step)
        if later or self.chief_checkpoints.busy:
            raise Broken(
                f"a roll-back to step {step} leaves checkpoints of the undone steps {later or 'being written'}"
            )

    def check_accepted(self, key: tuple[int, int, int], term: int) -> None:
        """A server in `term` has just called a push accepted."""
        rollbacks = (i for i, line in enumerate(self.lines) if line["kind"] == "rollback" and line["term"] > term)
        lines = self.lines[: next(rollbacks, len(self.lines))]
        if not any(list(key) in line["members"] for line in history(lines)):
            raise Broken(f"push {key} is called accepted in term {term}, in whose history it is not")

    def check_pulled(self, version: tuple[int, int], parameters: Tensor, data_points: int) -> None:
        if not torch.equal(parameters, self.versions[version]):
            raise Broken(f"a worker pulled other parameters than version {version}")
        if data_points != self.data_points[version]:
            raise Broken(f"a worker pulled {data_points} data points with version {version}")

    def check_receipt(self, key: tuple[int, int, int], version: tuple[int, int], accepted: bool, reason: str) -> None:
        self.log(f"push {key} of {version}: {'accepted' if accepted else reason}")
        finite = bool(torch.isfinite(self.gradients[key][1]).all())
        if accepted and key not in self.ever_committed:
            raise Broken(f"push {key} is called accepted but is in no step")
        undone = max(term for term, _ in self.versions) > version[0]
        if not accepted and key in self.ever_committed and not undone:
            raise Broken(f"push {key} is called {reason} but counts")
        if reason == "non-finite" and finite:
            raise Broken(f"push {key} is finite but called {reason}")
