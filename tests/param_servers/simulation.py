"""Whole runs of servers and workers on a simulated network: one seed, one schedule; invariants checked at each event.

`python tests/param_servers/simulation.py SEED` replays one seed and prints what happened.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from param_servers import cut_through
from param_servers.audit import history
from param_servers.client_core import ClientCore
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.decisions import Commit
from param_servers.errors import PeerLost, Refused
from param_servers.events import Event, Message
from param_servers.handshake import Peer, Role
from param_servers.layout import FlatLayout
from param_servers.messages import Row
from param_servers.server_core import ServerCore
from param_servers.shard import Shard
from param_servers.sharding import plan_shards
from tests.param_servers.simulated_network import SimDisk, SimHub, SimNetwork, SimStorage

NUMEL = 7
FAIR_COMMITS = 3
MOST_FAIR_TURNS = 20_000


class Broken(AssertionError):
    """An invariant does not hold."""


class SimServer:
    """One life of one server."""

    def __init__(self, run: Simulation, shard: int, incarnation: int) -> None:
        self.run, self.shard = run, shard
        storage: Any = SimStorage(run.disk, run.rng, shard, run.initial[run.plan.slice_of(shard)])
        if shard == 0:
            run.chief_storage = storage
        self.core = ServerCore(
            shard=shard,
            plan=run.plan,
            initial_parameters=run.initial,
            optimizer_config=run.optimizer,
            exchange_config=run.exchange,
            resolve=run.network.resolve,
            storage=storage,
            clock=lambda: run.network.now_s,
            should_stop=lambda step, data_points: None,
            on_event=lambda event: run.log(f"server {shard}: {event['message']}"),
            incarnation=incarnation,
        )
        self.hub = SimHub(run.network, Peer(Role.SERVER, shard), self.core.node.receive_into)
        self._count_bets()
        self.hub.handle, self.hub.admit = self.handle, self.core.admits
        if self.core.chief is not None:
            self.core.chief._audit = run  # type: ignore[assignment]
        address = (f"server {shard}", incarnation)
        run.network.addresses[shard] = address
        run.network.listening[address] = self.hub
        self.core.attach(self.hub)  # type: ignore[arg-type]

    def _count_bets(self) -> None:
        bets, counts = self.core.node._bets, self.run.bets
        settle, abort = bets.settle, bets.abort

        def counted_settle(members: list[Row]) -> set[int] | None:
            streamed = settle(members)
            counts["won"] += streamed is not None
            return streamed

        def counted_abort() -> None:
            if bets._bet is not None:
                counts["lost"] += 1
                counts["lost halfway"] += bool(bets._bet._undo)
            abort()

        bets.settle, bets.abort = counted_settle, counted_abort  # type: ignore[method-assign]

    def handle(self, event: Event) -> None:
        try:
            self.core.handle(event)
            if self.run.rng.random() < 0.7:  # several events may come before the next look
                self.look()
        except PeerLost as error:
            self.die(str(error))

    def look(self) -> None:
        try:
            self.core.look_at_the_clock()
        except PeerLost as error:
            self.die(str(error))
        if self.core.node.ended is not None and self.hub.alive:
            self.run.log(f"server {self.shard} ends: {self.core.node.ended}")
            self.run.ended = self.core.node.ended
            for peer in list(self.hub.outgoing):
                self.hub.close(peer)
            self.hub.alive = False

    def die(self, why: str) -> None:
        self.run.log(f"server {self.shard} dies: {why}")
        self.run.network.kill(self.hub)


class SimWorker:
    """One life of one worker: pull, compute, push."""

    def __init__(self, run: Simulation, worker: int, incarnation: int) -> None:
        self.run, self.worker, self.incarnation = run, worker, incarnation
        self.core = ClientCore(
            worker=worker,
            plan=run.plan,
            exchange_config=run.exchange,
            resolve=run.network.resolve,
            incarnation=incarnation,
            clock=lambda: run.network.now_s,
        )
        self.hub = SimHub(run.network, Peer(Role.WORKER, worker), self.core.receive_into)
        self.hub.handle = self.handle
        self.core.hub = self.hub  # type: ignore[assignment]
        self.state = "pulling"
        self.pulled: tuple[tuple[int, int], Tensor, Tensor] | None = None
        self.why_dead = ""

    def handle(self, event: Event) -> None:
        push = self.core.state.push
        unanswered = push is not None and push.receipt is None
        try:
            self.core.handle(event)
        except Refused as error:
            self.die(str(error))
        if unanswered and push is not None and push.receipt and push.receipt.accepted and isinstance(event, Message):
            self.run.check_accepted((self.worker, self.incarnation, push.sequence), event.header.term)

    def die(self, why: str) -> None:
        self.why_dead = why
        self.run.log(f"worker {self.worker}.{self.incarnation} dies: {why}")
        self.run.network.kill(self.hub)

    def act(self) -> None:
        """One turn of the loop that a worker runs."""
        if self.core.stopped is not None:
            self.die("stopped")
            return
        try:
            self.core.speak()
        except PeerLost as error:
            self.die(str(error))
            return
        if self.state == "pulling":
            self._pull()
        elif self.state == "computing":
            if self.run.rng.random() < 0.5:
                self._push()
        else:
            self._look_for_answer()

    def _pull(self) -> None:
        pull = self.core.state.take()
        if pull is not None:
            version = self.core.state.current_version
            self.run.check_pulled(version, pull.parameters, pull.data_points)
            self.pulled = (version, pull.parameters, pull.parameters.clone())
            self.state = "computing"

    def _push(self) -> None:
        assert self.pulled is not None
        version, parameters, copy = self.pulled
        if not torch.equal(parameters, copy):
            raise Broken(f"worker {self.worker}: pulled parameters changed while it computed")
        gradient = torch.tensor([self.run.rng.uniform(-1, 1) for _ in range(NUMEL)])
        if self.run.rng.random() < self.run.bad_gradients:
            gradient[self.run.rng.randrange(NUMEL)] = self.run.rng.choice([float("nan"), float("inf")])
        push = self.core.push(gradient, version[1], self.run.rng.randint(1, 9))
        key = (self.worker, self.incarnation, push.sequence)
        self.run.gradients[key] = (version, gradient, push.data_points)
        self.state = "pushing"

    def _look_for_answer(self) -> None:
        push = self.core.state.push
        assert push is not None
        if push.receipt is not None:
            key = (self.worker, self.incarnation, push.sequence)
            self.run.check_receipt(key, push.version, push.receipt.accepted, push.receipt.reason)
            if not push.receipt.accepted:
                self.core.give_up(push)
            self.core.state.push, self.state = None, "pulling"


class Simulation:
    """One seed: a topology, a schedule, faults; then a fair phase in which the run must go on or end as declared."""

    def __init__(self, seed: int, verbose: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.seed, self.verbose = seed, verbose
        cut_through.LEAST_BYTES = 0
        cut_through.LEAST_PART = cut_through.PART_MULTIPLE = rng.choice([2, 64])
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
            when_workers_lost=rng.choice(["shrink", "shrink", "stop"]),
            checkpoint_every_steps=rng.choice([0, 1, 2, 5]),
        )
        self.optimizer = OptimizerConfig(
            optimizer="adam" if rng.random() < 0.1 else "sgd", learning_rate="linear:1->0.5@100"
        )
        self.plan = plan_shards(FlatLayout.of({"w": (NUMEL,)}), k)
        self.initial = torch.arange(NUMEL, dtype=torch.float32)
        self.bad_gradients = rng.choice([0.0, 0.0, 0.1])
        self.faults = rng.choice([0.0, 0.01, 0.03])
        self.server_faults = self.faults * rng.choice([0.0, 0.3, 0.7])
        self.gradients: dict[tuple[int, int, int], tuple[tuple[int, int], Tensor, int]] = {}
        self.lines: list[dict[str, Any]] = []
        self.reference = Shard(self.initial, self.optimizer)
        self.versions: dict[tuple[int, int], Tensor] = {}
        self.data_points: dict[tuple[int, int], int] = {}
        self.ever_committed: set[tuple[int, int, int]] = set()
        self.ended: tuple[str, bool] | None = None
        self.bets: Counter[str] = Counter()
        self.lives: dict[Peer, int] = {}
        self.chief_storage: Any = None
        self.servers: dict[int, SimServer] = {}
        self.workers: list[SimWorker] = []
        for shard in range(k):
            self._start_server(shard)
        for worker in range(n):
            self._start_worker(worker)

    def log(self, line: str) -> None:
        if self.verbose:
            print(f"{self.network.now_s:8.2f}  {line}")

    def _next_life(self, peer: Peer) -> int:
        self.lives[peer] = self.lives.get(peer, -1) + 1
        return self.lives[peer]

    def _start_server(self, shard: int) -> None:
        self.log(f"server {shard} starts")
        self.servers[shard] = SimServer(self, shard, self._next_life(Peer(Role.SERVER, shard)))

    def _start_worker(self, worker: int) -> None:
        life = SimWorker(self, worker, self._next_life(Peer(Role.WORKER, worker)))
        self.log(f"worker {worker}.{life.incarnation} starts")
        self.workers.append(life)

    # -- the audit log that the chief writes, followed by a reference in one process -----------------------------------

    def commit(self, commit: Commit, members: Any, learning_rate: float) -> None:
        members = sorted(members)
        chief = self.servers[0].core.chief
        assert chief is not None
        self.log(f"commit term {commit.term} step {commit.step} {members}")
        if not self.asynchronous and len(members) > self.exchange.gradients_per_step:
            raise Broken(f"step {commit.step} has {len(members)} members")
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
        self.versions[term, step] = self.reference.parameters.clone()
        self.data_points[term, step] = data_points

    # -- invariants ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """All live shards hold exactly what one process computes from the log."""
        for server in self.servers.values():
            node = server.core.node
            if server.hub.alive and node.term:
                expected = self.versions[node.term, node.step][self.plan.slice_of(server.shard)]
                if not torch.equal(node.shard.published(), expected):
                    raise Broken(f"server {server.shard} differs from the log at {(node.term, node.step)}")
        chief = self.servers[0].core.chief
        if chief is not None and not self.asynchronous:
            for key, push in chief.coordinator.steps.gradients.pushes.items():
                if push.step != chief.coordinator.step:
                    raise Broken(f"step {chief.coordinator.step} counts {key}'s push of step {push.step}")

    def _check_disk(self, step: int) -> None:
        """A roll-back to `step`: no checkpoint of what it undoes is left, nor can one still come."""
        later = sorted(saved for saved in self.disk.finished if saved > step)
        if later or self.chief_storage.busy:
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

    # -- schedules -----------------------------------------------------------------------------------------------

    def turn(self, faults: bool) -> None:
        """One random event."""
        network, rng = self.network, self.rng
        network.now_s += 0.02 if rng.random() > 0.002 or not faults else rng.uniform(0, 8)
        if faults and rng.random() < self.faults:
            self._fault()
        choice = rng.random()
        wires = network.movable()
        if choice < 0.6 and wires:
            network.move(rng.choice(wires))
        elif choice < 0.7 and network.dials:
            network.shake_hands(rng.randrange(len(network.dials)))
        elif choice < 0.75:
            server = rng.choice(list(self.servers.values()))
            if server.hub.alive and not server.hub.frozen:
                server.look()
        else:
            live = [worker for worker in self.workers if worker.hub.alive and not worker.hub.frozen]
            if live:
                rng.choice(live).act()
        self.check()

    def _fault(self) -> None:
        rng, network = self.rng, self.network
        if rng.random() < self.server_faults / (self.faults or 1):
            server = rng.choice(list(self.servers.values()))
            if server.hub.alive and not server.core.node.ended:
                server.die("killed")
            elif not self.ended:
                self._start_server(server.shard)
            return
        worker = rng.choice(self.workers)
        kind = rng.choice(["kill", "start", "start", "zombie", "break", "freeze", "thaw"])
        if kind == "kill" and worker.hub.alive:
            worker.die("killed")
        elif kind == "start":
            rank = rng.randrange(self.exchange.num_workers)
            if not any(life.hub.alive for life in self.workers if life.worker == rank):
                self._start_worker(rank)
        elif kind == "zombie":  # a new incarnation while the old one still lives
            self._start_worker(worker.worker)
        elif kind == "break" and worker.hub.outgoing:
            network.break_link(worker.hub, rng.choice(list(worker.hub.outgoing)))
        elif kind == "freeze":
            worker.hub.frozen = True
        elif kind == "thaw":
            worker.hub.frozen = False

    def play(self, turns: int) -> None:
        """Random turns with faults, then a fair phase."""
        for _ in range(turns):
            self.turn(faults=True)
            if self.ended:
                break
        self._fair_phase()

    def _fair_phase(self) -> None:
        for worker in self.workers:
            worker.hub.frozen = False
        commits = len(self.lines)
        for turn in range(MOST_FAIR_TURNS):
            if self.ended is not None:
                return self._check_end()
            if sum(line["kind"] == "commit" for line in self.lines[commits:]) >= FAIR_COMMITS:
                return None
            if turn % 50 == 0:
                for shard, server in list(self.servers.items()):
                    if not server.hub.alive:
                        self._start_server(shard)
                for rank in range(self.exchange.num_workers):
                    if not any(life.hub.alive for life in self.workers if life.worker == rank):
                        self._start_worker(rank)
            self.turn(faults=False)
        raise Broken(f"the run hangs: {self.describe()}")

    def _check_end(self) -> None:
        assert self.ended is not None
        reason, failed = self.ended
        if not failed or not reason:
            raise Broken(f"the run ended without being asked: {self.ended}")

    def describe(self) -> str:
        chief = self.servers[0].core.chief
        assert chief is not None
        lives = [(w.worker, w.incarnation, w.state, w.core.state.newest) for w in self.workers if w.hub.alive]
        coordinator = chief.coordinator
        return f"{coordinator.state} at {coordinator.step}, g {coordinator.steps.num_gradients}, workers {lives}"


def play(seed: int, turns: int = 300, verbose: bool = False) -> Simulation:
    """Play one seed; an AssertionError names it."""
    simulation = Simulation(seed, verbose)
    try:
        simulation.play(turns)
    except Broken as error:
        raise Broken(f"seed {seed}: {error}") from error
    except Exception as error:
        raise Broken(f"seed {seed}: {type(error).__name__}: {error}") from error
    return simulation


if __name__ == "__main__":
    torch.set_num_threads(1)
    play(int(sys.argv[1]), verbose=True)
