"""A trained agent acts as the player of evaluated games does, on the environment's own observations."""

import json
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.policies import Asked, R2d2Policy
from dba3c.assembly.model import Spaces, build_model
from dba3c.central_config import CentralConfig
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.normalization import RunningStatistics, use_statistics
from dba3c.errors import UserError
from dba3c.evaluation.agents import load
from dba3c.evaluation.full_games import make_player
from dba3c.networks import ActorCriticNetwork, build_network
from dba3c.runs.checkpoints import load_parameters
from param_servers.config import ExchangeConfig

ACT = R2d2Policy.act


def config_of(env_id: str, network: str = "mlp", **environment: bool) -> TrainConfig:
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id, **environment), network=NetworkConfig(network=network)
    )


@pytest.fixture
def trained(make_run, write_checkpoint):
    """trained(config): the folder of a run with a checkpoint of step 10."""

    def make(config: TrainConfig) -> Path:
        run = make_run(config)
        write_checkpoint(run, config, step=10)
        return run.path

    return make


class Parts(gymnasium.Env):
    """Observes a Dict; its actions begin at 5."""

    observation_space = spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    action_space = spaces.Discrete(2, start=5)


def test_an_agent_that_remembers_acts_as_the_player_of_evaluated_games(trained):
    config = config_of("CartPole-v1", "mlp_lstm")
    folder = trained(config)
    agent, environments = load(folder), make_vector_environment(config.environment, 1, 0)
    player = make_player(config, environments, load_parameters(folder / "checkpoints" / "step-10"), "greedy", seed=0)
    observations = np.random.default_rng(0).standard_normal((30, 3, 4)).astype(np.float32)
    state = player.initial_state(3)
    for batch in observations:
        decision = player.act(Asked(batch, state, np.zeros(3, np.float32), np.arange(3)))
        assert agent.act(batch, greedy=True).tolist() == decision.actions.tolist()
        state = decision.state


@pytest.mark.parametrize("name", ["losses_that_are_gone:Loss", f"{__name__}:raises_when_made"])
def test_an_agent_acts_without_the_loss_that_it_learned_by(name, trained):
    config = replace(config_of("CartPole-v1"), algorithm=AlgorithmConfig(algorithm=name))
    assert load(trained(config)).act(np.zeros(4, np.float32)) in (0, 1)


def raises_when_made(action_space: spaces.Discrete, settings: AlgorithmConfig) -> None:
    raise RuntimeError("its data are gone")


def by_bounds(observation_space: spaces.Box, action_space: spaces.Discrete) -> ActorCriticNetwork:
    """A network of somebody's own, which divides by what observations can be at most."""
    network = build_network("mlp", observation_space, action_space)
    network.bounds = observation_space.high.tolist()
    return network


def test_a_network_of_ones_own_is_made_for_the_observations_that_it_was_trained_on(trained):
    config = config_of("CartPole-v1", f"{__name__}:by_bounds", normalize_observations=True)
    environments = make_vector_environment(config.environment, 1, 0)
    learner = build_model(config, Spaces(environments.observation_space, environments.action_space)).network.network
    folder = trained(config)
    seen = RunningStatistics(4)
    seen.update(np.eye(4))
    (folder / "observations").mkdir(exist_ok=True)
    (folder / "observations" / "worker-0.json").write_text(json.dumps({"10": seen.to_dict()}))
    assert load(folder).network.bounds == learner.bounds == [10.0] * 4


def test_an_agent_normalises_pixels_as_the_environments_of_evaluated_games_do(trained):
    config = config_of("ALE/Breakout-v5", "small", normalize_observations=True)
    folder = trained(config)
    seen = make_vector_environment(config.environment, 2, 0)
    seen.reset()
    for action in range(20):
        seen.step(np.full(2, action % 4))
    (folder / "observations").mkdir(exist_ok=True)
    (folder / "observations" / "worker-0.json").write_text(json.dumps({"10": seen.statistics.to_dict()}))
    policy = load_parameters(folder / "checkpoints" / "step-10")
    plain = replace(config.environment, normalize_observations=False)
    raw, normalized = (make_vector_environment(each, 2, 5, "evaluation") for each in (plain, config.environment))
    use_statistics(normalized, policy.observation_statistics, "step-10")
    agent, player = load(folder), make_player(config, normalized, policy, "greedy", seed=0)
    shown, given = raw.reset(), normalized.reset()
    for _ in range(10):
        assert np.array_equal(agent._statistics.normalize(shown), given)
        actions = player.act(Asked(given, (), np.zeros(2, np.float32), np.arange(2))).actions
        assert agent.act(shown, greedy=True).tolist() == actions.tolist()
        shown, given = raw.step(actions).observation, normalized.step(actions).observation


def test_what_an_agent_remembers_is_of_its_game_and_gone_with_it(trained):
    agent = load(trained(config_of("CartPole-v1", "mlp_lstm")))
    first = np.full((2, 4), 0.5, np.float32)

    def memory() -> list[np.ndarray]:
        return [part.numpy().copy() for part in agent._state]

    agent.act(first)
    fresh = memory()
    agent.act(first)
    older = memory()
    with pytest.raises(UserError, match=r"remembers 2 games, not 1: call reset\(\)"):
        agent.act(first[0])
    agent.reset()
    agent.act(first)
    assert all(np.array_equal(*pair) for pair in zip(memory(), fresh, strict=True))
    agent.reset(ended=[False, True])
    agent.act(first)
    for now, old, new in zip(memory(), older, fresh, strict=True):
        assert np.allclose(now[0], old[0]) and np.allclose(now[1], new[1])
        assert not np.allclose(old, new)


def test_one_observation_gives_one_action_that_the_environment_takes(trained):
    agent = load(trained(config_of("MountainCarContinuous-v0")))
    with gymnasium.make("MountainCarContinuous-v0") as env:
        observation, _ = env.reset(seed=1)
        assert env.action_space.contains(agent.act(observation))
    assert agent.act(np.stack([observation] * 4)).shape == (4, 1)
    assert agent.act(observation, greedy=True) == agent.act(observation, greedy=True)
    assert agent.step == 10


def test_dict_observations_come_one_by_one_or_as_a_list(trained):
    agent = load(trained(config_of(f"{__name__}:Parts")))
    one = {"place": 2, "speed": np.array([0.1, -0.2], np.float32)}
    assert agent.act(one) in (5, 6)
    assert set(agent.act([one] * 8).tolist()) <= {5, 6}
    with pytest.raises(UserError, match="observation without 'speed'"):
        agent.act({"place": 2})


def test_atari_s_observations_are_those_that_it_was_trained_on(trained):
    agent = load(trained(config_of("ALE/Breakout-v5", "small")))
    assert agent.observation_space.shape == (4, 84, 84)
    assert agent.action_space.contains(agent.act(np.zeros((4, 84, 84), np.uint8)))


def test_its_network_is_there_as_a_module_which_decides_as_it_does(trained):
    agent = load(trained(config_of("CartPole-v1")))
    observation = np.asarray([[0.1, -0.2, 0.05, 0.3]], np.float32)
    assert not agent.network.training
    with torch.no_grad():
        logits = agent.network(torch.from_numpy(observation), ())[0]
    assert agent.act(observation, greedy=True) == logits.argmax(dim=-1).numpy()


def test_an_observation_that_does_not_fit_is_named(trained):
    agent = load(trained(config_of("CartPole-v1")))
    with pytest.raises(UserError, match=r"CartPole-v1: observation of shape \(3,\) instead of \(4,\)"):
        agent.act(np.zeros(3, np.float32))
    with pytest.raises(UserError, match="NaN"):
        agent.act(np.full(4, np.nan, np.float32))


def test_an_environment_that_cannot_be_made_is_one_line(trained, monkeypatch):
    folder = trained(config_of(f"{__name__}:Parts"))

    def no_levels(env):
        raise FileNotFoundError(2, "No such file or directory", "levels.txt")

    monkeypatch.setattr(Parts, "__init__", no_levels)
    with pytest.raises(UserError, match=r"test_agents:Parts cannot be made: FileNotFoundError: .*levels\.txt"):
        load(folder)


def test_what_is_not_of_as_many_games_is_refused_in_one_line(trained):
    agent = load(trained(config_of("CartPole-v1", "mlp_lstm")))
    three = np.zeros((3, 4), np.float32)
    agent.reset(ended=[True])  # of no games yet
    agent.act(three, reward=[1.0, 2.0, 3.0])
    for observation, reward, line in (
        ((three[0], {}), 0.0, "CartPole-v1: "),
        (three[:0], 0.0, "CartPole-v1: a batch of no observations"),
        (three, [1.0, 2.0], r"reward of shape \[2\] for 3 games"),
        (three, "much", "reward: could not convert"),
    ):
        with pytest.raises(UserError, match=line):
            agent.act(observation, reward=reward)
    before = [part.clone() for part in agent._state]
    for ended, line in (([True], r"ended of shape \[1\] for 3 games"), ([[True], [True, False]], "ended: ")):
        with pytest.raises(UserError, match=line):
            agent.reset(ended)
    assert all(map(torch.equal, agent._state, before)) and agent._state


def test_another_default_dtype_of_torch_is_named_where_an_agent_is_loaded(trained):
    folder = trained(config_of("CartPole-v1"))
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(UserError, match=r"networks are float32, but torch's default dtype is torch\.float64"):
            load(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    assert load(folder).act(np.zeros(4, np.float32)) in (0, 1)


def test_what_was_trained_on_a_gpu_plays_where_there_is_none(trained, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = TrainConfig(
        environment=EnvironmentConfig(env_id="CartPole-v1"), network=NetworkConfig(network="mlp", device="cuda")
    )
    folder = trained(config)
    agent = load(folder)
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)
    policy = load_parameters(folder / "checkpoints" / "step-10")
    environments = make_vector_environment(config.environment, 1, 0)
    make_player(config, environments, policy, "greedy", seed=0)
    with pytest.raises(UserError, match="use --device cpu"):  # who trains is told
        build_model(config, Spaces(environments.observation_space, environments.action_space))


@pytest.mark.parametrize(("clip_reward", "seen"), [(False, [0.5, -2.0]), (True, [0.5, -1.0])])
def test_rewards_are_shown_to_r2d2_as_it_was_trained_on_them(trained, monkeypatch, clip_reward, seen):
    environment = EnvironmentConfig(env_id="CartPole-v1", reward_scale=0.1, clip_reward=clip_reward)
    central, algorithm = CentralConfig(mode="central"), AlgorithmConfig(algorithm="r2d2")
    exchange = ExchangeConfig(exchange="local")
    agent = load(trained(TrainConfig(environment=environment, algorithm=algorithm, central=central, exchange=exchange)))
    shown = []
    monkeypatch.setattr(
        R2d2Policy, "act", lambda player, asked: shown.append(asked.reward.tolist()) or ACT(player, asked)
    )
    agent.act(np.zeros((2, 4), np.float32), reward=[5.0, -20.0])
    assert shown == [pytest.approx(seen)]


def test_a_checkpoint_is_loaded_by_its_own_path_too(trained, make_run):
    folder = trained(config_of("CartPole-v1"))
    assert load(folder / "checkpoints" / "step-10").step == 10
    with pytest.raises(UserError, match="no checkpoint of step 11; there are 10"):
        load(folder, step=11)
    with pytest.raises(UserError, match="is not the checkpoint of step 11"):
        load(folder / "checkpoints" / "step-10", step=11)
    with pytest.raises(UserError, match="there is no folder"):
        load(folder.parent / "nowhere")


def test_without_the_statistics_of_a_normalised_run_nothing_is_played(trained):
    folder = trained(config_of("CartPole-v1", normalize_observations=True))
    with pytest.raises(UserError, match="kept no observation statistics"):
        load(folder)
