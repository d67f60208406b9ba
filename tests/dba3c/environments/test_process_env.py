"""Environments in processes of their own: the same games, and an end to those that hang or die."""

import sys
import textwrap
from dataclasses import replace

import numpy as np
import psutil
import pytest

from dba3c.environments import EnvironmentConfig, EnvironmentFailed, make_vector_environment
from dba3c.errors import UserError

GAMES = """
    import os, time
    import gymnasium
    import numpy as np

    class Game(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            print("games may print")
            self.t += 1
            if self.t == 2:
                self.at_two()
            return np.array([self.t], np.float32), float(action), False, False, {"score_reward": 1.0}

        def at_two(self):
            pass

    class Hanging(Game):
        def at_two(self):
            time.sleep(3600)

    class Dying(Game):
        def at_two(self):
            os._exit(7)

    class Raising(Game):
        def at_two(self):
            raise ArithmeticError("two is too many")

    class Unmakable(Game):
        def __init__(self):
            raise OSError("no such map")
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Makes the configuration of one of the games above."""
    (tmp_path / "process_games.py").write_text(textwrap.dedent(GAMES))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield lambda name, **options: EnvironmentConfig(
        env_id=f"process_games:{name}", environment_processes=True, **options
    )
    sys.modules.pop("process_games", None)


@pytest.fixture
def made():
    """make_vector_environment, and everything it made closed."""
    environments = []

    def make(*args, **kwargs):
        environments.append(make_vector_environment(*args, **kwargs))
        return environments[-1]

    yield make
    for envs in environments:
        envs.close()


def test_processes_play_the_same_games_as_the_loop(made):
    loop = EnvironmentConfig(env_id="Pendulum-v1")
    vectors = [made(loop, 2, seed=3), made(replace(loop, environment_processes=True), 2, seed=3)]
    assert (vectors[0].reset() == vectors[1].reset()).all()
    generator = np.random.default_rng(0)
    for _ in range(210):
        actions = generator.normal(size=(2, 1)).astype(np.float32)
        one, other = (envs.step(actions) for envs in vectors)
        assert all((a == b).all() for a, b in zip(one[:5], other[:5], strict=True))
        assert one.episodes == other.episodes


def test_actions_start_where_the_environment_starts_them_and_scores_are_its_own(made, config):
    envs = made(config("Game"), 2, seed=0)
    envs.reset()
    assert envs.step(np.array([0, 2])).reward.tolist() == [5.0, 7.0]
    assert envs._score.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Hanging", r"EnvironmentHangs: no answer within 5 s; its process is ended"),
        ("Dying", r"EnvironmentDied: its process ended with exit code 7"),
        ("Raising", r"ArithmeticError: two is too many"),
    ],
)
def test_what_hangs_dies_or_raises_is_named_and_restarted_then_given_up(made, config, name, line):
    envs = made(config(name, environment_timeout_s=5.0, environment_restarts=1), 1, seed=0)
    envs.reset()
    envs.step(np.array([0]))
    broken = envs.step(np.array([0]))
    assert line in broken.failures[0] and "environment 0 (seed " in broken.failures[0]
    assert ", step 2)" in broken.failures[0]
    assert not broken.valid[0] and broken.truncated[0]
    assert envs.step(np.array([0])).observation[0, 0] == 0  # the new one's reset
    envs.step(np.array([0]))
    with pytest.raises(EnvironmentFailed, match="given up after 1 restarts"):
        envs.step(np.array([0]))


def test_a_game_that_cannot_be_made_is_one_line(made, config):
    with pytest.raises(UserError, match="process_games:Unmakable cannot be made: .*OSError: no such map"):
        made(config("Unmakable"), 2, seed=0)


def test_closing_ends_every_process(made, config):
    envs = made(config("Game"), 3, seed=0)
    envs.reset()
    children = [process for process in psutil.Process().children() if "process_child" in " ".join(process.cmdline())]
    assert len(children) == 3
    envs.close()
    assert not any(process.is_running() for process in children)
