"""A run with one checkpoint, to be evaluated."""

import json

import pytest

from dba3c.config import NetworkConfig, TrainConfig, replace_options
from dba3c.environments.config import EnvironmentConfig
from dba3c.runs.checkpoints import load_parameters

CARTPOLE = replace_options(
    TrainConfig(environment=EnvironmentConfig(env_id="CartPole-v1"), network=NetworkConfig(network="mlp")),
    evaluation_games=4,
)


@pytest.fixture
def cartpole(make_run, write_checkpoint):
    """A live run, and its first checkpoint."""
    run = make_run(CARTPOLE)
    return run, load_parameters(write_checkpoint(run, CARTPOLE, step=10))


def records(run, kind, rank=0):
    lines = run.metrics_file("evaluator", rank).read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]
