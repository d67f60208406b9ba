"""Before a run is started: what its roles will build is built once, in a process that has torch, so that what cannot be
is one line. ``launch.local.run`` has it forked, and reads the line."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from dba3c.assembly.model import check_buildable
from dba3c.config import TrainConfig
from dba3c.errors import RUN_BROKEN_EXIT, USER_ERROR_EXIT, UserError, warn_on_stderr
from dba3c.workers.own_code_check import check_own_code
from launch.local.machine_check import check_disk
from param_servers.errors import CheckpointError, ConfigError, ParamServersError

MATRIX, PRODUCTS = 512, 5
SLOWER = 1.2
"""So many times as long in bfloat16 as in float32 is worth a line."""


def main(words: Sequence[str]) -> int:
    """Words: the configuration as JSON, the run's folder, "resume" or "". Prints why not, last."""
    text, run_dir, goes_on = words
    config = TrainConfig.from_json(text)
    torch.set_num_threads(1)
    try:
        parameters = check_buildable(config, Path(run_dir) / "checkpoints" if goes_on else None)
        check_own_code(config)
        check_disk(Path(run_dir), parameters, config.exchange.keep_checkpoints)
        if config.network.precision == "bfloat16":
            warn_where_it_is_slow()
    except (UserError, ConfigError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return USER_ERROR_EXIT
    except ParamServersError as error:
        print(error, file=sys.stderr)
        return RUN_BROKEN_EXIT
    return 0


def warn_where_it_is_slow() -> None:
    """Processors that compute in bfloat16 are twice as fast in it; on others, and in some virtual machines, it is
    slower than float32."""
    ratio = _product_s(torch.bfloat16) / _product_s(torch.float32)
    if ratio > SLOWER:
        warn_on_stderr(f"bfloat16 takes {ratio:.1f} times as long as float32 on this processor: --precision float32")


def _product_s(dtype: torch.dtype) -> float:
    """Of two matrices; the quickest, since what else is busy can only slow it."""
    matrix, took_s = torch.ones(MATRIX, MATRIX, dtype=dtype), []
    for _ in range(PRODUCTS):
        start_s = time.perf_counter()
        matrix @ matrix
        took_s.append(time.perf_counter() - start_s)
    return min(took_s)
