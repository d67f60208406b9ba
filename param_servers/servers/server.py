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

from param_servers.checkpoint.writer import Checkpoints
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, RunBroken
from param_servers.layout import ShardPlan
from param_servers.patience import AwakeClock
from param_servers.servers.chief import Chief
from param_servers.servers.server_core import MOST_INCARNATION, Resolve, ServerCore, ShouldStop
from param_servers.servers.shard_node import ShardNode
from param_servers.timeouts import LAST_WORDS_S
from param_servers.wire.frames import Event
from param_servers.wire.handshake import check_secret
from param_servers.wire.hub import Hub
from param_servers.wire.tcp_sockets import listen_address

EVERY_S = 1.0
"""Between two reports."""


class ParameterServer:
    """Shard `shard` of a run.

    Args:
        shard: which slice; shard 0 also coordinates.
        plan: layout and cuts, the same in all processes (`plan_shards(layout, num_servers, sharding)`).
        initial_parameters: [P] float32 in the order of `plan.layout`, the same in all servers.
        optimizer_config, exchange_config: settings.
        resolve: where server j listens; shards other than 0 dial server 0.
        secret: at least 16 bytes that every process of the run knows.
        incarnation: how many times this server has been started again.
        publish_address: called once with (host, port) when this server listens.
        checkpoint_dir: shared by all servers; None: no checkpoints, and a lost server costs all steps.
        audit_path: shard 0 appends every commit, roll-back and expulsion there.
        life: which life of the run this is, for the audit log: 0 for the first, one more each time it is resumed.
        should_stop: shard 0 asks it after every step and twice a second: (step, data_points) -> reason or None.
        checkpoint_extra: shard 0: JSON for the manifest, asked when a checkpoint is published.
        on_report: called about once a second with the figures of `Reporter`.
        on_event: called with {"event", "message", ...}; the message is one line for a person.

    Raises:
        ConfigError: there is no such shard, the parameters are not of this layout, the secret is too short, or
            `listen_host` is no address that others could dial.
        SnapshotError: there are checkpoints and none is whole.
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
        publish_address: Callable[[str, int], None] = lambda host, port: None,
        checkpoint_dir: Path | None = None,
        audit_path: Path | None = None,
        life: int = 0,
        should_stop: ShouldStop = lambda step, data_points: None,
        checkpoint_extra: Callable[[], dict[str, Any]] = dict,
        on_report: Callable[[dict[str, Any]], None] = lambda report: None,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> None:
        if not 0 <= shard < plan.num_shards:
            raise ConfigError(f"there is no shard {shard} in a plan of {plan.num_shards}")
        if not 0 <= incarnation <= MOST_INCARNATION:
            raise ConfigError(f"a server's incarnation is 0 to {MOST_INCARNATION}, got {incarnation}")
        plan.layout.check(initial_parameters)
        host = listen_address(exchange_config.listen_host, exchange_config.interface)
        self._address = (host, exchange_config.port)
        self._publish_address = publish_address
        self._core = core = ServerCore(
            shard=shard,
            plan=plan,
            initial_parameters=initial_parameters,
            optimizer_config=optimizer_config,
            exchange_config=exchange_config,
            resolve=resolve,
            storage=Checkpoints(checkpoint_dir, plan, shard, initial_parameters, exchange_config.timeouts.set_aside_s),
            clock=AwakeClock(exchange_config.step_timeout_s).now_s,
            should_stop=should_stop,
            on_event=on_event,
            incarnation=incarnation,
            audit_path=audit_path,
            life=life,
            checkpoint_extra=checkpoint_extra,
        )
        self._hub = Hub(
            check_secret(secret),
            core.node.receive_into,
            shard=shard,
            admit=core.admits,
            silence_timeout_s=exchange_config.timeouts.silence_s,
        )
        self._reporter = Reporter(core.node, self._hub, core.chief, on_report)

    def run(self) -> str:
        """Serve until the run ends; the reason why it ended.

        Raises:
            RunBroken: it could not go on as declared (a last checkpoint was written where possible).
            PeerLost: shard 0 is gone and did not come back.
            SnapshotError: a checkpoint to go back to cannot be loaded, or one that is undone not be set aside.
            CheckpointUnreadable: the file system does not let it be read.
            OSError: the address to listen on is taken.
        """
        core = self._core
        try:
            self._publish_address(*self._hub.listen(*self._address, core.window_bytes))
            core.attach(self._hub)
            while core.node.ended is None:
                for event in self._reporter.timed(self._hub.poll, core.nap_s):
                    core.handle(event)
                core.look_at_the_clock()
                self._reporter.maybe(time.monotonic())
            self._hub.drain(LAST_WORDS_S)
        finally:
            self._hub.shut()
            core.close()
            self._reporter.close()
        reason, failed = core.node.ended
        if failed:
            raise RunBroken(reason)
        return reason


class Reporter:
    """Calls `on_report` with counts since the last report and with what is now.

    Keys: step, term, data_points_total, active_workers, num_gradients (shard 0), commits, stale, rejected,
    update_norm (L2, of one update, the first since the last report; this shard's), first_moment_norm and
    second_moment_norm (L2, this shard's; where the optimizer keeps them), learning_rate, bytes_sent, bytes_received,
    staleness_mean/min/max (shard 0, async), sections_s {aggregating, applying, waiting, other}, window_s.
    """

    def __init__(
        self, node: ShardNode, hub: Hub, chief: Chief | None, on_report: Callable[[dict[str, Any]], None]
    ) -> None:
        self._node, self._hub, self._chief, self._on_report = node, hub, chief, on_report
        self._waiting_s = 0.0
        self._since_s = time.monotonic()
        node.shard.measure_next_update()
        self._counts = self._now()

    def timed(self, poll: Callable[[float], list[Event]], timeout_s: float) -> list[Event]:
        """Poll, and count the time as waiting."""
        start_s = time.perf_counter()
        events = poll(timeout_s)
        self._waiting_s += time.perf_counter() - start_s
        return events

    def maybe(self, now_s: float) -> None:
        """Report if it is time and something was committed; of whole versions only."""
        due = now_s - self._since_s >= EVERY_S and self._node.commits > self._counts["commits"]
        if due and not self._node.betting:
            self._send(now_s)

    def close(self) -> None:
        """The last report, unless the end came between two versions."""
        if self._node.commits > self._counts["commits"] and not self._node.betting:
            self._send(time.monotonic())

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
            delays, self._chief.staleness = self._chief.staleness, []
            if delays:
                report |= {"staleness_mean": sum(delays) / len(delays)}
                report |= {"staleness_min": min(delays), "staleness_max": max(delays)}
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
