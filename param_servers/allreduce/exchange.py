"""Synchronous training without servers: every rank holds the whole model, and an all-reduce averages the gradients.

    1. rank 0 loads the newest checkpoint, or takes the initial parameters, and hands its state to all;
    2. each rank pulls, computes a gradient and pushes it into one sum over [gradient | what each rank says of itself];
    3. the sum is divided by the number of finite gradients, and every rank takes the same optimizer step;
    4. rank 0 writes checkpoints, and says in its row when the run is to end: that sum is no step, and all end there.

The buffer that is summed is [gradient | rows]: one row for each rank, in which that rank alone is not zero, so that the
sum hands every row to everybody. A row is whole numbers below 2^24, which float32 holds exactly.

There is one collective a step. A lost rank ends the run, after the first surviving rank has written a checkpoint.
"""

import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from param_servers.allreduce.collective import Collective
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, LastStepsLost, ParamServersError, PeerLost, RunBroken, RunStopped
from param_servers.exchange import OnEvent, OnReport, Pull, Receipt, ShouldStop, check_rejected, never, unread, whole
from param_servers.layout import FlatLayout, floats
from param_servers.replica import Replica, ReplicaReport, how_it_ended, refusal
from param_servers.wire.messages import bytes_of, text_of

T = TypeVar("T")
COMPARE_EVERY_STEPS = 100
"""Steps between comparisons of all ranks' parameters."""
_REASON_BYTES = 256
START = {"mpi": "start it with mpirun -n {}", "horovod": "start it with horovodrun -np {}"}
"""By backend: what makes processes the ranks of one sum."""
MOST_DATA_POINTS = 2**24 - 1


class StepRow(NamedTuple):
    """One rank's part in one step."""

    data_points: int
    """What its `push` was told; 0 when it contributes nothing."""
    rejected: bool
    """Its gradient is not finite: it contributes zeros and is left out of the mean."""
    stop: int
    """Rank 0's alone: 0, or `ASKED` or `BROKEN` where the run is to end instead of taking this step."""
    step: int
    """Its step modulo 256."""
    digest: int
    """16 bits over its parameters, 0 in steps where they are not compared."""


ROW_NUMBERS = len(StepRow._fields)
ASKED, BROKEN = 1, 2


class AllReduceExchange:
    """`GradientExchange` over a `Collective`.

    Args:
        collective: the ranks; used and closed by this exchange alone.
        worker: which of the run's workers this is, where they are numbered: worker 0 must be rank 0 of `collective`.
        layout, initial_parameters, optimizer_config, exchange_config, on_event: see `Replica`.
        checkpoint_dir: the same on all ranks; rank 0 reads and writes there.
        should_stop: rank 0 asks it before each step; all ranks end there. RunBroken from it ends the run as failed.
        on_report: called by rank 0 about once a second with the figures of `ReplicaReport`.

    Raises:
        PeerLost: not all ranks came.
        ConfigError: the ranks hold different models, or `collective` is not made of the configured workers.
    """

    def __init__(
        self,
        *,
        collective: Collective,
        layout: FlatLayout,
        initial_parameters: Tensor,
        optimizer_config: OptimizerConfig,
        exchange_config: ExchangeConfig,
        worker: int | None = None,
        checkpoint_dir: str | Path | None = None,
        should_stop: ShouldStop = never,
        on_report: OnReport = unread,
        on_event: OnEvent = unread,
    ) -> None:
        check_ranks(collective, exchange_config, worker)
        self._collective, self._should_stop = collective, should_stop
        self.replica = Replica(layout, initial_parameters, optimizer_config, exchange_config, checkpoint_dir, on_event)
        rows = collective.size * ROW_NUMBERS
        self._buffer = floats(layout.numel + rows)
        self._gradient, self._rows = self._buffer[: layout.numel], self._buffer[layout.numel :].view(-1, ROW_NUMBERS)
        on_report = on_report if collective.rank == 0 else unread
        self._report = ReplicaReport(self.replica, on_report, workers=collective.size)
        self._rejected_in_a_row = 0
        self._reason: str | None = None
        self._ended: RunStopped | LastStepsLost | None = None
        self._saved, self._patience_s = False, collective.patience_s
        collective.patience_s = exchange_config.timeouts.first_sum_s
        self._begin()

    def _begin(self) -> None:
        self._check_same_model()
        reason = None
        if self._collective.rank == 0:
            self.replica.restore_newest()
            reason = self._should_stop(self.replica.step, self.replica.data_points)
        state = self.replica.counters(), self.replica.packed()
        for tensor in state:
            self._collective.broadcast_(tensor)
        self.replica.unpack(*state)
        agreed = self._agree_on_reason(reason)
        self._ended = RunStopped(agreed) if agreed else None

    def _check_same_model(self) -> None:
        own = zlib.crc32(self.replica.layout.fingerprint.encode()) & 0xFFFF
        table = floats(self._collective.size, ROW_NUMBERS)
        write_rows(table, self._collective.rank, StepRow(0, False, False, 0, own))
        self._collective.all_reduce_sum_(table)
        others = [rank for rank, row in enumerate(read_rows(table)) if row.digest != read_rows(table)[0].digest]
        if others:
            raise ConfigError(f"ranks {others} were given another model (or order of tensors) than rank 0")

    def pull(self) -> Pull:
        if self._ended is not None:
            raise self._ended
        return self.replica.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """See `GradientExchange.push`. A second push for one pull is stale and takes part in nothing."""
        if self._ended is not None:
            raise self._ended
        data_points = whole(data_points)
        reason = refusal(gradient, step, self.replica)
        if reason == "stale":
            return Receipt(False, self.replica.step, reason)
        rows = self._sum(gradient, reason, data_points)
        self._check_equal(rows)
        if rows[0].stop:
            self._end(broken=rows[0].stop == BROKEN)
        self._apply(rows)
        self._report.maybe()
        return Receipt(not reason, self.replica.step, reason)

    def _sum(self, gradient: Tensor, reason: str, data_points: int) -> list[StepRow]:
        """Steps 2: the sum over all ranks, in the buffer, and what they said."""
        replica = self.replica
        if reason:
            self._gradient.zero_()
        else:
            self._gradient.copy_(gradient.detach())  # not into its graph
        stop = self._asked_to_stop() if self._collective.rank == 0 else 0
        digest = digest_of(replica.shard.parameters) if replica.step % COMPARE_EVERY_STEPS == 0 else 0
        own = StepRow(0 if reason else data_points, bool(reason), stop, replica.step, digest)
        write_rows(self._rows, self._collective.rank, own)
        start_s = time.perf_counter()
        self._or_save(lambda: self._collective.all_reduce_sum_(self._buffer))
        self._report.collective_s += time.perf_counter() - start_s
        return read_rows(self._rows)

    def _asked_to_stop(self) -> int:
        """Rank 0's `StepRow.stop`; why is kept."""
        try:
            self._reason = self._should_stop(self.replica.step, self.replica.data_points)
        except RunBroken as broken:
            self._reason = str(broken)
            return BROKEN
        return 0 if self._reason is None else ASKED

    def _apply(self, rows: list[StepRow]) -> None:
        """Step 3: the mean over the finite gradients, and the update."""
        contributions = sum(not row.rejected for row in rows)
        self._report.rejected += len(rows) - contributions
        if contributions == 0:
            self._rejected_in_a_row += 1
            self._or_save(lambda: check_rejected(self._rejected_in_a_row, self.replica.step))
            return
        self._rejected_in_a_row, self._collective.patience_s = 0, self._patience_s
        start_s = time.perf_counter()
        self.replica.commit(self._gradient.div_(contributions), sum(row.data_points for row in rows))
        self._report.applying_s += time.perf_counter() - start_s
        self._report.commits += 1
        if self._collective.rank == 0:
            self.replica.checkpoint_when_due()

    def _check_equal(self, rows: list[StepRow]) -> None:
        odd = [rank for rank, row in enumerate(rows) if (row.step, row.digest) != (rows[0].step, rows[0].digest)]
        if odd:
            self._saved = True  # nobody knows which of them is right: the checkpoint before stays the newest
            raise RunBroken(f"ranks {odd} hold other parameters than rank 0 at step {self.replica.step}")

    def _end(self, broken: bool) -> NoReturn:
        """Step 4: all ranks are here in the same step."""

        def agree() -> str:
            reason = self._agree_on_reason(self._reason)
            if broken:
                raise RunBroken(reason)
            return reason

        reason = self._or_save(agree)
        self._ended = how_it_ended(reason, self.replica.finish() if self._collective.rank == 0 else "")
        raise self._ended

    def _agree_on_reason(self, reason: str | None) -> str:
        """Rank 0's reason on all ranks; "" for None."""
        text = torch.zeros(_REASON_BYTES, dtype=torch.uint8, device="cpu")
        encoded = bytes_of(reason or "")[:_REASON_BYTES]
        text[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8, device="cpu")
        self._collective.broadcast_(text)
        return text_of(bytes(text.tolist()).rstrip(b"\0"))

    def _or_save(self, call: Callable[[], T]) -> T:
        """What `call` returns; where it loses a rank or ends the run, the first that is left writes a checkpoint."""
        try:
            return call()
        except (PeerLost, RunBroken) as error:
            rank, survivors = self._collective.rank, set(range(self._collective.size)) - self._collective.lost
            if rank != min(survivors, default=0):
                raise
            self.replica.term += rank  # should another be alive that takes itself for the first, it has another name
            self._saved = True
            if lost := self.replica.finish():
                raise type(error)(f"{error}; {lost}") from error
            raise

    def close(self) -> None:
        self._report.maybe(last=True)
        self._collective.close()  # first: the others fail at once
        if self._collective.rank == 0 and self._ended is None and not self._saved:
            self._saved = True  # or it was tried, which is enough
            if lost := self.replica.finish():
                self.replica.note("checkpoint_failed", f"rank 0 leaves; {lost}")  # none may be left to write one
        self.replica.close()


def check_ranks(collective: Collective, config: ExchangeConfig, worker: int | None) -> None:
    """Raise ConfigError unless all workers, and nobody else, are in one sum: each alone would train a model of its own.

    Launchers may number workers otherwise than ranks, but rank 0 decides and writes checkpoints, and so must worker 0.
    """
    workers, launch = config.num_workers, START.get(config.collective_backend, "start all ranks as one group")
    if collective.size != workers:
        ranks = "1 rank" if collective.size == 1 else f"{collective.size} ranks"
        given = "1 worker was" if workers == 1 else f"{workers} workers were"
        raise ConfigError(
            f"the all-reduce ({config.collective_backend}) sums over {ranks}, but {given} given: "
            + launch.format(workers)
        )
    if worker is not None and (worker == 0) != (collective.rank == 0):
        raise ConfigError(
            f"worker {worker} is rank {collective.rank} of the all-reduce ({config.collective_backend}), "
            f"but worker 0 must be rank 0: {launch.format(workers)}"
        )


def digest_of(parameters: Tensor) -> int:
    """16 bits that differ (but for one case in 65,536) where parameters differ in any bit."""
    return zlib.crc32(parameters.detach().cpu().numpy().data) & 0xFFFF


def write_rows(rows: Tensor, rank: int, own: StepRow) -> None:
    """Fill `rows` [n, ROW_NUMBERS] with rank's own row and zeros.

    Raises:
        ParamServersError: more data points in one gradient than a row holds.
    """
    if not 0 <= own.data_points <= MOST_DATA_POINTS:
        raise ParamServersError(f"one gradient over {own.data_points} data points; at most {MOST_DATA_POINTS} count")
    rows.zero_()
    rows[rank] = rows.new_tensor([*own._replace(step=own.step % 256)])


def read_rows(rows: Tensor) -> list[StepRow]:
    """All ranks' rows from the summed `rows` [n, ROW_NUMBERS]."""
    return [
        StepRow(data_points, bool(rejected), stop, step, digest)
        for data_points, rejected, stop, step, digest in rows.to(torch.int64).tolist()
    ]
