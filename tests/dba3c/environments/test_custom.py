"""`package.module:function`: found, made, and every way it can fail said in one line."""

import sys
import textwrap

import gymnasium
import numpy as np
import pytest

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.errors import UserError

GAME = """
    import gymnasium
    import numpy as np

    class Guess(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.secret = int(self.np_random.integers(2))
            return np.array([self.secret * 2.0 - 1.0], np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), float(action == self.secret), True, False, {}

    def make_env():
        return Guess()

    def make_nothing():
        return None

    a_number = 5

    gymnasium.register("Mine/Guess-v0", make_env)
"""


@pytest.fixture
def game(tmp_path, monkeypatch):
    """A package `mygames` with a module `guess` in the current directory."""
    package = tmp_path / "mygames"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "guess.py").write_text(textwrap.dedent(GAME))
    (package / "broken.py").write_text("1 / 0")
    (package / "needy.py").write_text("import no_such_dependency")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "mygames"]:
        sys.modules.pop(name)
    gymnasium.registry.pop("Mine/Guess-v0", None)


def test_a_function_of_the_current_directory_is_found_and_played(game, made):
    envs = made(EnvironmentConfig(env_id="mygames.guess:make_env"), 8, seed=0)
    secrets = (envs.reset()[:, 0] > 0).astype(np.int64)
    transition = envs.step(secrets)
    assert transition.reward.tolist() == [1.0] * 8
    assert transition.terminated.all() and len(transition.episodes) == 8
    assert 0 < secrets.sum() < 8


def test_gymnasium_s_module_form_is_imported_from_the_current_directory_too(game, made):
    envs = made(EnvironmentConfig(env_id="mygames.guess:Mine/Guess-v0"), 2, seed=0)
    assert envs.action_space.n == 2


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mygames.guess:Mine/Gess-v0", "mygames.guess:Mine/Gess-v0 cannot be made: .*Gess"),
        ("yourgames:Mine/Guess-v0", "no module named yourgames here"),
        ("mygames.guess:make_game", "has no make_game; it has .*make_env"),
        ("mygames.guess:a_number", "a_number is not a function"),
        ("mygames.guess:make_nothing", "must return a gymnasium.Env, not NoneType"),
        ("mygames.other:make_env", "no module named mygames.other here"),
        ("yourgames:make_env", "no module named yourgames here"),
        ("mygames.broken:make_env", "importing mygames.broken raised ZeroDivisionError"),
        ("mygames.needy:make_env", "needs the module no_such_dependency"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(game, name, line):
    with pytest.raises(UserError, match=line) as caught:
        make_vector_environment(EnvironmentConfig(env_id=name), 1, seed=0)
    assert "\n" not in str(caught.value)
