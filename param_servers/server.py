"""A parameter server: one shard of the parameters, one process, one loop.

1. listen; shard 0 waits for the others, they dial shard 0; then all load the newest checkpoint (or the initial
   parameters) under a new term;
2. workers join, are sent the parameters, and send gradient slices, each answered;
3. when g distinct workers are complete on every shard, shard 0 commits exactly that set, every shard averages it,
   steps its optimizer and sends the next version to all workers at once;
4. a server that dies is started again and everybody goes back to 1, at most to the newest checkpoint.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from param_servers.audit import AuditLog
from param_servers.chief import Chief
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.coordinator import Coordinator
from param_servers.decisions import Settings
from param_servers.errors import PeerLost, RunBroken
from param_servers.handshake import Hello, Peer, Role
from param_servers.hub import Event, Hub, Joined, Left, Message, Rejected
from param_servers.messages import Header, Kind
from param_servers.redial import Redial
from param_servers.report import Reporter
from param_servers.shard import Shard
from param_servers.shard_node import ShardNode
from param_servers.sharding import ShardPlan
from param_servers.storage import Checkpoints

Address = tuple[str, int]
Resolve = Callable[[int], Address | None]
"""Server number -> (host, port), or None while it is not known. Asked again before every attempt."""
_LAST_WORDS_S = 5.0


class ParameterServer:
    """Shard `shard` of a run.

    Args:
        shard: which slice; shard 0 also coordinates.
        plan: layout and cuts, the same in all processes (`plan_shards(layout, num_servers, sharding)`).
        initial_parameters: [P] float32 in the order of `plan.layout`, the same in all servers.
        optimizer_config, exchange_config: settings.
        resolve: where server j listens; shards other than 0 dial server 0.
        secret: at least 16 bytes that every process of the run knows.
        publish_address: called once with (host, port) when this server listens.
        checkpoint_dir: shared by all servers; None: no checkpoints, and a lost server costs all steps.
        audit_path: shard 0 appends every commit, roll-back and expulsion there.
        should_stop: shard 0 asks it after every step and twice a second: (step, data_points) -> reason or None.
        checkpoint_extra: shard 0: JSON for the manifest, asked when a checkpoint is published.
        on_report: called about once a second with the figures of `report.Reporter`.
        on_event: called with {"event", "message", ...}; the message is one line for a person.
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
        secret: bytes,
        incarnation: int = 0,
        publish_address: Callable[[str, int], None] = lambda host, port: None,
        checkpoint_dir: Path | None = None,
        audit_path: Path | None = None,
        should_stop: Callable[[int, int], str | None] = lambda step, data_points: None,
        checkpoint_extra: Callable[[], dict[str, Any]] = dict,
        on_report: Callable[[dict[str, Any]], None] = lambda report: None,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> None:
        exchange = exchange_config
        self._shard, self._plan, self._exchange, self._resolve = shard, plan, exchange, resolve
        self._incarnation, self._publish_address = incarnation, publish_address
        self._should_stop, self._on_event = should_stop, on_event
        asynchronous = exchange.exchange == "async"
        self._storage = Checkpoints(checkpoint_dir, plan, shard, initial_parameters)
        tensors = Shard(initial_parameters[plan.slice_of(shard)], optimizer_config)
        self._node = ShardNode(shard, tensors, asynchronous, self._storage, self._report)
        self._hub = Hub(
            secret,
            self._node.receive_into,
            shard=shard,
            admit=self._admits,
            silence_timeout_s=max(exchange.step_timeout_s, 1.0),
        )
        self._node.hub = self._hub
        self._chief: Chief | None = None
        self._audit = AuditLog(audit_path) if audit_path is not None and shard == 0 else None
        if shard == 0:
            coordinator = self._coordinator(asynchronous, checkpoint_dir is not None)
            extra = checkpoint_extra
            self._chief = Chief(
                coordinator, self._node, self._storage, time.monotonic, on_event, self._audit,
                exchange.keep_checkpoints, extra,
            )  # fmt: skip
            self._chief.hub = self._hub
        self._redial = Redial(exchange.reconnect_timeout_s + exchange.join_timeout_s, seed=shard)
        self._dialling = False
        self._alive_every_s = exchange.step_timeout_s / 8
        self._alive_s = 0.0
        self._reporter = Reporter(self._node, self._hub, self._chief, on_report)

    def run(self) -> str:
        """Serve until the run ends; the reason why it ended.

        Raises:
            RunBroken: it could not go on as declared (a last checkpoint was written where possible).
            PeerLost: shard 0 is gone and did not come back.
            OSError: the address to listen on is taken.
        """
        try:
            self._publish_address(*self._hub.listen(self._exchange.listen_host, self._exchange.port))
            if self._chief is not None:
                self._chief.begin()
            while self._node.ended is None:
                for event in self._reporter.timed(self._hub.poll, self._nap_s()):
                    self._handle(event)
                self._look_at_the_clock()
            self._hub.drain(_LAST_WORDS_S)
        finally:
            self._hub.shut()
            self._storage.close()
            self._reporter.close()
            if self._audit is not None:
                self._audit.close()
        reason, failed = self._node.ended
        if failed:
            raise RunBroken(reason)
        return reason

    def _handle(self, event: Event) -> None:
        if isinstance(event, Message):
            self._hear(event)
        elif isinstance(event, Joined):
            self._joined(event.hello, event.peer)
        elif isinstance(event, Left):
            self._left(event)
        elif isinstance(event, Rejected):
            self._on_event({"event": "rejected", "message": f"server {self._shard}: {event.reason}"})

    def _hear(self, message: Message) -> None:
        peer, header = message.peer, message.header
        if peer.role is Role.WORKER:
            if header.kind == Kind.GRADIENT:
                self._node.gradient(peer, header)
            elif header.kind == Kind.PULL and self._chief is not None:
                self._chief.pull(peer, header)
        elif self._chief is not None:
            self._chief.report(header, message.payload)
        else:
            self._redial.succeeded()
            self._node.obey(header, message.payload)

    def _joined(self, hello: Hello, peer: Peer) -> None:
        if peer.role is Role.WORKER:
            self._node.joined(hello)
        if self._chief is not None:
            self._chief.joined(hello)
        elif peer == Peer(Role.SERVER, 0):
            self._dialling = False

    def _left(self, event: Left) -> None:
        peer = event.peer
        incarnation = self._node.workers.get(peer.rank, -1) if peer.role is Role.WORKER else 0
        if peer.role is Role.WORKER:
            self._node.left(peer.rank)
        if self._chief is not None:
            self._chief.left(peer, incarnation, event.reason)
        elif peer == Peer(Role.SERVER, 0):
            self._dialling = False
            self._redial.failed(event.reason, time.monotonic())
            if event.refused:
                raise PeerLost(f"server {self._shard} was turned away by server 0: {event.reason}")

    def _look_at_the_clock(self) -> None:
        now_s = time.monotonic()
        self._storage.poll()
        if self._chief is not None:
            self._chief.tick(self._should_stop)
        else:
            self._keep_in_touch(now_s)
        self._reporter.maybe(now_s)

    def _keep_in_touch(self, now_s: float) -> None:
        """Shards other than 0: dial shard 0 until it answers, and let it know that we live."""
        chief = Peer(Role.SERVER, 0)
        if self._redial.expired(now_s):
            raise PeerLost(f"server {self._shard} lost server 0: {self._redial.last_reason}")
        if self._hub.connected(chief):
            if now_s >= self._alive_s:
                self._alive_s = now_s + self._alive_every_s
                self._hub.send(chief, Header(Kind.ALIVE, self._shard, 0, self._node.term, self._node.step))
        elif not self._dialling and self._redial.due(now_s):
            address = self._resolve(0)
            if address is None:
                self._redial.failed("no address known", now_s)
                return
            self._dialling = True
            hello = Hello(Role.SERVER, self._shard, self._incarnation, 0, self._plan.fingerprint, self._node.term)
            self._hub.dial(address, hello)

    def _report(self, header: Header, payload: bytes) -> None:
        if self._chief is not None:
            self._chief.report(header, payload)
        else:
            self._hub.send(Peer(Role.SERVER, 0), header, memoryview(payload) if payload else None)

    def _admits(self, hello: Hello) -> str:
        if hello.fingerprint != self._plan.fingerprint:
            return f"its layout is {hello.fingerprint}, this run's is {self._plan.fingerprint}"
        if hello.role is Role.WORKER and hello.incarnation < self._node.workers.get(hello.rank, 0):
            return f"a newer incarnation of worker {hello.rank} is here"
        if self._chief is not None:
            return self._chief.admits(hello)
        return "" if hello.role is Role.WORKER else "only server 0 takes servers"

    def _nap_s(self) -> float:
        if self._storage.busy:
            return 0.02
        return min(0.5, self._alive_every_s)

    def _coordinator(self, asynchronous: bool, checkpoints: bool) -> Coordinator:
        exchange = self._exchange
        settings = Settings(
            num_shards=self._plan.num_shards,
            num_gradients=exchange.gradients_per_step,
            asynchronous=asynchronous,
            max_staleness=exchange.max_staleness,
            step_timeout_s=exchange.step_timeout_s,
            join_timeout_s=exchange.join_timeout_s,
            when_lost=exchange.when_workers_lost,
            min_workers=exchange.min_workers,
            checkpoints=checkpoints,
            checkpoint_every=exchange.checkpoint_every_steps if checkpoints else 0,
        )
        step, data_points, term = self._storage.newest(
            lambda line: self._on_event({"event": "torn_checkpoint", "message": line})
        )
        return Coordinator(settings, time.monotonic(), (step, data_points), term)
