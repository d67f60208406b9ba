"""All-reduce with backup workers: a step waits for the first g ranks that are ready, not for all (DESIGN: partial
collectives, arXiv 1908.04207, there with late ranks' old gradients; here with zeros, so that staleness is 0).

    main thread   pull, compute, push: say "ready" and wait for the verdict
    comm thread   on COMMIT: sum at once, with the own gradient if this rank is a member, else with zeros; divide by the
                  number of members; take the optimizer step; tell the main thread
    chief         a thread of rank 0: which g ranks are the members of a step (see majority_coordinator)

So a late rank holds up nobody: its comm thread sums while its main thread still computes, and when that is done it
finds its gradient stale and goes on from the newest parameters. When a rank is lost the others form a new group and
take over the state of the one that is furthest. The loss of rank 0, or its silence for two step timeouts (it says that
it lives all the time), ends the run: the next rank writes a checkpoint. Rank 0, should it wake and find nobody left,
ends too. Time in which a process was stopped itself is no silence of others, so a run that is stopped whole goes on.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from param_servers.allreduce.collective import Publish, Resolve
from param_servers.allreduce.collective_torch import host_store
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import LastStepsLost, RunStopped
from param_servers.exchange import Pull, Receipt
from param_servers.layout import FlatLayout
from param_servers.local import ShouldStop, check_rejected, never
from param_servers.majority.chief import MajorityChief
from param_servers.majority.comm import MajorityComm
from param_servers.majority.group import MajorityGroup
from param_servers.majority.shared_replica import SharedReplica
from param_servers.replica import OnEvent, Replica, silent
from param_servers.replica_report import OnReport, ReplicaReport, unread
from param_servers.servers.audit import AuditLog
from param_servers.wire.handshake import check_secret, new_incarnation
from param_servers.wire.interfaces import listen_address


class MajorityExchange:
    """`GradientExchange` of rank `rank`. Everything but `pull` and `push` happens in its comm thread.

    Args:
        rank, incarnation: who this is; a restarted rank comes back with a higher incarnation. None: by the clock.
        layout, initial_parameters, optimizer_config, exchange_config, checkpoint_extra: see `Replica`.
        checkpoint_dir: the same on all ranks; the lowest rank of the group writes there, rank 0 reads.
        secret: at least 16 bytes that every rank must know.
        publish_address, resolve: rank 0 publishes where it listens, the others resolve rank 0.
        audit_path: rank 0 appends every commit and every return to an earlier step there; see `audit`.
        life: which life of the run this is, for the audit log: 0 for the first, one more each time it is resumed.
        should_stop: rank 0 asks it after each step.
        on_report: called by rank 0 about once a second with the figures of `ReplicaReport`.
        on_event: see `Replica`; the chief on rank 0 tells it, too, who joined, left and was expelled.

    Raises:
        ConfigError: the secret is too short, the parameters are not of this layout, or `listen_host` is no address
            that others could dial.
    """

    def __init__(
        self,
        *,
        rank: int,
        layout: FlatLayout,
        initial_parameters: Tensor,
        optimizer_config: OptimizerConfig,
        exchange_config: ExchangeConfig,
        secret: bytes,
        resolve: Resolve,
        publish_address: Publish = lambda host, port: None,
        incarnation: int | None = None,
        checkpoint_dir: Path | None = None,
        audit_path: Path | None = None,
        life: int = 0,
        should_stop: ShouldStop = never,
        checkpoint_extra: Callable[[], dict[str, Any]] = dict,
        on_report: OnReport = unread,
        on_event: OnEvent = silent,
    ) -> None:
        self.rank = rank
        config = exchange_config
        check_secret(secret)
        incarnation = new_incarnation() if incarnation is None else incarnation
        listen_address(config.listen_host, config.interface)  # its errors here, not in a thread
        self.replica = replica = Replica(
            layout, initial_parameters, optimizer_config, config, checkpoint_dir, checkpoint_extra, on_event
        )
        on_report = on_report if rank == 0 else unread
        self._report = ReplicaReport(replica, on_report, workers=config.num_workers)
        self._shared = SharedReplica(rank, incarnation, replica, config.timeouts.comm_turn_s)
        self._rejected_in_a_row, self._chief_leave_s = 0, config.timeouts.chief_leave_s
        group = MajorityGroup(rank, config, secret)
        self._chief_thread: threading.Thread | None = None
        if rank == 0:
            audit: AuditLog | None = None
            if audit_path is not None:
                audit = AuditLog(audit_path, life, lambda line: replica.note("audit_incomplete", line))
            self._chief_thread = self._start_chief(config, secret, group, should_stop, on_event, publish_address, audit)
        self._comm = MajorityComm(rank, incarnation, config, secret, replica, self._shared, self._report, group)
        self._comm.start(resolve)

    def _start_chief(
        self,
        config: ExchangeConfig,
        secret: bytes,
        group: MajorityGroup,
        should_stop: ShouldStop,
        on_event: OnEvent,
        publish: Publish,
        audit: AuditLog | None,
    ) -> threading.Thread:
        self.replica.restore_newest()
        host = listen_address(config.listen_host, config.interface)
        store, port = host_store(host, 0, secret, config.join_timeout_s)
        group.knows_store(host, port, store)
        chief = MajorityChief(
            config=config,
            fingerprint=self.replica.layout.fingerprint,
            secret=secret,
            store=(host, port),
            learning_rate=self.replica.shard.learning_rate,
            should_stop=should_stop,
            on_event=on_event,
            audit=audit,
        )
        self._given_up = threading.Event()
        address = chief.listen(host, config.port)
        thread = threading.Thread(target=chief.run, args=(self._given_up,), daemon=True)
        thread.start()
        publish(*address)
        return thread

    def pull(self) -> Pull:
        """See `GradientExchange.pull`."""
        return self._shared.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """See `GradientExchange.push`."""
        refused = self._shared.offer(gradient, step, data_points)
        if refused is not None:
            if refused.reason == "non-finite":
                self._report.rejected += 1
                self._rejected_in_a_row += 1
                check_rejected(self._rejected_in_a_row, refused.step)
            return refused
        self._rejected_in_a_row = 0
        self._comm.wake()
        return self._shared.verdict(step)

    def close(self) -> None:
        """See `GradientExchange.close`."""
        self._comm.close()
        if self._chief_thread is not None:
            # The chief stays until all have heard how the run ended, or at once if it has not.
            if not isinstance(self._shared.ended, (RunStopped, LastStepsLost)):
                self._given_up.set()
            self._chief_thread.join(self._chief_leave_s)
        self._report.maybe(last=True)
        self.replica.close()
