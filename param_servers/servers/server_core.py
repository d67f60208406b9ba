"""A parameter server without its sockets, its clock and its loop: events in, frames out through a hub.

`server.ParameterServer` drives it with real ones; the simulation in the tests drives many of them with invented ones.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from param_servers.checkpoint.writer import Checkpoints
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import BadMessage, PeerLost
from param_servers.layout import ShardPlan
from param_servers.patience import Redial
from param_servers.servers.audit import AuditLog
from param_servers.servers.chief import Chief, check_report
from param_servers.servers.coordinator import Coordinator
from param_servers.servers.cut_through import is_worthwhile, window_bytes
from param_servers.servers.decisions import Settings
from param_servers.servers.shard import Shard
from param_servers.servers.shard_node import ShardNode
from param_servers.timeouts import NAP_S
from param_servers.wire.frames import Event, Joined, Left, Message, Rejected
from param_servers.wire.handshake import MOST_TERM, Hello, Lives, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Header, Kind

Resolve = Callable[[int], tuple[str, int] | None]
"""Server number -> (host, port), or None while it is not known. Asked again before every attempt."""
ShouldStop = Callable[[int, int], str | None]
"""(step, data_points) -> the reason to end the run, or None."""
OnEvent = Callable[[dict[str, Any]], None]
_SHARD_0 = Peer(Role.SERVER, 0)
TERMS_OF_A_LIFE = 1 << 12
"""Terms that a life of server 0 has to itself; more than it ever goes back to a checkpoint."""
MOST_INCARNATION = MOST_TERM // TERMS_OF_A_LIFE - 1
MOST_TERMS_AHEAD = 1 << 16
"""Further ahead of server 0 nobody can be: all servers died, and forgot what workers have seen since the checkpoint."""


class ServerCore:
    """Shard `shard` of a run; see `ParameterServer` for the arguments.

    `node.hub` and, on shard 0, `chief.hub` are set by `attach` before anything else is called.
    """

    def __init__(
        self,
        *,
        shard: int,
        plan: ShardPlan,
        initial_parameters: Tensor,
        optimizer_config: OptimizerConfig,
        exchange_config: ExchangeConfig,
        resolve: Resolve,
        storage: Checkpoints,
        clock: Callable[[], float],
        should_stop: ShouldStop,
        on_event: OnEvent,
        incarnation: int = 0,
        audit_path: Path | None = None,
        life: int = 0,
        checkpoint_extra: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        exchange = exchange_config
        self.shard = shard
        self.storage, self.clock = storage, clock
        self._plan, self._resolve, self._incarnation = plan, resolve, incarnation
        self._on_event = on_event
        self._num_workers, self._lives = exchange.num_workers, Lives()
        asynchronous = exchange.exchange == "async"
        tensors = Shard(initial_parameters[plan.slice_of(shard)], optimizer_config)
        worthwhile = is_worthwhile(4 * tensors.numel, exchange.num_workers)
        all_needed = exchange.num_workers if worthwhile and not asynchronous and not exchange.backup_workers else 0
        self.node = ShardNode(shard, tensors, asynchronous, storage, self._report, all_needed)
        self.chief: Chief | None = None
        self._audit: AuditLog | None = None
        if audit_path is not None and shard == 0:
            self._audit = AuditLog(
                audit_path, life, lambda line: on_event({"event": "audit_incomplete", "message": line})
            )
        if shard == 0:
            coordinator = self._coordinator(exchange, asynchronous)
            keep, extra = exchange.keep_checkpoints, checkpoint_extra
            self.chief = Chief(coordinator, self.node, storage, clock, on_event, self._audit, keep, extra, should_stop)
        self._timeouts = timeouts = exchange.timeouts
        self._redial = Redial(timeouts.start_s, seed=shard)
        self._dialling = False
        self._arrived: dict[Header, list[bytes]] = {}
        """What shard 0 is to be told of gradients, told once after each poll."""
        self._alive_s, self._heard_s = 0.0, clock()
        self.window_bytes = window_bytes(4 * tensors.numel, all_needed) if all_needed else None
        """See `Hub.listen`."""
        self.hub: Hub

    def attach(self, hub: Hub) -> None:
        """Set the way out, and begin."""
        self.hub = self.node.hub = hub
        if self.chief is not None:
            self.chief.hub = hub
            self.chief.begin()

    @property
    def nap_s(self) -> float:
        """How long the loop may sleep when nothing happens."""
        return 0.02 if self.storage.busy else min(NAP_S, self._timeouts.alive_every_s)

    def close(self) -> None:
        self.storage.close()
        if self._audit is not None:
            self._audit.close()

    # -- events --------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Take in one event of the hub."""
        if isinstance(event, Message):
            self._hear(event)
        elif isinstance(event, Joined):
            self._joined(event.hello, event.peer)
        elif isinstance(event, Left):
            self._left(event)
        elif isinstance(event, Rejected):
            message = f"server {self.shard}: {event.reason}"
            self._on_event({"event": "rejected", "message": message, "number": event.number})

    def _hear(self, message: Message) -> None:
        peer, header = message.peer, message.header
        if peer.role is Role.WORKER:
            if header.kind == Kind.GRADIENT:
                self.node.gradient(peer, header, message.payload)
            elif header.kind == Kind.PULL and self.chief is not None:
                self.chief.pull(peer, header)
        elif self.chief is not None:
            try:
                check_report(header, message.payload)
            except BadMessage as error:
                self.hub.close(peer)
                self._left(Left(peer, str(error)))
                return
            self.chief.report(header, message.payload)
        else:
            self._heard_s = self.clock()
            if header.kind != Kind.ALIVE:
                self.node.obey(header, message.payload)

    def _joined(self, hello: Hello, peer: Peer) -> None:
        if peer.role is Role.WORKER:
            self.node.joined(hello)
        if self.chief is not None:
            self.chief.joined(hello)
        elif peer == _SHARD_0:
            self._dialling = False
            self._redial.succeeded()
            self._redial.timeout_s = self._timeouts.return_s
            self._heard_s = self.clock()

    def _left(self, event: Left) -> None:
        peer = event.peer
        incarnation = self.node.workers.get(peer.rank, -1) if peer.role is Role.WORKER else 0
        if peer.role is Role.WORKER:
            self.node.left(peer.rank)
        if self.chief is not None:
            self.chief.left(peer, incarnation, event.reason)
        elif peer == _SHARD_0:
            self._dialling = False
            self._redial.failed(event.reason, self.clock())
            if event.refused:
                raise PeerLost(f"server {self.shard} was turned away by server 0: {event.reason}")

    def look_at_the_clock(self) -> None:
        """To be called after each poll: what can be passed on or told, disks, timeouts, redialling.

        Raises:
            PeerLost: shard 0 is gone and did not come back.
        """
        if self._arrived:  # shard 0 must not wait for it behind the last part of the update
            self._tell_arrived()
            self.hub.flush()
        self.node.advance()
        self.storage.poll()
        if self.chief is not None:
            self.chief.tick()
        else:
            self._keep_in_touch(self.clock())

    def _keep_in_touch(self, now_s: float) -> None:
        """Shards other than 0: dial shard 0 until it answers, and let it know that we live."""
        if self.hub.connected(_SHARD_0):
            silence_s = self._timeouts.server_0_silence_s
            if now_s - self._heard_s > silence_s:
                raise PeerLost(f"server {self.shard}: server 0 is silent for {silence_s:g} s")
            if now_s >= self._alive_s:
                self._alive_s = now_s + self._timeouts.alive_every_s
                self.hub.send(_SHARD_0, Header(Kind.ALIVE, self.shard, 0, self.node.term, self.node.step))
            return
        if self._redial.expired(now_s):
            raise PeerLost(f"server {self.shard} lost server 0: {self._redial.last_reason}")
        if not self._dialling and self._redial.due(now_s):
            address = self._resolve(0)
            if address is None:
                self._redial.failed("no address known", now_s)
                return
            self._dialling = True
            hello = Hello(Role.SERVER, self.shard, self._incarnation, 0, self._plan.fingerprint, self.node.term)
            self.hub.dial(address, hello)

    def _report(self, header: Header, payload: bytes) -> None:
        if self.chief is not None:
            self.chief.report(header, payload)
        elif header.kind == Kind.ARRIVED:
            self._arrived.setdefault(header, []).append(payload)
        else:
            self._tell_arrived()
            self.hub.send(_SHARD_0, header, memoryview(payload))

    def _tell_arrived(self) -> None:
        """64 workers that finish together are one message, not 64."""
        arrived, self._arrived = self._arrived, {}
        for header, rows in arrived.items():
            self.hub.send(_SHARD_0, header, memoryview(b"".join(rows)))

    # -- who may join --------------------------------------------------------------------------------------------

    def admits(self, hello: Hello) -> str:
        """ "" or one line why this peer may not join."""
        if self.node.ended is not None:
            return f"the run has ended: {self.node.ended[0]}"
        if hello.fingerprint != self._plan.fingerprint:
            return f"its layout is {hello.fingerprint}, this run's is {self._plan.fingerprint}"
        if self.chief is not None and hello.term > self.chief.coordinator.term + MOST_TERMS_AHEAD:
            return f"it claims to have seen term {hello.term}, this run is at {self.chief.coordinator.term}"
        if hello.role is Role.SERVER:
            servers = self._plan.num_shards
            if self.chief is None:
                return "only server 0 takes servers"
            return "" if 0 < hello.rank < servers else f"there is no {hello.peer} in this run of {servers} servers"
        if hello.role is not Role.WORKER or hello.rank >= self._num_workers:
            return f"there is no {hello.peer} in this run of {self._num_workers} workers"
        return self._lives.admits(hello)

    def _coordinator(self, exchange: ExchangeConfig, asynchronous: bool) -> Coordinator:
        checkpoints = self.storage.directory is not None
        settings = Settings(
            num_shards=self._plan.num_shards,
            num_gradients=exchange.gradients_per_step,
            asynchronous=asynchronous,
            max_staleness=exchange.max_staleness,
            timeouts=exchange.timeouts,
            when_lost=exchange.when_workers_lost,
            min_workers=exchange.min_workers,
            checkpoints=checkpoints,
            checkpoint_every=exchange.checkpoint_every_steps if checkpoints else 0,
        )
        step, data_points, term = self.storage.newest(
            lambda line: self._on_event({"event": "torn_checkpoint", "message": line})
        )
        # Each life of shard 0 has its own range of terms, so that no term means two histories.
        return Coordinator(settings, self.clock(), (step, data_points), max(term, self._incarnation * TERMS_OF_A_LIFE))
