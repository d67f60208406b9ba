"""A parameter server: one shard of the parameters, one process, one loop.

1. listen; shard 0 waits for the others, they dial shard 0; then all load the newest checkpoint (or the initial
   parameters) under a new term;
2. workers join, are sent the parameters, and send gradient slices, each answered;
3. when g distinct workers are complete on every shard, shard 0 commits exactly that set, every shard averages it,
   steps its optimizer and sends the next version to all workers at once;
4. a server that dies is started again and everybody goes back to 1, at most to the newest checkpoint.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from param_servers.checkpoint.writer import CheckpointFiles
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import BadMessage, CheckpointError, ConfigError, ParamServersError, PeerLost, RunBroken
from param_servers.exchange import OnEvent, OnReport, Publish, Resolve, ShouldStop, never, unread
from param_servers.layout import ShardPlan
from param_servers.servers.audit import AuditLog
from param_servers.servers.chief import Chief
from param_servers.servers.coordinator import Coordinator
from param_servers.servers.cut_through import is_worthwhile, window_bytes
from param_servers.servers.shard import Shard
from param_servers.servers.shard_node import ShardNode, unpack_order
from param_servers.timeouts import NAP_S, Redial, clock_of_a_loop
from param_servers.wire.frames import Event, Joined, Left, Message, Rejected
from param_servers.wire.handshake import MOST_TERM, Hello, Lives, Peer, Role, check_secret
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Header, Kind, Row, pack_rows, text_of
from param_servers.wire.tcp_sockets import listen_address

_SHARD_0 = Peer(Role.SERVER, 0)
TERMS_OF_A_LIFE = 1 << 12
"""Terms that a life of server 0 has to itself; more than it ever goes back to a checkpoint."""
MOST_INCARNATION = MOST_TERM // TERMS_OF_A_LIFE - 1
MOST_TERMS_AHEAD = 1 << 16
"""Further ahead of server 0 nobody can be: all servers died, and forgot what workers have seen since the checkpoint."""
REPORT_EVERY_S = 1.0


class ParameterServer:
    """Shard `shard` of a run.

    Args:
        shard: which slice; shard 0 also coordinates.
        plan: layout and cuts, the same in all processes (`plan_shards(layout, num_servers)`).
        initial_parameters: [P] float32 in the order of `plan.layout`, the same in all servers.
        optimizer_config, exchange_config: settings.
        resolve: where server j listens; shards other than 0 dial server 0.
        secret: at least 16 bytes that every process of the run knows.
        incarnation: how many times this server has been started again: an earlier life finds its place taken.
        publish_address: called with (host, port) when this server listens, and when it has reached server 0 (again).
        checkpoint_dir: shared by all servers; None: no checkpoints, and a lost server costs all steps.
        audit_path: shard 0 appends every commit, roll-back and expulsion there.
        life: which life of the run this is, for the audit log: 0 for the first, one more each time it is resumed.
        should_stop: shard 0 asks it after every step and at every tick, at least twice a second: (step, data_points) ->
            reason or None.
        on_report: called about once a second with the figures of `Reporter`.
        on_event: called with {"event", "message"}; the message is one line for a person.
        hub, checkpoints, clock: others than TCP, `checkpoint_dir` and time: a simulation has its own, and no `run`.

    Raises:
        ConfigError: there is no such shard, the exchange has no servers or others than the plan, the parameters are not
            of this layout, the secret is too short, or `listen_host` is no address that others could dial.
        CheckpointError: there are checkpoints and none is whole.
        CheckpointUnreadable: the file system does not let them be read.
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
        publish_address: Publish = lambda host, port: None,
        checkpoint_dir: str | Path | None = None,
        audit_path: Path | None = None,
        life: int = 0,
        should_stop: ShouldStop = never,
        on_report: OnReport = unread,
        on_event: OnEvent = unread,
        hub: Hub | None = None,
        checkpoints: CheckpointFiles | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not 0 <= shard < plan.num_shards:
            raise ConfigError(f"there is no shard {shard} in a plan of {plan.num_shards}")
        if plan.num_shards != exchange_config.num_servers:
            raise ConfigError(f"num_servers is {exchange_config.num_servers} with a plan of {plan.num_shards} shards")
        if not 0 <= incarnation <= MOST_INCARNATION:
            raise ConfigError(f"a server's incarnation is 0 to {MOST_INCARNATION}, got {incarnation}")
        plan.layout.check(initial_parameters)
        exchange, timeouts = exchange_config.of_servers(), exchange_config.timeouts
        self.shard, self._plan, self._incarnation = shard, plan, incarnation
        self._address = listen_address(exchange.listen_host, exchange.interface), exchange.port
        self._listens_on = self._address
        self._publish_address, self._resolve, self._on_event = publish_address, resolve, on_event
        self._num_workers, self._lives, self._timeouts = exchange.num_workers, Lives(), timeouts
        self._clock = clock or clock_of_a_loop(exchange.step_timeout_s).now_s
        check_secret(secret)
        self._hub = hub or Hub(
            secret,
            lambda peer, header: self.node.receive_into(peer, header),
            shard=shard,
            admit=self.admits,
            silence_timeout_s=timeouts.silence_s,
        )
        self._checkpoints = checkpoints or CheckpointFiles(checkpoint_dir, plan, shard, initial_parameters)
        asynchronous = exchange.exchange == "async"
        self._fingerprint = plan.fingerprint_of(asynchronous)
        tensors = Shard(initial_parameters[plan.slice_of(shard)], optimizer_config)
        worthwhile = is_worthwhile(4 * tensors.numel, exchange.num_workers)
        all_needed = exchange.num_workers if worthwhile and not asynchronous and not exchange.backup_workers else 0
        self._window_bytes = window_bytes(4 * tensors.numel, all_needed) if all_needed else None
        where = shard, tensors, self._hub, asynchronous, self._checkpoints, self._tell
        self.node = ShardNode(*where, all_needed, timeouts.hold_s)
        self.chief: Chief | None = None
        self._audit: AuditLog | None = None
        if shard == 0:
            if audit_path is not None:
                self._audit = AuditLog(audit_path, life, lambda line: self._note("audit_incomplete", line))
            self.chief = Chief(
                self._coordinator(exchange),
                self.node,
                self._hub,
                self._checkpoints,
                self._clock,
                on_event,
                self._audit,
                exchange.checkpoints_kept,
                should_stop,
            )
        self._redial = Redial(timeouts.start_s, seed=shard)
        self._arrived: dict[Header, list[Row]] = {}
        """What shard 0 is to be told of gradients, told once after each poll."""
        self._alive_s, self._heard_s = 0.0, self._clock()
        self._reporter = Reporter(self.node, self._hub, self.chief, on_report)

    def _coordinator(self, config: ExchangeConfig) -> Coordinator:
        step, data_points, term = self._checkpoints.newest(lambda line: self._note("torn_checkpoint", line))
        # Each life of shard 0 has its own range of terms, so that no term means two histories.
        term = max(term, self._incarnation * TERMS_OF_A_LIFE)
        has_checkpoints = self._checkpoints.directory is not None
        return Coordinator(config, self._clock(), (step, data_points), term, has_checkpoints)

    def _note(self, event: str, message: str) -> None:
        self._on_event({"event": event, "message": message})

    def run(self) -> str:
        """Serve until the run ends; the reason why it ended.

        Raises:
            RunBroken: it could not go on as declared (a last checkpoint was written where possible).
            PeerLost: shard 0 is gone and did not come back, or turned this server away.
            ParamServersError: a checkpoint to go back to cannot be loaded, or one that is undone not be set aside.
            CheckpointUnreadable: the file system does not let it be read.
            OSError: the address to listen on is taken.
        """
        nap_s = min(NAP_S, self._timeouts.alive_every_s)
        try:
            self._listens_on = self._hub.listen(*self._address, self._window_bytes)
            self._publish_address(*self._listens_on)
            self.begin()
            while self.node.ended is None:
                for event in self._reporter.poll(0.02 if self._checkpoints.busy else nap_s):
                    self.handle(event)
                self.look_at_the_clock()
                self._reporter.maybe()
            self._hub.drain(self._timeouts.last_words_s, self.node.tell_end)
        finally:
            self.close()
        reason, failed = self.node.ended
        if failed:
            raise RunBroken(reason)
        return reason

    def begin(self) -> None:
        """The hub listens: shard 0 itself is there."""
        if self.chief is not None:
            self.chief.begin()

    def close(self) -> None:
        """Let go of links, disk and log; `run` does."""
        self._hub.shut()
        self._checkpoints.close()
        if self._audit is not None:
            self._audit.close()
        self._reporter.maybe(last=True)

    # -- events --------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        if isinstance(event, Message):
            self._hear(event)
        elif isinstance(event, Joined):
            self._joined(event.hello, event.peer)
        elif isinstance(event, Left):
            self._left(event)
        elif isinstance(event, Rejected):
            self._note("rejected", f"server {self.shard}: {event.reason}")

    def _hear(self, message: Message) -> None:
        peer, header, payload = message
        if peer.role is Role.WORKER:
            if header.kind == Kind.GRADIENT:
                self.node.gradient(peer, header)
            elif header.kind == Kind.PULL and self.chief is not None:
                self.chief.pull(peer, header)
        elif self.chief is not None:
            try:
                self.chief.hear(peer, header, payload)
            except BadMessage as error:
                self._hub.close(peer)
                self._left(Left(peer, str(error)))
        else:
            self._heard_s = self._clock()
            if header.kind == Kind.EXPELLED:
                raise PeerLost(f"server {self.shard} was turned away by server 0: {text_of(payload)}")
            if header.kind != Kind.ALIVE:
                self.node.obey(unpack_order(header, payload))

    def _joined(self, hello: Hello, peer: Peer) -> None:
        if peer.role is Role.WORKER:
            self.node.joined(hello)
        if self.node.ended is not None:
            self.node.tell_end(peer)
            return
        if self.chief is not None:
            self.chief.joined(hello)
        elif peer == _SHARD_0:
            self._publish_address(*self._listens_on)  # server 0 may have come back with a new board of addresses
            self._redial.succeeded(self._timeouts.return_s)
            self._heard_s = self._clock()

    def _left(self, event: Left) -> None:
        peer = event.peer
        incarnation = self.node.workers.get(peer.rank, -1) if peer.role is Role.WORKER else 0
        if peer.role is Role.WORKER:
            self.node.left(peer.rank)
        if self.chief is not None:
            self.chief.left(peer, incarnation, event.reason)
        elif peer == _SHARD_0:
            self._redial.failed(event.reason, self._clock())
            if event.refused:
                raise PeerLost(f"server {self.shard} was turned away by server 0: {event.reason}")

    def look_at_the_clock(self) -> None:
        """To be called after each poll: what can be passed on or told, disks, timeouts, redialling.

        Raises:
            PeerLost: shard 0 is gone and did not come back.
            CheckpointError, ParamServersError: no checkpoint can be loaded, at a start or at a roll-back.
        """
        if self._arrived:  # shard 0 must not wait for it behind the last part of the update
            self._tell_arrived()
            self._hub.flush()
        self.node.advance(self._clock())
        try:
            self._checkpoints.poll()
        except CheckpointError as error:
            if not self.node.term:
                raise
            raise ParamServersError(str(error)) from error  # at a roll-back: a fault, no bad input
        if self.chief is not None:
            self.chief.tick()
        else:
            self._keep_in_touch(self._clock())

    def _keep_in_touch(self, now_s: float) -> None:
        """Shards other than 0: dial shard 0 until it answers, and let it know that we live."""
        if self._hub.connected(_SHARD_0):
            silence_s = self._timeouts.chief_silence_s
            if now_s - self._heard_s > silence_s:
                raise PeerLost(f"server {self.shard}: server 0 is silent for {silence_s:g} s")
            if now_s >= self._alive_s:
                self._alive_s = now_s + self._timeouts.alive_every_s
                self._hub.send(_SHARD_0, Header(Kind.ALIVE, self.shard, 0, self.node.term, self.node.step))
            return
        address = self._redial.attempt(lambda: self._resolve(0), now_s, f"server {self.shard} cannot reach server 0")
        if address is not None:
            hello = Hello(Role.SERVER, self.shard, self._incarnation, 0, self._fingerprint, self.node.term)
            self._hub.dial(address, hello)

    # -- what shard 0 is told ------------------------------------------------------------------------------------

    def _tell(self, header: Header, what: Row | dict[str, Any] | None) -> None:
        if self.chief is not None:
            self.chief.told(header, what)
        elif isinstance(what, Row):
            self._arrived.setdefault(header, []).append(what)
        else:
            self._tell_arrived()
            self._hub.send(_SHARD_0, header, memoryview(b"" if what is None else json.dumps(what).encode()))

    def _tell_arrived(self) -> None:
        """64 workers that finish together are one message, not 64."""
        arrived, self._arrived = self._arrived, {}
        for header, rows in arrived.items():
            self._hub.send(_SHARD_0, header, memoryview(pack_rows(rows)))

    # -- who may join --------------------------------------------------------------------------------------------

    def admits(self, hello: Hello) -> str:
        """ "" or one line why this peer may not join."""
        if hello.fingerprint != self._fingerprint:
            if hello.fingerprint[:15] == self._fingerprint[:15]:
                return "one of it and this run is asynchronous, the other is not"
            return f"its layout is {hello.fingerprint}, this run's is {self._fingerprint}"
        if self.chief is not None and hello.term > self.chief.coordinator.term + MOST_TERMS_AHEAD:
            return f"it claims to have seen term {hello.term}, this run is at {self.chief.coordinator.term}"
        if hello.role is Role.SERVER:
            servers = self._plan.num_shards
            if self.chief is None:
                return "only server 0 takes servers"
            if not 0 < hello.rank < servers:
                return f"there is no {hello.peer} in this run of {servers} servers"
        elif hello.role is not Role.WORKER or hello.rank >= self._num_workers:
            return f"there is no {hello.peer} in this run of {self._num_workers} workers"
        return self._lives.admits(hello)


class Reporter:
    """Calls `on_report` with counts since the last report and with what is now.

    Keys: step, term, data_points_total, active_workers, num_gradients (shard 0), commits, stale, rejected,
    update_norm (L2, of one update, the first since the last report; this shard's), first_moment_norm and
    second_moment_norm (L2, this shard's; where the optimizer keeps them), learning_rate, bytes_sent, bytes_received,
    sections_s {aggregating, applying, waiting, other}, window_s.
    """

    def __init__(self, node: ShardNode, hub: Hub, chief: Chief | None, on_report: OnReport) -> None:
        self._node, self._hub, self._chief, self._on_report = node, hub, chief, on_report
        self._waiting_s = 0.0
        self._since_s = time.monotonic()
        node.shard.measure_next_update()
        self._counts = self._now()

    def poll(self, timeout_s: float) -> list[Event]:
        """The hub's, timed."""
        start_s = time.perf_counter()
        events = self._hub.poll(timeout_s)
        self._waiting_s += time.perf_counter() - start_s
        return events

    def maybe(self, last: bool = False) -> None:
        """Report if it is time, or this is the `last` one, and something was committed; of whole versions only."""
        now_s = time.monotonic()
        due = last or now_s - self._since_s >= REPORT_EVERY_S
        if due and self._node.commits > self._counts["commits"] and not self._node.cut_through.open:
            self._send(now_s)

    def _send(self, now_s: float) -> None:
        node, counts = self._node, self._now()
        change = {name: counts[name] - self._counts[name] for name in counts}
        window_s = now_s - self._since_s
        sections_s = {name: change.pop(name) for name in ("aggregating", "applying")}
        sections_s["waiting"] = self._waiting_s
        sections_s["other"] = max(0.0, window_s - sum(sections_s.values()))
        report: dict[str, Any] = {
            "step": node.step,
            "term": node.term,
            "data_points_total": node.data_points,
            "active_workers": len(node.workers),
            **change,
            "update_norm": node.shard.update_norm,
            **node.shard.moment_norms(),
            "learning_rate": node.shard.learning_rate(node.data_points),
            "sections_s": sections_s,
            "window_s": window_s,
        }
        if self._chief is not None:
            report["num_gradients"] = self._chief.coordinator.steps.num_gradients
        node.shard.measure_next_update()
        self._counts, self._since_s, self._waiting_s = counts, now_s, 0.0
        self._on_report(report)

    def _now(self) -> dict[str, float]:
        node = self._node
        sent, received = self._hub.bytes_moved
        return {
            "commits": node.commits,
            "stale": node.stale,
            "rejected": node.rejected,
            "bytes_sent": sent,
            "bytes_received": received,
            "aggregating": node.shard.aggregating_s,
            "applying": node.shard.applying_s,
        }
