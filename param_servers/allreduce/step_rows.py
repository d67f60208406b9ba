"""What each rank says of itself in an all-reduce, beside its gradient.

The buffer that is summed is [gradient | rows]: one row for each rank, in which that rank alone is not zero, so that the
sum hands every row to everybody. A row is whole numbers up to 255, which both float32 and bfloat16 hold exactly.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from param_servers.errors import ParamServersError

ROW_NUMBERS = 7
MOST_DATA_POINTS = 2**24 - 1
_REJECTED, _STOP = 1, 2


class StepRow(NamedTuple):
    """One rank's part in one step."""

    data_points: int
    """Samples its gradient averages over; 0 when it contributes nothing."""
    rejected: bool
    """Its gradient is not finite: it contributes zeros and is left out of the mean."""
    stop: bool
    """The run is to end after this step (rank 0 says so)."""
    step: int
    """Its step modulo 256."""
    digest: int
    """16 bits over its parameters, 0 in steps where they are not compared."""


def write_rows(rows: Tensor, rank: int, own: StepRow) -> None:
    """Fill `rows` [n, ROW_NUMBERS] with rank's own row and zeros.

    Raises:
        ParamServersError: more data points in one gradient than a row holds.
    """
    if not 0 <= own.data_points <= MOST_DATA_POINTS:
        raise ParamServersError(f"one gradient over {own.data_points} data points; at most {MOST_DATA_POINTS} count")
    low, middle, high = own.data_points & 255, own.data_points >> 8 & 255, own.data_points >> 16
    flags = _REJECTED * own.rejected + _STOP * own.stop
    rows.zero_()
    numbers = [low, middle, high, flags, own.step & 255, own.digest & 255, own.digest >> 8 & 255]
    rows[rank] = torch.tensor(numbers, dtype=rows.dtype)


def read_rows(rows: Tensor) -> list[StepRow]:
    """All ranks' rows from the summed `rows` [n, ROW_NUMBERS]."""
    found = []
    for low, middle, high, flags, step, digest_low, digest_high in rows.to(torch.int64).tolist():
        data_points = low | middle << 8 | high << 16
        digest = digest_low | digest_high << 8
        found.append(StepRow(data_points, bool(flags & _REJECTED), bool(flags & _STOP), step, digest))
    return found
