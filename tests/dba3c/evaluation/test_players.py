"""A checkpoint of every algorithm plays full games, and its choices are those that its training meant."""

import numpy as np
import pytest
import torch

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.policies import Asked, R2d2Policy
from dba3c.assembly.model import initial_parameters, spaces_of
from dba3c.central_config import CentralConfig
from dba3c.config import NetworkConfig, TrainConfig, replace_options
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.errors import UserError
from dba3c.evaluation.evaluator import evaluate
from dba3c.evaluation.full_games import make_player, protocol_for
from dba3c.runs.checkpoints import TrainedParameters

CARTPOLE = EnvironmentConfig(env_id="CartPole-v1")


def central(env_id, algorithm):
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id),
        algorithm=AlgorithmConfig(algorithm=algorithm),
        central=CentralConfig(mode="central", actors=1),
    )


A2C = TrainConfig(environment=CARTPOLE, network=NetworkConfig(network="mlp"))
R2D2 = replace_options(central("CartPole-v1", "r2d2"), memory_size=8, dueling_size=8)
SAC = replace_options(central("Pendulum-v1", "sac"), hidden_size=8)


def policy_of(config, seed=0):
    plan, parameters = initial_parameters(config)
    noise = torch.randn(parameters.shape, generator=torch.Generator().manual_seed(seed))
    return TrainedParameters(parameters=parameters + 0.1 * noise, layout=plan.layout, step=1, data_points=0)


def player_of(config, actions, seed=0):
    environments = make_vector_environment(config.environment, 1, 0, view="evaluation")
    return make_player(config, environments, policy_of(config), actions, seed)


def choices(player, config, steps=40, num_envs=2):
    """Actions for a fixed sequence of observations."""
    random = np.random.default_rng(0)
    shape = spaces_of(config).observation.shape
    state, chosen = player.initial_state(num_envs), []
    for _ in range(steps):
        observation = random.normal(size=(num_envs, *shape)).astype(np.float32)
        decision = player.act(Asked(observation, state, np.ones(num_envs, np.float32), np.arange(num_envs)))
        state = decision.state
        chosen.append(decision.actions)
        assert decision.value is not None and decision.value.shape == (num_envs,)
    return np.stack(chosen)


@pytest.mark.parametrize("config", [A2C, R2D2, SAC], ids=["actor_critic", "r2d2", "sac"])
def test_every_algorithm_plays_full_games(config):
    evaluation = evaluate(config, policy_of(config), games=3, num_envs=2)
    assert len(evaluation.scores) == 3 and min(evaluation.lengths_steps) > 5


@pytest.mark.parametrize("config", [A2C, SAC], ids=["actor_critic", "sac"])
def test_sampled_actions_follow_their_seed_and_greedy_ones_need_none(config):
    first, again, other = (choices(player_of(config, "sampled", seed), config) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    greedy = [choices(player_of(config, "greedy", seed), config) for seed in (1, 2)]
    assert np.array_equal(*greedy)


def test_greedy_takes_the_likeliest_action():
    player = player_of(A2C, "greedy")
    observation = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    decision = player.act(Asked(observation, player.initial_state(20), np.zeros(20, np.float32), np.arange(20)))
    assert decision.probabilities.sum(-1).numpy() == pytest.approx(np.ones(20))
    assert decision.actions.tolist() == decision.probabilities.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("options", "seen"), [({"reward_scale": 0.1}, 0.1), ({"clip_reward": True, "reward_scale": 3.0}, 1.0), ({}, 1.0)]
)
def test_r2d2_is_shown_rewards_as_it_was_trained(options, seen, monkeypatch):
    config = replace_options(R2D2, **options)
    shown, act = [], R2d2Policy.act

    def spy(player, asked):
        shown.append(asked.reward.copy())
        return act(player, asked)

    monkeypatch.setattr(R2d2Policy, "act", spy)
    evaluation = evaluate(config, policy_of(config), games=1, num_envs=1)
    training = make_vector_environment(config.environment, 1, seed=0)
    training.reset()
    assert shown[0] == 0.0
    assert {float(reward[0]) for reward in shown[1:]} == {np.float32(seen)}
    assert training.step(np.array([0])).reward[0] == np.float32(seen)
    assert evaluation.scores == [float(evaluation.lengths_steps[0])]  # which is what CartPole pays, unscaled


def test_r2d2_tells_what_it_expects_to_gain_in_the_unit_of_returns():
    player = player_of(R2D2, "greedy")
    network = player._network.network
    observation, state = np.ones((1, 4), np.float32), player.initial_state(1)
    asked = Asked(observation, state, np.zeros(1, np.float32), np.zeros(1, np.int64))
    h = network(torch.from_numpy(observation), state[:2], torch.tensor([-1]), torch.zeros(1)).q_values.max().item()
    x = float(player.act(asked).value)
    rescaled = np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x  # Kapturowski et al. 2019, section 2.3
    assert rescaled == pytest.approx(h, rel=1e-3)


def test_r2d2_sees_no_reward_before_a_game_s_first_action():
    observation, values = np.ones((1, 4), np.float32), {}
    for reward in (7.0, 1.0):
        player = player_of(R2D2, "greedy")
        asked = Asked(observation, player.initial_state(1), np.full(1, reward, np.float32), np.zeros(1, np.int64))
        start = player.act(asked)
        after = player.act(asked._replace(state=start.state))
        values[reward] = float(start.value), float(after.value)
    assert values[7.0][0] == values[1.0][0] and values[7.0][1] != values[1.0][1]


def test_r2d2_s_protocol_names_its_random_actions():
    assert protocol_for(R2D2).name.endswith("greedy actions but for 0.1% random ones")


def test_a_checkpoint_of_another_algorithm_is_another_network():
    with pytest.raises(UserError, match="another network"):
        make_player(A2C, make_vector_environment(CARTPOLE, 1, 0), policy_of(R2D2), "greedy", 0)
