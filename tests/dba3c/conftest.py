"""Runs and checkpoints for the tests that read them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dba3c.assembly.model import initial_parameters
from dba3c.config import TrainConfig
from dba3c.runs.folder import RunFolder
from param_servers.checkpoint.files import publish, write_shard
from param_servers.layout import ShardPlan

WriteCheckpoint = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path) -> Iterator[Callable[[TrainConfig], RunFolder]]:
    """A live run of a configuration: its folder, with its lock held by this process."""
    runs = []

    def make(config: TrainConfig, name: str = "run") -> RunFolder:
        runs.append(RunFolder.create(tmp_path / name, config.to_json()))
        return runs[-1]

    yield make
    for run in runs:
        run.release()


@pytest.fixture
def write_checkpoint() -> WriteCheckpoint:
    """write_checkpoint(run, config, step=10, parameters=None, keep=5): as the run's servers would write it."""

    def write(run: RunFolder, config: TrainConfig, step: int, parameters: Tensor | None = None, keep: int = 5) -> Path:
        plan, initial = initial_parameters(config)
        return write_parameters(run, plan, step, initial if parameters is None else parameters, keep)

    return write


def write_parameters(run: RunFolder, plan: ShardPlan, step: int, parameters: Tensor, keep: int = 5) -> Path:
    files = [
        write_shard(
            run.checkpoints,
            step=step,
            term=0,
            shard=shard,
            num_shards=plan.num_shards,
            parameters=parameters[part].clone(),
            state={"step": torch.tensor(1.0)},
        )
        for shard, part in enumerate(map(plan.slice_of, range(plan.num_shards)))
    ]
    return publish(run.checkpoints, step, data_points=160 * step, term=0, plan=plan, files=files, keep=keep)
