"""Whole runs of servers and workers on a simulated network: one seed, one schedule; invariants checked at each event.

`python -m tests.param_servers.servers.simulation SEED` replays one seed and prints what happened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

from param_servers.servers.client_state import Push
from param_servers.wire.handshake import Peer, Role
from tests.param_servers.servers.simulated_processes import SimServer, SimWorker
from tests.param_servers.servers.simulated_run import Broken, SimulatedRun

FAIR_COMMITS, FAIR_S = 3, 60.0
"""After the last fault: so many steps that stay, or the declared end, within so long (a few patiences). Who waits then
for the answer to a push has it within a worker's patience, after which it would give up (`Timeouts.answer_s`)."""
TURN_S, FAIR_TURN_S = 0.02, 0.005
"""One process does one thing in a turn: in the fair phase all of them are fast, next to a step's patience of 5 s."""
CALM_S = 10.0
"""Whoever ends a run must have a reason: something that was wrong so shortly before. Twice a step's patience."""


class Simulation(SimulatedRun):
    """One seed: a topology, a schedule, faults; then a fair phase, where steps go on or the run ends for a reason."""

    def __init__(self, seed: int, verbose: bool = False) -> None:
        super().__init__(seed, verbose)
        self.lives: dict[Peer, int] = {}
        self.servers: dict[int, SimServer] = {}
        self.workers: list[SimWorker] = []
        self.newest_lives: dict[int, SimWorker] = {}
        """Of each worker."""
        self.disturbed_s = -CALM_S
        """When anything was last wrong: a fault, a leap of the clock, a process that a fault has taken away."""
        self.lost: int | None = None
        """In the fair phase of some seeds: a worker that never comes back."""
        self.decided_s: float | None = None
        """When the chief decided to end the run."""
        for shard in range(self.exchange.num_servers):
            self._start_server(shard)
        for worker in range(self.exchange.num_workers):
            self._start_worker(worker)

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
        self.newest_lives[worker] = life

    def check(self) -> None:
        """All live shards hold exactly what one process computes from the log."""
        for server in self.servers.values():
            node = server.core.node
            if not server.hub.alive or not node.term:
                continue
            if not torch.equal(node.shard.published(), self.version_shards[node.term, node.step][server.shard]):
                raise Broken(f"server {server.shard} differs from the log at {(node.term, node.step)}")
        chief = self.servers[0].core.chief
        if chief is not None and not self.asynchronous:
            for key, push in chief.coordinator.steps.pushes.items():
                if push.step != chief.coordinator.step:
                    raise Broken(f"step {chief.coordinator.step} counts {key}'s push of step {push.step}")
        if chief is not None and chief.coordinator.state in ("stopping", "stopped") and self.decided_s is None:
            self.decided_s = self.network.now_s
            calm_s = self.decided_s - self.disturbed_s
            if calm_s > CALM_S:
                raise Broken(f"the run gives up though nothing was wrong for {calm_s:.1f} s: {self.describe()}")

    # -- schedules -----------------------------------------------------------------------------------------------

    def turn(self, faults: bool) -> None:
        """One random event."""
        network, rng = self.network, self.rng
        leap_s = 0.0 if rng.random() > 0.002 or not faults else rng.uniform(0, 8)
        network.now_s += leap_s or (TURN_S if faults else FAIR_TURN_S)
        if leap_s or self._somebody_is_missing():
            self.disturbed_s = network.now_s
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

    def _somebody_is_missing(self) -> bool:
        if not all(server.hub.alive for server in self.servers.values()):
            return True
        borne = self.lost if self.exchange.min_workers == 1 and self.exchange.num_workers > 1 else None
        for worker, life in self.newest_lives.items():
            if worker != borne and (life.hub.frozen or life.why_dead == "killed"):
                return True
        return False

    def _fault(self) -> None:
        rng, network = self.rng, self.network
        self.disturbed_s = network.now_s
        if rng.random() < self.server_faults / (self.faults or 1):
            server = rng.choice(list(self.servers.values()))
            if server.hub.alive and not server.core.node.ended:
                if self.server_links_break and server.shard and Peer(Role.SERVER, 0) in server.hub.outgoing:
                    self.log(f"server {server.shard} loses its link to server 0")
                    network.break_link(server.hub, Peer(Role.SERVER, 0))
                else:
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
        self.lost = self.seed % self.exchange.num_workers if self.seed % 5 == 3 else None
        for worker in self.workers:
            worker.hub.frozen = False
            if worker.worker == self.lost and worker.hub.alive:
                worker.die("killed")
        began, turn = len(self.lines), 0
        until_s = self.network.now_s + FAIR_S
        open_pushes: list[tuple[SimWorker, Push]] | None = None
        while self.network.now_s < until_s:
            if self.ended is not None:
                return self._check_end()
            if open_pushes is None and self._lasting_commits(began) >= FAIR_COMMITS:
                open_pushes = self._unanswered((worker, worker.core.state.push) for worker in self.workers)
                until_s = self.network.now_s + self.exchange.timeouts.answer_s
            if open_pushes is not None:
                open_pushes = self._unanswered(open_pushes)
                if not open_pushes:
                    return None
            if turn % 50 == 0:
                for shard, server in list(self.servers.items()):
                    if not server.hub.alive:
                        self._start_server(shard)
                for rank in range(self.exchange.num_workers):
                    if rank != self.lost and not any(life.hub.alive for life in self.workers if life.worker == rank):
                        self._start_worker(rank)
            self.turn(faults=False)
            turn += 1
        if open_pushes:
            keys = [(worker.worker, worker.incarnation, push.sequence) for worker, push in open_pushes]
            raise Broken(f"the run goes on, but pushes get nowhere: {keys} are never answered: {self.describe()}")
        raise Broken(f"the run gets nowhere within {FAIR_S:g} s after the last fault: {self.describe()}")

    @staticmethod
    def _unanswered(pushes: Iterable[tuple[SimWorker, Push | None]]) -> list[tuple[SimWorker, Push]]:
        """Those whose worker lives and waits."""
        return [(w, push) for w, push in pushes if push is not None and push.receipt is None and w.hub.alive]

    def _lasting_commits(self, began: int) -> int:
        """Steps since line `began` that no roll-back has undone."""
        kinds = [line["kind"] for line in self.lines[began:]]
        return kinds[len(kinds) - kinds[::-1].index("rollback") if "rollback" in kinds else 0 :].count("commit")

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
