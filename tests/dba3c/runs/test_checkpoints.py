"""Policies out of checkpoints: the newest valid one, in this run's order, or one line that says why not."""

import dataclasses

import pytest
import torch

from dba3c.assembly.model import build_module, initial_parameters, plan_of, spaces_of
from dba3c.config import NetworkConfig, TrainConfig, replace_options
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from dba3c.runs.checkpoints import find_parameters, load_parameters, open_parameters
from dba3c.runs.files import checkpoint_steps
from param_servers.errors import CheckpointError

CARTPOLE = TrainConfig(environment=EnvironmentConfig(env_id="CartPole-v1"), network=NetworkConfig(network="mlp"))


def tear(checkpoint):
    shard = next(checkpoint.glob("shard-0*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))


def test_a_policy_is_what_was_written(make_run, write_checkpoint):
    run = make_run(CARTPOLE)
    parameters = torch.randn(initial_parameters(CARTPOLE)[1].shape)
    policy = load_parameters(write_checkpoint(run, CARTPOLE, step=10, parameters=parameters))
    assert torch.equal(policy.parameters, parameters)
    assert (policy.step, policy.data_points) == (10, 1600)


def test_another_sharding_of_the_run_gives_the_same_network(make_run, write_checkpoint):
    three, one = replace_options(CARTPOLE, num_servers=3), replace_options(CARTPOLE, num_servers=1)
    policy = load_parameters(write_checkpoint(make_run(three), three, step=1))
    network = build_module(one, spaces_of(one))
    layout = plan_of(one, network).layout
    assert torch.equal(policy.parameters_for(layout), layout.flatten(network))


def test_of_a_folder_of_seeds_the_first_plays(make_run, write_checkpoint, tmp_path):
    for seed in (10, 2):
        write_checkpoint(make_run(CARTPOLE, f"Pong/seed-{seed}"), CARTPOLE, step=seed)
    folder, policy = open_parameters(tmp_path / "Pong", None, on_skip=pytest.fail)
    assert (folder.path.name, policy.step) == ("seed-2", 2)
    with pytest.raises(UserError, match="is not a run folder"):
        open_parameters(tmp_path, None, on_skip=pytest.fail)


def test_a_torn_checkpoint_is_named_and_the_one_before_it_used(make_run, write_checkpoint):
    run = make_run(CARTPOLE)
    write_checkpoint(run, CARTPOLE, step=10)
    tear(write_checkpoint(run, CARTPOLE, step=20))
    (run.checkpoints / "step-30.tmp").mkdir()
    lines = []
    assert find_parameters(run.checkpoints, None, lines.append).step == 10
    assert len(lines) == 1 and "step-20 is torn" in lines[0]
    assert checkpoint_steps(run.checkpoints) == [10, 20]
    with pytest.raises(CheckpointError, match="step-20"):
        load_parameters(run.checkpoints / "step-20")


def test_what_is_not_there_is_said_with_what_is(make_run, write_checkpoint):
    run = make_run(CARTPOLE)
    with pytest.raises(UserError, match="has no checkpoint yet"):
        find_parameters(run.checkpoints, None, print)
    tear(write_checkpoint(run, CARTPOLE, step=10))
    with pytest.raises(UserError, match=r"every checkpoint is torn \(10\)"):
        find_parameters(run.checkpoints, None, lambda line: None)
    with pytest.raises(UserError, match="step-10 is torn"):
        find_parameters(run.checkpoints, 10, print)
    write_checkpoint(run, CARTPOLE, step=20)
    assert find_parameters(run.checkpoints, 20, print).step == 20
    with pytest.raises(UserError, match="no checkpoint of step 15; there are 10, 20"):
        find_parameters(run.checkpoints, 15, print)


def test_a_checkpoint_of_another_network_names_the_tensors_that_differ(make_run, write_checkpoint):
    run = make_run(CARTPOLE)
    policy = load_parameters(write_checkpoint(run, CARTPOLE, step=10))
    acrobot = dataclasses.replace(CARTPOLE, environment=EnvironmentConfig(env_id="Acrobot-v1"))
    layout = initial_parameters(acrobot)[0].layout
    with pytest.raises(UserError) as refused:
        policy.parameters_for(layout)
    line = str(refused.value)
    assert "step-10 is of another network" in line and "heads.policy.bias is [2] instead of [3]" in line
    assert "\n" not in line
