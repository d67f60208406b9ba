"""All-reduce with backup workers: a step waits for the first g ranks that are ready, not for all (DESIGN: partial
collectives, arXiv 1908.04207, there with late ranks' old gradients; here with zeros, so that staleness is 0).

    main thread   pull, compute, push: say "ready" and wait for the verdict
    comm thread   on COMMIT: sum at once, with the own gradient if this rank is a member, else with zeros; divide by the
                  number of members; take the optimizer step; tell the main thread
    chief         a thread of rank 0: which g ranks are the members of a step (see majority_coordinator)

So a late rank holds up nobody: its comm thread sums while its main thread still computes, and when that is done it
finds its gradient stale and goes on from the newest parameters. When a rank is lost the others form a new group and
take over the state of the one that is furthest. The loss of rank 0 ends the run: the next rank writes a checkpoint.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from param_servers.audit import AuditLog
from param_servers.collective import Publish, Resolve, wait_for_address
from param_servers.collective_torch import host_store
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ParamServersError, PeerLost, RunBroken, RunStopped
from param_servers.events import Event, Left, Message
from param_servers.exchange import Pull, Receipt
from param_servers.handshake import Hello, Role
from param_servers.interfaces import listen_address
from param_servers.layout import FlatLayout
from param_servers.local import ShouldStop, check_rejected, never, refusal
from param_servers.majority_chief import MajorityChief
from param_servers.majority_group import MajorityGroup
from param_servers.majority_messages import Formation, small_payload, unpack_formation
from param_servers.messages import Code, Header, Kind, Row, unpack_rows
from param_servers.replica import OnEvent, Replica, silent
from param_servers.replica_report import OnReport, ReplicaReport, unread
from param_servers.wakeable_hub import WakeableHub

_NAP_S = 0.5


class MajorityExchange:
    """`GradientExchange` of rank `rank`. Everything but `pull` and `push` happens in its comm thread.

    Args:
        rank, incarnation: who this is; a restarted rank comes back with a higher incarnation.
        layout, initial_parameters, optimizer_config, exchange_config, checkpoint_extra: see `Replica`.
        checkpoint_dir: the same on all ranks; the lowest rank of the group writes there, rank 0 reads.
        secret: every rank must know it.
        publish_address, resolve: rank 0 publishes where it listens, the others resolve rank 0.
        audit_path: rank 0 appends every commit and every return to an earlier step there; see `audit`.
        should_stop: rank 0 asks it after each step.
        on_report: called by rank 0 about once a second with the figures of `ReplicaReport`.
        on_event: see `Replica`; the chief on rank 0 tells it, too, who joined, left and was expelled.
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
        incarnation: int = 0,
        checkpoint_dir: Path | None = None,
        audit_path: Path | None = None,
        should_stop: ShouldStop = never,
        checkpoint_extra: Callable[[], dict[str, Any]] = dict,
        on_report: OnReport = unread,
        on_event: OnEvent = silent,
    ) -> None:
        self.rank, self._incarnation, self._config, self._secret = rank, incarnation, exchange_config, secret
        self.replica = Replica(
            layout, initial_parameters, optimizer_config, exchange_config, checkpoint_dir, checkpoint_extra, on_event
        )
        on_report = on_report if rank == 0 else unread
        self._report = ReplicaReport(self.replica, on_report, workers=exchange_config.num_workers)
        self._gradient, self._buffer = torch.zeros(layout.numel), torch.zeros(layout.numel)
        self._changed = threading.Condition()
        """Guards all below, and the replica."""
        self._pending: Row | None = None
        """The push that waits for its verdict; `mark` is not used."""
        self._pending_points = self._pending_step = 0
        self._accepted_step = -1
        self._ended: ParamServersError | RunStopped | None = None
        self._closing = self._formed = False
        self._sequence = self._rejected_in_a_row = 0
        # Of the comm thread alone:
        self._group = MajorityGroup(rank, exchange_config, secret)
        self._announced = 0
        self._hub = WakeableHub(secret, small_payload, silence_timeout_s=max(exchange_config.step_timeout_s, 1.0))
        self._chief_thread: threading.Thread | None = None
        if rank == 0:
            audit = AuditLog(audit_path) if audit_path is not None else None
            self._chief_thread = self._start_chief(should_stop, on_event, publish_address, audit)
        self._thread = threading.Thread(target=self._main, args=(resolve, torch.get_num_threads()), daemon=True)
        self._thread.start()

    def _start_chief(
        self, should_stop: ShouldStop, on_event: OnEvent, publish: Publish, audit: AuditLog | None
    ) -> threading.Thread:
        config = self._config
        self.replica.restore_newest()
        host = listen_address(config.listen_host, config.interface)
        store, port = host_store(host, 0, self._secret, config.join_timeout_s)
        self._group.knows_store(host, port, store)
        chief = MajorityChief(
            config=config,
            fingerprint=self.replica.layout.fingerprint,
            secret=self._secret,
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

    # -- main thread ---------------------------------------------------------------------------------------------

    def pull(self) -> Pull:
        """See `GradientExchange.pull`."""
        with self._changed:
            if self._ended is not None:
                raise self._ended
            self._wait_for(lambda: self._formed, "the ranks to form a group")
            return self.replica.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """See `GradientExchange.push`."""
        with self._changed:
            if self._ended is not None:
                raise self._ended
            reason = refusal(gradient, step, self.replica)
            if reason == "non-finite":
                self._report.rejected += 1
                self._rejected_in_a_row += 1
                check_rejected(self._rejected_in_a_row, self.replica.step)
            if reason:
                return Receipt(False, self.replica.step, reason)
            self._rejected_in_a_row = 0
            self._sequence += 1
            self._gradient.copy_(gradient)
            self._pending = Row(self.rank, self._incarnation, self._sequence)
            self._pending_step, self._pending_points = step, data_points
            self._hub.wake()
            self._wait_for(lambda: self._pending is None, f"step {step} to end")
            accepted = self._accepted_step == step
            return Receipt(accepted, self.replica.step, "" if accepted else "stale")

    def _wait_for(self, true: Callable[[], bool], what: str) -> None:
        # Longer than the chief waits for anybody, so that it is the chief who says who is missing.
        timeout_s = self._config.join_timeout_s + 6 * self._config.step_timeout_s
        self._changed.wait_for(lambda: true() or self._ended is not None, timeout_s)
        if true():
            return
        if self._ended is not None:
            raise self._ended
        raise PeerLost(f"rank {self.rank} waited {timeout_s:g} s in vain for {what}")

    def close(self) -> None:
        """See `GradientExchange.close`."""
        with self._changed:
            self._closing = True
        self._hub.wake()
        self._thread.join(self._config.step_timeout_s + 10)
        if self._chief_thread is not None:
            # The chief stays until all have heard how the run ended, or at once if it has not.
            if not isinstance(self._ended, RunStopped):
                self._given_up.set()
            self._chief_thread.join(10)
        self._report.maybe(last=True)
        self.replica.close()

    # -- comm thread ---------------------------------------------------------------------------------------------

    def _main(self, resolve: Resolve, threads: int) -> None:
        torch.set_num_threads(threads)  # torch keeps this number for each thread
        try:
            self._join_chief(resolve)
            while self._ended is None and not self._closing:
                for event in self._hub.poll(_NAP_S):
                    self._handle(event)
                self._announce()
        except (ParamServersError, OSError, RuntimeError) as error:
            self._end(error if isinstance(error, ParamServersError) else RunBroken(f"rank {self.rank}: {error}"))
        finally:
            self._group.leave()
            self._hub.drain(1.0)

    def _join_chief(self, resolve: Resolve) -> None:
        config = self._config
        address = wait_for_address(resolve, 0, config.join_timeout_s)
        fingerprint = self.replica.layout.fingerprint
        self._hub.dial(address, Hello(Role.WORKER, self.rank, self._incarnation, 0, fingerprint))

    def _handle(self, event: Event) -> None:
        if self._ended is not None:
            return  # the link that closes after STOP is no loss
        if isinstance(event, Left):
            self._chief_lost(event.reason)
        elif not isinstance(event, Message):
            self._stand()  # joined: the chief learns how far this rank is
        elif event.header.kind == Kind.COMMIT and event.header.term == self._group.generation:
            self._commit(event.header, unpack_rows(event.payload))
        elif event.header.kind == Kind.RESTORE:
            self._form(event.header, unpack_formation(bytes(event.payload)))
        elif event.header.kind == Kind.ABORTED:
            self._leave_group()
        elif event.header.kind == Kind.STOP:
            reason = bytes(event.payload).decode("utf-8", "replace")
            self._end(RunBroken(reason) if event.header.code == Code.FAILED else RunStopped(reason))
        elif event.header.kind == Kind.EXPELLED:
            reason = bytes(event.payload).decode("utf-8", "replace")
            self._end(RunBroken(f"rank {self.rank} was expelled: {reason}"))

    def _say(self, kind: Kind, step: int = 0, sequence: int = 0, data_points: int = 0) -> None:
        header = Header(kind, self.rank, self._incarnation, self._group.generation, step, sequence, data_points)
        self._hub.send(self._hub.chief, header)

    def _stand(self) -> None:
        self._say(Kind.ABORTED, step=self.replica.step, data_points=self.replica.data_points)

    def _announce(self) -> None:
        """Tell the chief, once in each generation, that a gradient waits here."""
        with self._changed:
            pending = self._pending
            if pending is None or not self._group.formed or self._announced == pending.sequence:
                return
            self._announced = pending.sequence
            step, data_points = self._pending_step, self._pending_points
        self._say(Kind.GRADIENT, step, pending.sequence, data_points)

    def _commit(self, header: Header, members: list[Row]) -> None:
        """One step: all ranks of the group are here."""
        if not self._group.formed:
            return
        with self._changed:
            member = self._pending is not None and self._pending in [row._replace(mark=0) for row in members]
            if member:
                self._buffer.copy_(self._gradient)
                self._accepted_step = header.step
            else:
                self._buffer.zero_()
                self._accepted_step = -1
        start_s = time.perf_counter()
        try:
            self._group.sum_(self._buffer)
        except PeerLost:
            self._leave_group()
            return
        summed_s = time.perf_counter()
        with self._changed:
            self.replica.commit(self._buffer.div_(len(members)), header.data_points - self.replica.data_points)
            self._settle()
        self._report.waiting_s += summed_s - start_s
        self._report.applying_s += time.perf_counter() - summed_s
        self._report.commits += 1
        self._report.num_gradients = len(members)
        if self._group.is_first:
            self.replica.checkpoint_when_due()
        self._report.maybe()

    def _settle(self) -> None:
        """The replica has moved on: whoever waits for an older step has its answer."""
        if self._pending is not None and self._pending_step < self.replica.step:
            self._pending = None
        self._changed.notify_all()

    def _leave_group(self) -> None:
        self._group.leave()
        self._stand()

    def _form(self, header: Header, formation: Formation) -> None:
        """Build a group with the other members, and take over the state of the one that is furthest."""
        with self._changed:
            self._group.begin(header.term, formation.members)
            self._announced = 0
        self._report.active_workers = len(formation.members)
        try:
            self._group.form(formation)
            with self._changed:
                counters, packed = self.replica.counters(), self.replica.packed()
            self._group.broadcast_(counters, formation.source)
            self._group.broadcast_(packed, formation.source)
        except PeerLost:
            self._leave_group()
            return
        with self._changed:
            if self.rank != formation.source:
                self.replica.unpack(counters, packed)
            self._formed = True
            self._settle()
        self._say(Kind.READY)

    def _chief_lost(self, reason: str) -> None:
        if self.rank == next((rank for rank in self._group.members if rank != 0), -1):
            self.replica.term += 1  # should rank 0 be alive behind a broken link, it writes under another name
            self.replica.finish()
        self._end(PeerLost(f"rank 0, which decides who takes part, is lost: {reason}"))

    def _end(self, outcome: ParamServersError | RunStopped) -> None:
        if self.rank == 0:
            self.replica.finish()
        with self._changed:
            self._ended = self._ended or outcome
            self._changed.notify_all()
