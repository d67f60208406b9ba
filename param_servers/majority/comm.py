"""The comm thread of one rank in a majority all-reduce: obeys the chief, sums with the others, takes the steps."""

import threading
import time

import torch

from param_servers.allreduce.collective import Resolve, wait_for_address
from param_servers.config import ExchangeConfig
from param_servers.errors import LastStepsLost, ParamServersError, PeerLost, RunBroken, RunStopped, told
from param_servers.majority.group import MajorityGroup
from param_servers.majority.messages import Formation, small_payload, unpack_formation
from param_servers.majority.shared_replica import Outcome, SharedReplica
from param_servers.replica import Replica
from param_servers.replica_report import ReplicaReport
from param_servers.timeouts import GOODBYE_S, NAP_S
from param_servers.wire.events import Event, Left, Message
from param_servers.wire.handshake import Hello, Role, new_life
from param_servers.wire.messages import Code, Header, Kind, Row, unpack_rows
from param_servers.wire.wakeable_hub import WakeableHub


class MajorityComm:
    """Begins with `start`. All other public methods are the main thread's.

    Args:
        rank, incarnation, config, secret: see `MajorityExchange`.
        replica: this rank's. Read here without a lock, for only this thread changes it, through `shared`.
        shared: what the main thread sees of it.
        report: told what was summed and applied.
        group: knows the store already on rank 0.
    """

    def __init__(
        self,
        rank: int,
        incarnation: int,
        config: ExchangeConfig,
        secret: bytes,
        replica: Replica,
        shared: SharedReplica,
        report: ReplicaReport,
        group: MajorityGroup,
    ) -> None:
        self._rank, self._incarnation, self._config = rank, incarnation, config
        self._replica, self._shared, self._report, self._group = replica, shared, report, group
        self._buffer = torch.zeros(replica.layout.numel)
        self._announced = 0
        self._closing = False
        self._hub = WakeableHub(secret, small_payload, silence_timeout_s=config.timeouts.silence_s)
        self._silence_s, self._quiet_s = config.timeouts.chief_silence_s, 0.0
        self._thread: threading.Thread | None = None

    def start(self, resolve: Resolve) -> None:
        """Dial the chief, when `resolve` knows it, and obey."""
        self._thread = threading.Thread(target=self._main, args=(resolve, torch.get_num_threads()), daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """A push waits."""
        self._hub.wake()

    def close(self) -> None:
        """Leave the run, within a bounded time."""
        self._closing = True
        self._hub.wake()
        if self._thread is not None:
            self._thread.join(self._config.timeouts.comm_leave_s)

    def _main(self, resolve: Resolve, threads: int) -> None:
        torch.set_num_threads(threads)  # torch keeps this number for each thread
        try:
            self._join_chief(resolve)
            while self._shared.ended is None and not self._closing:
                self._shared.turns += 1
                start_s = time.monotonic()
                events = self._hub.poll(NAP_S)
                self._listen_for_the_chief(bool(events), time.monotonic() - start_s)
                for event in events:
                    self._handle(event)
                self._announce()
        except BaseException as error:  # the main thread waits for this one: nothing may end it in silence
            self._end(self._outcome_of(error))
        finally:
            self._group.leave()
            self._hub.drain(GOODBYE_S)

    def _outcome_of(self, error: BaseException) -> Outcome:
        if isinstance(error, (ParamServersError, RunStopped)):
            return error
        broken = RunBroken(f"rank {self._rank} cannot go on: {told(error)}")
        broken.__cause__ = error
        return broken

    # -- the chief -----------------------------------------------------------------------------------------------

    def _join_chief(self, resolve: Resolve) -> None:
        address = wait_for_address(resolve, 0, self._config.timeouts.start_s)
        fingerprint = self._replica.layout.fingerprint
        self._hub.dial(address, Hello(Role.WORKER, self._rank, self._incarnation, 0, fingerprint, life=new_life()))

    def _handle(self, event: Event) -> None:
        if self._shared.ended is not None:
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
            self._end(RunBroken(f"rank {self._rank} was expelled: {reason}"))

    def _listen_for_the_chief(self, heard: bool, polled_s: float) -> None:
        """Called after each poll. What comes while this thread is in a sum is heard before silence is told, and a poll
        that took much longer than it may tells nothing: it was this process that was stopped."""
        self._quiet_s = 0.0 if heard else self._quiet_s + min(polled_s, NAP_S)
        if self._quiet_s > self._silence_s:
            self._chief_lost(f"silent for {self._silence_s:g} s")

    def _say(self, kind: Kind, step: int = 0, sequence: int = 0, data_points: int = 0) -> None:
        header = Header(kind, self._rank, self._incarnation, self._group.generation, step, sequence, data_points)
        self._hub.send(self._hub.chief, header)

    def _stand(self) -> None:
        self._say(Kind.ABORTED, step=self._replica.step, data_points=self._replica.data_points)

    def _announce(self) -> None:
        """Tell the chief, once in each generation, that a gradient waits here."""
        push = self._shared.waiting
        if push is not None and self._group.formed and self._announced != push.row.sequence:
            self._announced = push.row.sequence
            self._say(Kind.GRADIENT, push.step, push.row.sequence, push.data_points)

    def _chief_lost(self, reason: str) -> None:
        if self._rank == next((rank for rank in self._group.members if rank != 0), -1):
            self._replica.term += 1  # should rank 0 be alive behind a broken link, it writes under another name
            reason = "; ".join(filter(None, (reason, self._replica.finish())))
        self._end(PeerLost(f"rank 0, which decides who takes part, is lost: {reason}"))

    def _end(self, outcome: Outcome) -> None:
        try:
            lost = self._replica.finish() if self._rank == 0 else ""
        except BaseException as error:  # the main thread waits to be told how the run ended
            lost = f"the last checkpoint was not written: {told(error)}"
        if lost:
            outcome = LastStepsLost(f"{outcome}; {lost}")
        self._shared.end(outcome)

    # -- the group -----------------------------------------------------------------------------------------------

    def _form(self, header: Header, formation: Formation) -> None:
        """Build a group with the other members, and take over the state of the one that is furthest."""
        self._group.begin(header.term, formation.members)
        self._announced = 0
        self._report.active_workers = len(formation.members)
        try:
            self._group.form(formation)
            state = self._shared.state()
            for tensor in state:
                self._group.broadcast_(tensor, formation.source)
        except PeerLost:
            self._leave_group()
            return
        self._shared.go_on_from(state if self._rank != formation.source else None)
        self._say(Kind.READY)

    def _leave_group(self) -> None:
        self._group.leave()
        self._stand()

    def _commit(self, header: Header, members: list[Row]) -> None:
        """One step: all ranks of the group are here."""
        if not self._group.formed:
            return
        self._shared.contribute(header.step, members, self._buffer)
        start_s = time.perf_counter()
        try:
            self._group.sum_(self._buffer)
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
        if self._group.is_first:
            self._replica.checkpoint_when_due()
        report.maybe()
