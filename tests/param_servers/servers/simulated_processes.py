"""Servers and workers of a simulated run: the real cores on hubs of a simulated network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from param_servers.errors import PeerLost, Refused
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer
from param_servers.wire.frames import Event, Message
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.messages import Row
from tests.param_servers.checkpoint.simulated_disk import SimCheckpoints
from tests.param_servers.servers.simulated_network import SimHub
from tests.param_servers.servers.simulated_run import NUMEL, Broken, SimulatedRun


class SimServer:
    """One life of one server."""

    def __init__(self, run: SimulatedRun, shard: int, incarnation: int) -> None:
        self.run, self.shard = run, shard
        checkpoints: Any = SimCheckpoints(run.disk, run.rng, shard, run.initial[run.plan.slice_of(shard)])
        if shard == 0:  # which begins with all of g
            run.chief_checkpoints, run.gradients_per_step = checkpoints, run.exchange.gradients_per_step
        self.hub: Any = SimHub(run.network, Peer(Role.SERVER, shard))
        self.core = ParameterServer(
            shard=shard,
            plan=run.plan,
            initial_parameters=run.initial,
            optimizer_config=run.optimizer,
            exchange_config=run.exchange,
            resolve=run.network.resolve,
            secret=b"s" * 16,
            hub=self.hub,
            checkpoints=checkpoints,
            clock=lambda: run.network.now_s,
            on_event=lambda event: run.log(f"server {shard}: {event['message']}"),
            incarnation=incarnation,
        )
        self._count_cut_through()
        self.hub.receive_into, self.hub.handle = self.core.node.receive_into, self.handle
        self.hub.admit = self.core.admits
        if self.core.chief is not None:
            self.core.chief._audit = run  # type: ignore[assignment]
        address = (f"server {shard}", incarnation)
        run.network.addresses[shard] = address
        run.network.listening[address] = self.hub
        self.core.begin()

    def _count_cut_through(self) -> None:
        cut_through, counts = self.core.node.cut_through, self.run.cut_through
        settle, abort = cut_through.settle, cut_through.abort

        def counted_settle(members: list[Row]) -> set[int] | None:
            streamed = settle(members)
            counts["committed"] += streamed is not None
            return streamed

        def counted_abort() -> None:
            if cut_through._ahead is not None:
                counts["taken back"] += 1
                counts["taken back halfway"] += bool(cut_through._ahead.done)
            abort()

        cut_through.settle, cut_through.abort = counted_settle, counted_abort  # type: ignore[method-assign]

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

    def __init__(self, run: SimulatedRun, worker: int, incarnation: int) -> None:
        self.run, self.worker, self.incarnation = run, worker, incarnation
        self.hub: Any = SimHub(run.network, Peer(Role.WORKER, worker))
        self.core = ServersExchange(
            worker=worker,
            plan=run.plan,
            exchange_config=run.exchange,
            resolve=run.network.resolve,
            secret=b"s" * 16,
            incarnation=incarnation,
            hub=self.hub,
            clock=lambda: run.network.now_s,
        )
        self.hub.receive_into, self.hub.handle = self.core.receive_into, self.handle
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
        self.core.advance()
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
        push = self.core.begin_push(gradient, version[1], self.run.rng.randint(1, 9))
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
                self.core.give_up_push()
            self.core.state.push, self.state = None, "pulling"
