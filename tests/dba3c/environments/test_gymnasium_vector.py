"""Single Gymnasium environments in a loop: autoreset, truncation, and what happens to one that breaks."""

import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from dba3c.environments import EnvironmentConfig, EnvironmentFailed, make_vector_environment
from dba3c.environments.gymnasium_vector import LoopVectorEnvironment
from dba3c.environments.spaces import ObservationCodec

CONFIG = EnvironmentConfig(env_id="tests.game:make", environment_restarts=2)


class Counting(gymnasium.Env):
    """Observes its step number; ends after `length`; misbehaves at step `bad_at` of its life as `fault` says."""

    observation_space = Box(0, 100, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length=3, truncates=False, fault=None, bad_at=2):
        self.length, self.truncates, self.fault, self.bad_at = length, truncates, fault, bad_at
        self.life = self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.life += 1
        observation, reward = np.full(2, self.t, np.float32), 10.0
        if self.fault and self.life == self.bad_at:
            observation, reward = self.fault(observation, reward)
        ended = self.t == self.length
        return observation, reward, ended and not self.truncates, ended and self.truncates, {}


def loop(*environments, config=CONFIG, view="training"):
    """A vector of the given environments, then ones that never end for every restart."""
    queue = [*environments, *[Counting(length=100) for _ in range(9)]]
    envs = LoopVectorEnvironment(config, lambda: queue.pop(0), len(environments), 7, view)
    envs.reset()
    return envs


def raising(observation, reward):
    raise RuntimeError("the physics exploded\nsecond line")


FAULTS = {
    "RuntimeError: the physics exploded": raising,
    "reward nan": lambda observation, reward: (observation, float("nan")),
    "observation with NaN": lambda observation, reward: (observation * np.nan, reward),
    "observation of shape (3,) instead of (2,)": lambda observation, reward: (np.zeros(3, np.float32), reward),
    "observation of dtype complex128": lambda observation, reward: (observation.astype(complex), reward),
}


def test_the_last_observation_is_the_true_one_and_the_next_step_is_the_reset():
    envs = loop(Counting(length=2), Counting(length=3, truncates=True))
    steps = [envs.step(np.array([0, 0])) for _ in range(4)]
    assert [t.observation[:, 0].tolist() for t in steps] == [[1, 1], [2, 2], [0, 3], [1, 0]]
    assert [t.terminated.tolist() for t in steps] == [[False, False], [True, False], [False, False], [False, False]]
    assert [t.truncated.tolist() for t in steps] == [[False, False], [False, False], [False, True], [False, False]]
    assert [t.valid.tolist() for t in steps] == [[True, True], [True, True], [False, True], [True, False]]
    assert [t.reward.tolist() for t in steps] == [[10, 10], [10, 10], [0, 10], [10, 0]]
    assert [(e.score, e.length_steps, e.environment) for t in steps for e in t.episodes] == [(20, 2, 0), (30, 3, 1)]


@pytest.mark.parametrize("what", FAULTS)
def test_an_environment_that_breaks_is_named_and_restarted(what):
    envs = loop(Counting(length=100), Counting(length=100, fault=FAULTS[what]))
    envs.step(np.array([0, 0]))
    broken = envs.step(np.array([0, 0]))
    (line,) = broken.failures
    assert re.search(r"environment 1 \(seed \d+, step 2\)", line)
    assert what in line and "restart 1 of 2" in line and "\n" not in line
    assert broken.valid.tolist() == [True, False]
    assert broken.truncated.tolist() == [False, True]
    assert broken.reward.tolist() == [10, 0]
    assert broken.observation[:, 0].tolist() == [2, 1]  # the last good one, so that the steps before it bootstrap
    after = [envs.step(np.array([0, 0])) for _ in range(2)]
    assert [t.valid.tolist() for t in after] == [[True, False], [True, True]]
    assert [t.observation[:, 0].tolist() for t in after] == [[3, 0], [4, 1]]
    assert not broken.episodes


class Float64(Counting):
    """As MuJoCo's."""

    observation_space = Box(0, 100, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0].astype(np.float64), {}

    def step(self, action):
        observation, *rest = super().step(action)
        return observation.astype(np.float64), *rest


def test_float64_observations_are_written_all_at_once(monkeypatch):
    envs = loop(Float64(), Float64())
    monkeypatch.setattr(ObservationCodec, "write", lambda *_: pytest.fail("one by one"))
    transition = envs.step(np.array([0, 0]))
    assert transition.observation.dtype == np.float32
    assert transition.observation.tolist() == [[1, 1], [1, 1]]


class Hostile:
    """An observation that cannot even be looked at."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("this buffer is gone")


def test_an_observation_that_raises_when_read_is_named_and_its_environment_restarted():
    envs = loop(Counting(length=100), Counting(length=100, fault=lambda _, reward: (Hostile(), reward)))
    envs.step(np.array([0, 0]))
    (line,) = envs.step(np.array([0, 0])).failures
    assert "environment 1 (seed" in line and "this buffer is gone" in line and "restart 1 of 2" in line


def test_floats_from_a_space_of_integers_are_refused():
    class Whole(Counting):
        observation_space = Box(0, 100, (2,), np.int64)

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0].astype(np.int64), {}

    (line,) = loop(Whole()).step(np.array([0])).failures
    assert "observation of dtype float32 instead of int64" in line


def test_an_environment_that_keeps_breaking_is_given_up_with_index_seed_and_step():
    envs = loop(*[Counting(fault=raising, bad_at=1)], config=CONFIG)
    envs._make_env = lambda: Counting(fault=raising, bad_at=1)
    with pytest.raises(EnvironmentFailed, match=r"environment 0 \(seed \d+, step 1\).*exploded; given up after 2"):
        for _ in range(10):
            envs.step(np.array([0]))


def test_an_environment_that_cannot_even_reset_is_given_up():
    class Unborn(Counting):
        def reset(self, *, seed=None, options=None):
            raise OSError("no such level")

    envs = LoopVectorEnvironment(CONFIG, Unborn, 2, 7, "training")
    line = r"environment 0 \(seed \d+, step 0\): OSError: no such level; given up"
    with pytest.raises(EnvironmentFailed, match=line):
        envs.reset()


def test_a_restarted_environment_has_another_seed():
    seen = []

    class Remembering(Counting):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            return super().reset(seed=seed)

    queue = [Remembering(fault=raising, bad_at=1, length=1), Remembering(length=2)]
    envs = LoopVectorEnvironment(CONFIG, lambda: queue.pop(0), 1, 7, "training")
    envs.reset()
    for _ in range(5):
        envs.step(np.array([0]))
    assert len(seen) == 3  # the first, the restarted one's, and its second game, which goes on with its generator
    assert seen[0] != seen[1] and seen[2] is None


def test_observations_are_never_written_to_again_and_go_where_they_are_wanted():
    envs = loop(Counting(length=100))
    kept = [envs.step(np.array([0])).observation for _ in range(5)]
    assert [o[0, 0] for o in kept] == [1, 2, 3, 4, 5]
    buffer = np.zeros((1, 2), np.float32)
    transition = envs.step(np.array([0]), out=buffer)
    assert transition.observation is buffer and buffer[0, 0] == 6


def test_training_rewards_are_clipped_only_where_configured():
    config = EnvironmentConfig(env_id="tests.game:make", clip_reward=True)
    assert loop(Counting(), config=config).step(np.array([0])).reward[0] == 1
    assert loop(Counting(), config=config, view="evaluation").step(np.array([0])).reward[0] == 10
    assert loop(Counting()).step(np.array([0])).reward[0] == 10


def test_cartpole_truncates_at_500_steps_by_its_registered_limit():
    envs = make_vector_environment(EnvironmentConfig(env_id="CartPole-v1"), 4, seed=0)
    envs.reset()
    for _ in range(120):
        transition = envs.step(np.zeros(4, np.int64))
        assert not (transition.terminated & transition.truncated).any()
    assert envs.observation_space.shape == (4,) and envs.action_space.n == 2


def test_an_id_whose_package_is_missing_says_what_to_install():
    pytest.importorskip("gymnasium")
    try:
        import mujoco  # noqa: F401
    except ImportError:
        with pytest.raises(Exception, match="HalfCheetah-v5 cannot be made"):
            make_vector_environment(EnvironmentConfig(env_id="HalfCheetah-v5"), 1, 0)
