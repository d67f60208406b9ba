"""All-reduce with backup workers: a step waits for the first g ranks that are ready, not for all (partial
collectives, arXiv 1908.04207, there with late ranks' old gradients; here with zeros, so that staleness is 0).

    main thread   pull, compute, push: say "ready" and wait for the answer
    comm thread   on COMMIT: sum at once, with the own gradient if this rank is a member, else with zeros; divide by the
                  number of members; take the optimizer step; tell the main thread
    chief         a thread of rank 0: which g ranks are the members of a step (see `chief`)

So a late rank holds up nobody: its comm thread sums while its main thread still computes, and when that is done it
finds its gradient stale and goes on from the newest parameters. When a rank is lost the others form a new group and
take over the state of the one that is furthest. The loss of rank 0, or its silence for two step timeouts (it says that
it lives all the time), ends the run: the next rank writes a checkpoint, which those that are started again go on from,
also where it comes after the next rank 0 has looked: every rank looks. Rank 0, should it wake and find nobody left,
ends too. Time in which a process was stopped itself is no silence of others, so a run that is stopped whole goes on.
"""

import threading
import time
from pathlib import Path

import torch
from torch import Tensor

from param_servers.allreduce.collective import TorchCollective, host_store, reach_store
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import (
    CheckpointError,
    LastStepsLost,
    ParamServersError,
    PeerLost,
    RunBroken,
    RunStopped,
    told,
)
from param_servers.exchange import (
    OnEvent,
    OnReport,
    Publish,
    Pull,
    Receipt,
    Resolve,
    ShouldStop,
    check_rejected,
    never,
    unread,
    whole,
)
from param_servers.layout import FlatLayout, floats
from param_servers.majority.chief import MajorityChief
from param_servers.majority.shared_replica import Outcome, SharedReplica
from param_servers.replica import Replica, ReplicaReport
from param_servers.servers.audit import AuditLog
from param_servers.timeouts import GOODBYE_S, NAP_S, Redial, clock_of_a_loop
from param_servers.wire.frames import Event, Left, Message
from param_servers.wire.handshake import Hello, Peer, Role, check_secret, incarnation_or_new, new_process_token
from param_servers.wire.hub import WakeableHub
from param_servers.wire.messages import (
    RECIPIENT,
    Code,
    Header,
    Kind,
    Row,
    check_data_points,
    control_payload,
    text_of,
    unpack_rows,
)
from param_servers.wire.tcp_sockets import listen_address

CHIEF = Peer(Role.SERVER, 0)
"""The other end of the only link that a rank has."""


class MajorityExchange:
    """`GradientExchange` of rank `rank`. Everything but `pull` and `push` happens in its comm thread.

    Args:
        rank, incarnation: who this is; a restarted rank comes back with a higher incarnation. None: by the clock.
        layout, initial_parameters, optimizer_config, exchange_config: see `Replica`.
        checkpoint_dir: the same on all ranks; the lowest rank of the group writes there, all read, rank 0 renames.
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
        checkpoint_dir: str | Path | None = None,
        audit_path: Path | None = None,
        life: int = 0,
        should_stop: ShouldStop = never,
        on_report: OnReport = unread,
        on_event: OnEvent = unread,
    ) -> None:
        self.rank = rank
        config = exchange_config
        check_secret(secret)
        incarnation = incarnation_or_new(incarnation)
        host = listen_address(config.listen_host, config.interface)  # its errors here, not in a thread
        self.replica = replica = Replica(layout, initial_parameters, optimizer_config, config, checkpoint_dir, on_event)
        on_report = on_report if rank == 0 else unread
        self._report = ReplicaReport(replica, on_report, workers=config.num_workers)
        self._shared = SharedReplica(rank, incarnation, replica, config.timeouts.comm_turn_s)
        self._rejected_in_a_row = 0
        self._chief_thread: threading.Thread | None = None
        self._given_up = threading.Event()
        store = None
        if rank:  # what it wrote when it had lost rank 0 may be newer than what the next rank 0 has found
            replica.look_for_newest()
        else:
            replica.restore_newest()
            store, store_port = host_store(host, 0, secret, config.join_timeout_s)
            audit: AuditLog | None = None
            if audit_path is not None:
                audit = AuditLog(audit_path, life, lambda line: replica.note("audit_incomplete", line))
            chief = MajorityChief(
                config=config,
                fingerprint=layout.fingerprint,
                secret=secret,
                store_port=store_port,
                learning_rate=replica.shard.learning_rate,
                should_stop=should_stop,
                on_event=on_event,
                audit=audit,
            )
            address = chief.listen(host, config.port)
            self._chief_thread = threading.Thread(target=chief.run, args=(self._given_up,), daemon=True)
            self._chief_thread.start()
            publish_address(*address)
        self._config, self._secret, self._incarnation, self._store = config, secret, incarnation, store
        self._process_token = new_process_token()  # one for all its links: rank 0 takes another for another process
        self._generation, self._members = 0, list[int]()
        """Of the newest group that this rank was told to form."""
        self._group: TorchCollective | None = None
        self._buffer = floats(layout.numel)
        self._announced, self._closing = 0, False
        self._hub = WakeableHub(secret, small_payload, silence_timeout_s=config.timeouts.silence_s)
        self._resolve, self._redial = resolve, Redial(config.timeouts.start_s, seed=rank)
        self._now_s = clock_of_a_loop().now_s
        self._met_chief, self._chief_host, self._quiet_s = False, "", 0.0
        self._thread = threading.Thread(target=self._main, args=(torch.get_num_threads(),), daemon=True)
        self._thread.start()

    def pull(self) -> Pull:
        return self._shared.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        data_points, earlier = whole(data_points), self._shared.waiting
        check_data_points(data_points)  # rank 0 closes the link of whoever says more, and is taken for lost
        if earlier is not None:  # it was interrupted, and the chief may be about to count it
            self._shared.answer(earlier.step)
        refused = self._shared.offer(gradient, step, data_points)
        if refused is not None:
            if refused.reason == "non-finite":
                self._report.rejected += 1
                self._rejected_in_a_row += 1
                check_rejected(self._rejected_in_a_row, refused.step)
            return refused
        self._rejected_in_a_row = 0
        self._hub.wake()
        return self._shared.answer(step)

    def close(self) -> None:
        self._closing = True
        self._hub.wake()
        self._thread.join(self._config.timeouts.comm_leave_s)
        if self._chief_thread is not None:
            # The chief stays until all have heard how the run ended, or at once if it has not.
            if not isinstance(self._shared.ended, (RunStopped, LastStepsLost)):
                self._given_up.set()
            self._chief_thread.join(self._config.timeouts.chief_leave_s)
        self._report.maybe(last=True)
        self.replica.close()

    # -- the comm thread: obeys the chief, sums with the others, takes the steps -----------------------------------

    def _main(self, threads: int) -> None:
        torch.set_num_threads(threads)  # torch keeps this number for each thread
        try:
            while self._shared.ended is None and not self._closing:
                if not self._met_chief:
                    self._dial_the_chief()
                self._shared.turns += 1
                start_s = time.monotonic()
                events = self._hub.poll(NAP_S)
                self._listen_for_the_chief(bool(events) or not self._met_chief, time.monotonic() - start_s)
                for event in events:
                    self._handle(event)
                self._announce()
            self._close_group()  # first: the others go on
            if self._shared.ended is None and self.rank == 0 and (lost := self.replica.finish()):
                self.replica.note("checkpoint_failed", f"rank 0 leaves; {lost}")  # none may be left to write one
        except CheckpointError as error:
            self._end(ParamServersError(str(error)))  # a fault of the disk: this rank may be started again
        except (ParamServersError, RunStopped) as error:
            self._end(error)
        except BaseException as error:  # the main thread waits for this one: nothing may end it in silence
            broken = RunBroken(f"rank {self.rank} cannot go on: {told(error)}")
            broken.__cause__ = error
            self._end(broken)
        finally:
            self._close_group()
            self._hub.drain(GOODBYE_S)

    def _end(self, outcome: Outcome, writer: int = 0, committed: int = 0) -> None:
        """Rank 0 writes the last checkpoint, and so does `writer`: the first that is left, where that is another. It
        says so where it has not taken all steps that were `committed`: the last one's sum broke."""
        lost = ""
        if self.rank in (0, writer):
            self.replica.term += self.rank  # should rank 0 be alive, too, it writes under another name
            try:
                lost = self.replica.finish()
            except BaseException as error:  # the main thread waits to be told how the run ended
                lost = f"the last checkpoint was not written: {told(error)}"
            if not lost and self.replica.reached < committed:
                lost = f"step {committed} was decided, but its sum broke: the run ends at {self.replica.reached}"
        if lost:
            outcome = (PeerLost if isinstance(outcome, PeerLost) else LastStepsLost)(f"{outcome}; {lost}")
        self._shared.end(outcome)

    # -- the chief -----------------------------------------------------------------------------------------------

    def _dial_the_chief(self) -> None:
        what = f"rank {self.rank} cannot reach rank 0, which decides who takes part,"
        address = self._redial.attempt(lambda: self._resolve(0), self._now_s(), what)
        if address is not None:
            self._chief_host, fingerprint = address[0], self.replica.layout.fingerprint
            rank, token = self.rank, self._process_token
            self._hub.dial(address, Hello(Role.WORKER, rank, self._incarnation, 0, fingerprint, process_token=token))

    def _handle(self, event: Event) -> None:
        if self._shared.ended is not None:
            return  # the link that closes after STOP is no loss
        if isinstance(event, Left):
            if self._met_chief or event.refused:
                self._chief_lost(event.reason)
            else:  # the address may be that of its earlier life
                self._redial.failed(event.reason, self._now_s())
        elif isinstance(event, Message):
            self._obey(event.header, event.payload)
        else:
            self._met_chief = True
            self._stand()  # the chief learns how far this rank is

    def _obey(self, header: Header, payload: memoryview) -> None:
        if header.kind == Kind.COMMIT and header.term == self._generation:
            self._commit(header, unpack_rows(payload))
        elif header.kind == Kind.RESTORE:
            self._form(header, unpack_rows(payload))
        elif header.kind == Kind.ABORTED:
            self._leave_group()
        elif header.kind in (Kind.STOP, Kind.EXPELLED):
            reason = text_of(payload)
            if header.kind == Kind.EXPELLED:
                self._end(RunBroken(f"rank {self.rank} was expelled: {reason}"))
            else:
                outcome = RunBroken(reason) if header.code == Code.FAILED else RunStopped(reason)
                self._end(outcome, header.sequence, header.step)

    def _listen_for_the_chief(self, heard: bool, polled_s: float) -> None:
        """Called after each poll. What comes while this thread is in a sum is heard before silence is told, and a poll
        that took much longer than it may tells nothing: it was this process that was stopped."""
        self._quiet_s = 0.0 if heard else self._quiet_s + min(polled_s, NAP_S)
        if self._quiet_s > self._config.timeouts.chief_silence_s:
            self._chief_lost(f"silent for {self._config.timeouts.chief_silence_s:g} s")

    def _chief_lost(self, reason: str) -> None:
        first = next((rank for rank in self._members if rank), 0)
        self._end(PeerLost(f"rank 0, which decides who takes part, is lost: {reason}"), first)

    def _say(self, kind: Kind, step: int = 0, sequence: int = 0, data_points: int = 0) -> None:
        header = Header(kind, self.rank, self._incarnation, self._generation, step, sequence, data_points)
        self._hub.send(CHIEF, header)

    def _stand(self) -> None:
        self._say(Kind.ABORTED, step=self.replica.step, data_points=self.replica.data_points)

    def _announce(self) -> None:
        """Tell the chief, once in each generation, that a gradient waits here."""
        push = self._shared.waiting
        if push is not None and self._group is not None and self._announced != push.row.sequence:
            self._announced = push.row.sequence
            self._say(Kind.GRADIENT, push.step, push.row.sequence, push.data_points)

    # -- the group -----------------------------------------------------------------------------------------------

    def _form(self, header: Header, rows: list[Row]) -> None:
        """Build a group with the other members, and take over the state of the one that is furthest."""
        self._close_group()
        self._generation, self._members, self._announced = header.term, [row.worker for row in rows], 0
        self._report.active_workers = len(rows)
        source = [row.mark & RECIPIENT for row in rows].index(0)
        try:
            self._group = self._build_group(store_port=header.sequence)
            state = self.replica.counters(), self.replica.packed()
            for tensor in state:
                self._group.broadcast_(tensor, source)
        except PeerLost:
            self._leave_group()
            return
        self._shared.go_on_from(state if self.rank != self._members[source] else None)
        if self.rank == 0:  # else it would be the newest one, and the last one not be written
            self.replica.set_aside_later()

    def _build_group(self, store_port: int) -> TorchCollective:
        config, place = self._config, self._members.index(self.rank)
        if self._store is None:
            chief = self._chief_host, store_port
            self._store = reach_store(lambda _: chief, self._secret, config.timeouts.step_s)
        return TorchCollective(place, len(self._members), self._store, config, self._generation)

    def _leave_group(self) -> None:
        self._close_group()
        self._stand()

    def _close_group(self) -> None:
        """Closing our connections lets ranks that wait for us fail at once, too."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _commit(self, header: Header, members: list[Row]) -> None:
        """One step: all ranks of the group are here."""
        if self._group is None:
            return
        self._shared.contribute(header.step, members, self._buffer)
        start_s = time.perf_counter()
        try:
            self._group.all_reduce_sum_(self._buffer)
        except PeerLost:
            self._shared.give_up_sum()
            self._leave_group()
            return
        summed_s = time.perf_counter()
        self._shared.commit(self._buffer.div_(len(members)), header.data_points)
        report = self._report
        report.collective_s += summed_s - start_s
        report.applying_s += time.perf_counter() - summed_s
        report.commits += 1
        report.num_gradients = len(members)
        if self.rank == self._members[0]:
            self.replica.checkpoint_when_due()
        report.maybe()


def small_payload(peer: Peer, header: Header) -> memoryview:
    """A rank's `receive_into`: orders of the chief."""
    return control_payload(header, (Kind.RESTORE, Kind.COMMIT, Kind.EXPELLED, Kind.STOP))
