"""Before a run is started: what its roles will build is built once, in a process that has torch, so that what cannot be
is one line. ``launch.local.run`` has it forked, and reads the line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from dba3c.assembly.model import check_buildable
from dba3c.config import TrainConfig
from dba3c.errors import RUN_BROKEN_EXIT, USER_ERROR_EXIT, UserError
from dba3c.workers.own_code_check import check_own_code
from launch.local.machine_check import check_disk
from param_servers.errors import CheckpointError, ConfigError, ParamServersError


def main(words: Sequence[str]) -> int:
    """Words: the configuration as JSON, the run's folder, "resume" or "". Prints why not, last."""
    text, run_dir, goes_on = words
    config = TrainConfig.from_json(text)
    torch.set_num_threads(1)
    try:
        parameters = check_buildable(config, Path(run_dir) / "checkpoints" if goes_on else None)
        check_own_code(config)
        check_disk(Path(run_dir), parameters, config.exchange.keep_checkpoints)
    except (UserError, ConfigError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return USER_ERROR_EXIT
    except ParamServersError as error:
        print(error, file=sys.stderr)
        return RUN_BROKEN_EXIT
    return 0
