"""The same seed gives the same first 1,000 observations; different numbers give different ones."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from dba3c.environments.atari_protocols import with_protocol
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.protocol import environment_seed, environment_seeds, worker_seed

NUM_ENVS, STEPS = 4, 250
FAMILIES = {
    "ale": EnvironmentConfig(),
    "ale 2017": with_protocol(EnvironmentConfig(), "2017"),
    "classic control": EnvironmentConfig(env_id="CartPole-v1"),
    "continuous control": EnvironmentConfig(env_id="Pendulum-v1"),
    "toy text": EnvironmentConfig(env_id="FrozenLake-v1"),
    "mujoco": EnvironmentConfig(env_id="HalfCheetah-v5", normalize_observations=True),
    "vizdoom": EnvironmentConfig(env_id="vizdoom/basic"),
    "football": EnvironmentConfig(env_id="football/academy_empty_goal_close"),
    "your own": EnvironmentConfig(env_id="gymnasium.envs.classic_control:CartPoleEnv"),
}
NEEDS = {"mujoco": "glfw", "vizdoom": "vizdoom.vizdoom", "football": "gfootball"}


def games_after_reset(envs, steps=25):
    """A hash of the first B × steps observations and rewards from a reset on, under a fixed stream of actions."""
    envs.action_space.seed(0)
    digest = hashlib.sha256(envs.reset().tobytes())
    for _ in range(steps - 1):
        transition = envs.step(np.stack([envs.action_space.sample() for _ in range(envs.num_envs)]))
        digest.update(transition.observation.tobytes())
        digest.update(transition.reward.tobytes())
    return digest.hexdigest()


@pytest.fixture
def observations(made):
    """observations(config, seed, steps): of NUM_ENVS environments just made."""
    return lambda config, seed, steps=STEPS: games_after_reset(made(config, NUM_ENVS, seed), steps=steps)


@pytest.fixture
def installed():
    """The configuration of a family; skips where its package is missing."""

    def configure(family):
        if family in NEEDS:
            pytest.importorskip(NEEDS[family])
        return FAMILIES[family]

    return configure


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_first_thousand_observations(family, installed, observations):
    config = installed(family)
    assert observations(config, 11) == observations(config, 11)
    assert observations(config, 11, steps=25) != observations(config, 12, steps=25)


def test_the_number_of_threads_does_not_change_the_games(observations):
    config = EnvironmentConfig()
    assert observations(config, 3, steps=100) == observations(replace(config, env_threads=2), 3, steps=100)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reset_of_all_gives_the_same_games_again(family, installed, made):
    # normalised observations depend on all that was seen before, whatever the games
    config = replace(installed(family), normalize_observations=False)
    envs = made(config, 2, seed=1)
    first = games_after_reset(envs)
    assert games_after_reset(envs) == first


def test_run_worker_index_and_incarnation_all_change_the_seed():
    seeds = {
        environment_seed(worker_seed(run, worker, incarnation), index, restart)
        for run in range(3)
        for worker in range(3)
        for incarnation in range(3)
        for index in range(3)
        for restart in range(3)
    }
    assert len(seeds) == 3**5


def test_seeds_fit_what_the_emulator_takes():
    seeds = environment_seeds(worker_seed(2**40, 7), 1000)
    assert seeds.dtype == np.int32
    assert seeds.min() >= 0 and len(set(seeds.tolist())) == 1000
