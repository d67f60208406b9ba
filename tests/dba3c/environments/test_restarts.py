"""What happens to an environment that breaks: named, restarted, given up."""

import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from dba3c.environments.gymnasium_vector import LoopVectorEnvironment
from dba3c.environments.protocol import EnvironmentFailed
from dba3c.errors import UserError
from tests.dba3c.environments.counting_game import CONFIG, FAULTS, Counting, loop, raising, unmakable


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


def test_an_answer_of_another_shape_is_named_by_what_gave_it():
    class Old(Counting):
        def step(self, action):
            return super().step(action)[:4]

    class Deaf(Counting):
        def step(self):
            raise AssertionError("it is not called")

    (line,) = loop(Deaf(length=100)).step(np.array([0])).failures
    assert "TypeError: " in line and "positional argument" in line and "what step() returned" not in line
    (line,) = loop(Old(length=100)).step(np.array([0])).failures
    assert "step 1): ValueError: what step() returned: not enough values to unpack (expected 5, got 4); restart" in line


def test_a_score_that_is_no_number_is_named_and_never_counted():
    class Shaped(Counting):
        def step(self, action):
            return *super().step(action)[:4], {"score_reward": float("nan") if self.life == self.bad_at else 1.0}

    envs = loop(Shaped(length=100), Shaped(length=2, bad_at=3))
    envs.step(np.array([0, 0]))
    broken = envs.step(np.array([0, 0]))
    (line,) = broken.failures
    assert re.search(r"environment 0 \(seed \d+, step 2\): ValueError: score_reward nan; restart 1 of 2", line)
    assert broken.valid.tolist() == [False, True]
    assert [(episode.environment, episode.score) for episode in broken.episodes] == [(1, 2.0)]
    assert np.isfinite(broken.gained).all()


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
    envs = LoopVectorEnvironment(CONFIG, lambda: Counting(fault=raising, bad_at=1), 1, 7)
    envs.reset()
    with pytest.raises(
        EnvironmentFailed, match=r"environment 0 \(seed \d+, step 1\).*exploded second line; given up after 2"
    ):
        for _ in range(10):
            envs.step(np.array([0]))


def test_an_environment_that_cannot_even_reset_is_given_up():
    class Unborn(Counting):
        def reset(self, *, seed=None, options=None):
            raise OSError("no such level")

    envs = LoopVectorEnvironment(CONFIG, Unborn, 2, 7)
    line = r"environment 0 \(seed \d+, step 0\): OSError: no such level; given up"
    with pytest.raises(EnvironmentFailed, match=line):
        envs.reset()


def test_a_new_environment_that_cannot_be_made_is_one_more_failed_restart():
    makers = [lambda: Counting(fault=raising, bad_at=1), unmakable, lambda: Counting(length=100)]
    envs = LoopVectorEnvironment(CONFIG, lambda: makers.pop(0)(), 1, 7)
    envs.reset()
    broken = envs.step(np.array([0]))
    first, second = broken.failures
    assert "step 1): RuntimeError: the physics exploded second line; restart 1 of 2" in first
    assert re.search(r"environment 0 \(seed \d+, step 0\): OSError: the port is in use; restart 2 of 2", second)
    assert not broken.valid[0] and broken.truncated[0]
    assert [envs.step(np.array([0])).observation[0, 0] for _ in range(2)] == [0, 1]


def test_environments_that_can_no_longer_be_made_are_given_up_and_closed_once():
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

    made = [Closing(length=100), Closing(fault=raising, bad_at=2)]
    makers = [lambda: made[0], lambda: made[1], *[unmakable] * 9]
    envs = LoopVectorEnvironment(CONFIG, lambda: makers.pop(0)(), 2, 7)
    envs.reset()
    envs.step(np.array([0, 0]))
    line = r"environment 1 \(seed \d+, step 0\): OSError: the port is in use; given up after 2 restarts"
    with pytest.raises(EnvironmentFailed, match=line):
        envs.step(np.array([0, 0]))
    envs.close()
    assert closed == [made[1], made[0]]


def test_an_environment_that_cannot_be_played_is_refused_before_others_are_made():
    class Text(Counting):
        observation_space = gymnasium.spaces.Text(5)

    made = []
    with pytest.raises(UserError, match="Text is not supported"):
        LoopVectorEnvironment(CONFIG, lambda: made.append(Text()) or made[-1], 4, 7)
    assert len(made) == 1


def test_one_that_cannot_be_closed_is_named_and_keeps_no_other_from_being_closed(capsys):
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

    class Stuck(Counting):
        def close(self):
            raise RuntimeError("the window is gone")

    others = Closing(), Closing()
    envs = loop(others[0], Stuck(), others[1])
    envs.close()
    envs.close()
    assert sorted(map(id, closed)) == sorted(map(id, others))
    line = "tests.game:make environment 1 did not close: RuntimeError: the window is gone"
    assert capsys.readouterr().err == f"dba3c: warning: {line}\n"


def test_a_restarted_environment_has_another_seed():
    seen = []

    class Remembering(Counting):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            return super().reset(seed=seed)

    queue = [Remembering(fault=raising, bad_at=1, length=1), Remembering(length=2)]
    envs = LoopVectorEnvironment(CONFIG, lambda: queue.pop(0), 1, 7)
    envs.reset()
    for _ in range(5):
        envs.step(np.array([0]))
    assert len(seen) == 3  # the first, the restarted one's, and its second game, which goes on with its generator
    assert seen[0] != seen[1] and seen[2] is None
