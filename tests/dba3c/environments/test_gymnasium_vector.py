"""Single Gymnasium environments in a loop: autoreset, truncation, and where observations go."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.gymnasium_vector import LoopVectorEnvironment
from dba3c.environments.protocol import environment_seed
from dba3c.environments.spaces import ObservationCodec
from dba3c.errors import UserError
from tests.dba3c.environments.counting_game import CONFIG, Counting, loop, raising


def test_the_last_observation_is_the_true_one_and_the_next_step_is_the_reset():
    envs = loop(Counting(length=2), Counting(length=3, truncates=True))
    steps = [envs.step(np.array([0, 0])) for _ in range(4)]
    assert [t.observation[:, 0].tolist() for t in steps] == [[1, 1], [2, 2], [0, 3], [1, 0]]
    assert [t.terminated.tolist() for t in steps] == [[False, False], [True, False], [False, False], [False, False]]
    assert [t.truncated.tolist() for t in steps] == [[False, False], [False, False], [False, True], [False, False]]
    assert [t.valid.tolist() for t in steps] == [[True, True], [True, True], [False, True], [True, False]]
    assert [t.reward.tolist() for t in steps] == [[10, 10], [10, 10], [0, 10], [10, 0]]
    assert [(e.score, e.length_steps, e.environment) for t in steps for e in t.episodes] == [(20, 2, 0), (30, 3, 1)]


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


def test_ends_may_be_arrays_of_one():
    class Hand(Counting):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, np.array([terminated]), np.array([truncated]), info

    envs = loop(Hand(length=2), Counting(length=2))
    transitions = [envs.step(np.array([0, 0])) for _ in range(4)]
    for transition in transitions:
        assert transition.terminated.shape == transition.truncated.shape == transition.valid.shape == (2,)
        assert transition.terminated[0] == transition.terminated[1]
    assert any(transition.terminated.all() for transition in transitions)


def test_a_reward_may_be_an_array_of_one_and_of_two_is_named():
    class Square(Counting):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, -np.square(np.array([2.0, 3.0][: self.t])), *rest

    envs = loop(Square(length=9))
    assert envs.step(np.array([0])).reward.tolist() == [-4.0]
    (failure,) = envs.step(np.array([0])).failures
    assert "what step() returned: can only convert an array of size 1" in failure


class Shaped(Counting):
    """Its score is told with a game's last step alone."""

    def step(self, action):
        *played, _ = super().step(action)
        return *played, {"score_reward": 1.0} if self.t == self.length else {}


def test_a_score_that_is_told_at_the_end_alone_holds_no_shaped_rewards():
    envs = loop(Shaped(length=3), Shaped(length=5))
    transitions = [envs.step(np.array([0, 0])) for _ in range(12)]
    episodes = [episode for transition in transitions for episode in transition.episodes]
    assert [(episode.environment, episode.score, episode.length_steps) for episode in episodes] == [
        (0, 1.0, 3), (1, 1.0, 5), (0, 1.0, 3), (0, 1.0, 3), (1, 1.0, 5),
    ]  # fmt: skip
    assert [transition.gained.tolist() for transition in transitions[:5]] == [[10, 10]] * 2 + [[1, 0], [0, 0], [0, 1]]
    assert transitions[0].reward.tolist() == [10, 10]


def test_a_function_that_gives_the_same_environment_again_is_refused():
    one = Counting()
    with pytest.raises(UserError, match=r"tests.game:make gave the same object twice: it must make a new one at each"):
        LoopVectorEnvironment(CONFIG, lambda: one, 2, seed=0)


def test_an_environment_that_broke_at_its_first_reset_is_told_with_the_first_step():
    failing = iter([True, False])

    class Late(Counting):
        def reset(self, **options):
            if next(failing, False):
                raise OSError("no server yet")
            return super().reset(**options)

    envs = LoopVectorEnvironment(CONFIG, Late, 1, seed=0)
    envs.reset()
    first, second = envs.step(np.array([0])), envs.step(np.array([0]))
    assert len(first.failures) == 1 and "no server yet" in first.failures[0] and not second.failures


def test_observations_are_never_written_to_again():
    envs = loop(Counting(length=100))
    kept = [envs.step(np.array([0])).observation for _ in range(5)]
    assert [o[0, 0] for o in kept] == [1, 2, 3, 4, 5]


def test_rewards_are_clipped_only_where_configured_and_what_counts_as_score_never():
    config = EnvironmentConfig(env_id="tests.game:make", clip_reward=True)
    for chosen, reward in ((config, 1), (CONFIG, 10)):
        transition = loop(Counting(), config=chosen).step(np.array([0]))
        assert (transition.reward[0], transition.gained[0]) == (reward, 10)


def test_a_step_is_one_frame_and_neither_a_reset_nor_a_step_that_broke_is_any():
    envs = loop(Counting(length=2), Counting(fault=raising, bad_at=3))
    frames = [envs.step(np.zeros(2, np.int64)).frames.tolist() for _ in range(5)]
    assert frames == [[1, 1], [1, 1], [0, 0], [1, 0], [1, 1]]


def test_pendulum_is_truncated_at_200_steps_with_its_last_observation_to_bootstrap_from():
    envs = make_vector_environment(EnvironmentConfig(env_id="Pendulum-v1"), 2, seed=0)
    alone = gymnasium.make("Pendulum-v1")
    alone.reset(seed=environment_seed(0, 1))
    envs.reset()
    action = np.full((2, 1), 0.5, np.float32)
    for _ in range(199):
        transition = envs.step(action)
        alone.step(action[1])
        assert not transition.truncated.any() and not transition.terminated.any() and not transition.episodes
    last = envs.step(action)
    assert last.truncated.all() and last.valid.all() and not last.terminated.any()
    assert last.observation[1].tolist() == alone.step(action[1])[0].tolist()
    assert [(e.length_steps, e.truncated, e.terminated) for e in last.episodes] == [(200, True, False)] * 2
    after = envs.step(action)
    assert not after.valid.any() and not after.truncated.any()
    assert (after.observation != last.observation).any()
    envs.close()
    alone.close()


def test_an_id_whose_package_is_missing_says_what_to_install(monkeypatch):
    def not_installed(*args, **kwargs):
        raise gymnasium.error.DependencyNotInstalled('No module named mujoco, run `pip install "gymnasium[mujoco]"`')

    monkeypatch.setattr(gymnasium, "make", not_installed)
    with pytest.raises(UserError, match=r"HalfCheetah-v5 cannot be made: .*pip install .gymnasium\[mujoco\]") as caught:
        make_vector_environment(EnvironmentConfig(env_id="HalfCheetah-v5"), 1, 0)
    assert "\n" not in str(caught.value)
