"""What is filmed is the game that the agent plays: observation for observation, and each picture its own moment."""

import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch

from dba3c.environments.atari_protocols import with_protocol
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.normalization import use_statistics
from dba3c.environments.protocol import EnvironmentFailed
from dba3c.errors import UserError
from dba3c.recording.cameras import make_camera

BREAKOUT = EnvironmentConfig()
GAMES = {
    "v4": with_protocol(BREAKOUT, "v4-no-sticky"),
    "v5, sticky": with_protocol(BREAKOUT, "v5"),
    "2017": with_protocol(BREAKOUT, "2017"),
    "fixed RGB": replace(with_protocol(BREAKOUT, "v5"), grayscale=False, frame_skip=3, noop_max=0),
    "flicker": with_protocol(EnvironmentConfig(env_id="ALE/SpaceInvaders-v5"), "v5"),
    "cut": replace(with_protocol(BREAKOUT, "v5"), max_episode_frames=101),
    "guarded": replace(with_protocol(BREAKOUT, "v4-no-sticky"), stuck_guard_steps=5, noop_max=0),
}


@pytest.fixture
def opened():
    """Closes what is appended to it."""
    environments = []
    yield environments
    for envs in environments:
        envs.close()


@pytest.mark.parametrize("name", GAMES)
def test_the_filmed_game_is_that_of_the_vector_environment(name, opened):
    config, seed, random = GAMES[name], 7, np.random.default_rng(3)
    camera = make_camera(config, seed)
    vector = make_vector_environment(config, 3, seed, view="evaluation")
    opened += [camera.environments, vector]
    assert np.array_equal(camera.environments.reset()[0], vector.reset()[0])
    action, games, into_second = 0, 0, 0
    for _ in range(700):
        action = int(random.integers(vector.action_space.n)) if random.random() < 0.3 else action
        filmed = camera.environments.step(np.full(1, action))
        played = vector.step(np.full(3, action))
        assert np.array_equal(filmed.observation[0], played.observation[0])
        assert (filmed.reward[0], filmed.terminated[0], filmed.truncated[0]) == (
            played.reward[0],
            played.terminated[0],
            played.truncated[0],
        )
        assert [e[:4] for e in filmed.episodes] == [e[:4] for e in played.episodes if e.environment == 0]
        pictures = camera.pictures(filmed.observation)
        assert {picture.shape for picture in pictures} == {(210, 160, 3)}
        games += len(filmed.episodes)
        into_second += games > 0
        if into_second == 30:  # autoreset is one step of both
            break


@pytest.mark.parametrize("name", ["v4", "2017", "fixed RGB", "flicker"])
def test_the_newest_picture_shows_what_the_agent_sees(name, opened):
    config = GAMES[name]
    camera = make_camera(config, 1)
    opened.append(camera.environments)
    observation, random = camera.environments.reset(), np.random.default_rng(0)
    resized_by = "bilinear" if name == "2017" else "area"  # its protocol samples pixels, ale-py averages areas
    for _ in range(60):
        observation = camera.environments.step(random.integers(3, size=1)).observation
        picture = torch.from_numpy(camera.pictures(observation)[-1].copy()).permute(2, 0, 1)[None].float()
        small = torch.nn.functional.interpolate(picture, (84, 84), mode=resized_by)[0]
        if config.grayscale:
            seen, small = observation[0, -1], (small * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0)
        else:
            seen = observation[0, -3:]
        # resized by other means: edges differ a little, a picture of another moment would by more at the sprites
        assert np.abs(seen.astype(float) - small.numpy()).mean() < 2.5


def statistics_of(config):
    """What twenty steps of its environments have shown."""
    seen = make_vector_environment(config, 2, 0)
    seen.reset()
    for step in range(20):
        seen.step(np.full(2, step % seen.action_space.n))
    seen.close()
    return seen.statistics.to_dict()


@pytest.mark.parametrize("name", ["v4", "2017"])
def test_a_filmed_game_s_observations_are_normalised_where_the_run_s_were(name, opened):
    config = replace(GAMES[name], normalize_observations=True)
    camera = make_camera(config, 7)
    vector = make_vector_environment(config, 1, 7, "evaluation")
    opened += [camera.environments, vector]
    for environments in opened:
        use_statistics(environments, statistics_of(config), "step-1")
    assert repr(camera.environments.observation_space) == repr(vector.observation_space)
    assert np.array_equal(camera.environments.reset(), vector.reset())
    for step in range(30):
        filmed, played = (environments.step(np.full(1, step % 3)) for environments in opened)
        assert np.array_equal(filmed.observation, played.observation)


def test_a_step_of_four_frames_is_two_pictures_and_the_speed_is_the_console_s(opened):
    for name, pictures, per_s in (("v4", 2, 30.0), ("fixed RGB", 3, 60.0), ("2017", 1, 20.0)):
        camera = make_camera(GAMES[name], 0)
        opened.append(camera.environments)
        observation = camera.environments.reset()
        assert len(camera.pictures(observation)) == 1
        observation = camera.environments.step(np.zeros(1, int)).observation
        assert (len(camera.pictures(observation)), camera.pictures_per_s) == (pictures, per_s)
        assert camera.action_names == ["NOOP", "FIRE", "RIGHT", "LEFT"]


def test_pictures_that_come_apart_from_the_game_are_an_error(opened):
    camera = make_camera(GAMES["v4"], 0)
    opened.append(camera.environments)
    camera.environments.reset()
    camera.environments._consoles._screens.reset(seed=np.array([99], np.int32))  # another game
    with pytest.raises(EnvironmentFailed, match="came apart"):
        for _ in range(500):
            camera.environments.step(np.ones(1, int))


class Drawn(gymnasium.Env):
    """Draws what it observed as a shade; 5 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2, start=5)
    mode = "rgb_array"

    def __init__(self):
        self.render_mode = self.mode

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == 5, False, {}

    def render(self):
        return np.full((21, 31, 3), 10 * self.t, np.uint8)


class Inexact(Drawn):
    """Its observations have a number more to say than its space has, which nobody reads."""

    observation_space = gymnasium.spaces.Dict(t=gymnasium.spaces.Box(0, 255, (1,), np.float32))

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return {"t": super().reset()[0], "more": 1}, {}

    def step(self, action):
        observation, *rest = super().step(action)
        return {"t": observation, "more": 1}, *rest


class Undrawn(Drawn):
    mode = None


class Undrawable(Drawn):
    def render(self):
        raise RuntimeError("an OpenGL platform library\nhas not been loaded")


class Pictured(Undrawn):
    observation_space = gymnasium.spaces.Box(0, 255, (24, 32, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset()
        return self.render_as_observation(), {}

    def step(self, action):
        return self.render_as_observation(), *super().step(action)[1:]

    def render_as_observation(self):
        return np.arange(24 * 32 * 3, dtype=np.uint8).reshape(24, 32, 3)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """This file as a module that configurations can name."""
    monkeypatch.setitem(sys.modules, "filmed_games", sys.modules[__name__])


def test_an_environment_that_draws_itself_is_filmed_by_its_own_pictures(opened):
    camera = make_camera(EnvironmentConfig(env_id="filmed_games:Drawn"), 0)
    opened.append(camera.environments)
    observation = camera.environments.reset()
    assert camera.pictures(observation)[0][0, 0].tolist() == [0, 0, 0]
    observation = camera.environments.step(np.full(1, 5)).observation
    assert camera.pictures(observation)[0][0, 0].tolist() == [10, 10, 10]
    assert camera.pictures_per_s == 7.0 and camera.action_names == ["5", "6"]


def test_an_environment_whose_observation_is_a_picture_is_filmed_by_it(opened):
    camera = make_camera(EnvironmentConfig(env_id="filmed_games:Pictured"), 0)
    opened.append(camera.environments)
    picture = camera.pictures(camera.environments.reset())[0]
    assert np.array_equal(picture, Pictured().render_as_observation())


def test_the_picture_is_the_observation_before_it_was_normalised(opened):
    config = EnvironmentConfig(env_id="filmed_games:Pictured", normalize_observations=True)
    camera = make_camera(config, 0)
    opened.append(camera.environments)
    use_statistics(camera.environments, statistics_of(config), "step-1")
    observation = camera.environments.reset()
    assert np.array_equal(camera.pictures(observation)[0], Pictured().render_as_observation())
    assert len(np.unique(observation)) == 1  # nothing moved


def test_an_environment_that_is_trained_though_its_spaces_are_not_exact_is_filmed(opened, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Inexact-v0", "filmed_games:Inexact")
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    for make in (make_camera, lambda config, seed: make_vector_environment(config, 1, seed)):
        made = make(EnvironmentConfig(env_id="Inexact-v0"), 0)
        environments = getattr(made, "environments", made)
        opened.append(environments)
        environments.reset()
        environments.step(np.zeros(1, int))


def test_doom_is_filmed_at_its_own_speed(opened):
    pytest.importorskip("vizdoom")
    camera = make_camera(EnvironmentConfig(env_id="vizdoom/basic"), 0)
    opened.append(camera.environments)
    assert camera.pictures_per_s == 35 / 4


def test_an_environment_with_nothing_to_see_is_refused_in_one_line():
    with pytest.raises(UserError, match="render_mode='rgb_array'"):
        make_camera(EnvironmentConfig(env_id="filmed_games:Undrawn"), 0)


def test_whatever_an_environment_s_drawing_raises_is_one_line_that_says_what_may_help(opened, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    camera = make_camera(EnvironmentConfig(env_id="filmed_games:Undrawable"), 0)
    opened.append(camera.environments)
    line = "Undrawable cannot be drawn: RuntimeError: an OpenGL platform library has not been loaded .*MUJOCO_GL is egl"
    with pytest.raises(UserError, match=line):
        camera.pictures(camera.environments.reset())


def test_a_registered_environment_is_made_to_draw(opened):
    pytest.importorskip("pygame")
    camera = make_camera(EnvironmentConfig(env_id="CartPole-v1"), 0)
    opened.append(camera.environments)
    picture = camera.pictures(camera.environments.reset())[0]
    assert picture.shape == (400, 600, 3) and len(np.unique(picture)) > 2


def test_an_environment_that_a_module_in_the_current_directory_registers_is_filmed(opened, tmp_path, monkeypatch):
    (tmp_path / "here_registered.py").write_text(
        "import gymnasium\ngymnasium.register('HereRegistered-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # without the current directory, as in a console script
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    camera = make_camera(EnvironmentConfig(env_id="here_registered:HereRegistered-v0"), 0)
    opened.append(camera.environments)
    assert camera.action_names == ["0", "1"]


def test_a_registered_environment_that_draws_nothing_is_filmed_by_what_it_shows(opened, monkeypatch):
    for name in ("Pictured", "Undrawn"):
        spec = gymnasium.envs.registration.EnvSpec(f"{name}-v0", f"filmed_games:{name}")
        monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    camera = make_camera(EnvironmentConfig(env_id="Pictured-v0"), 0)
    opened.append(camera.environments)
    assert np.array_equal(camera.pictures(camera.environments.reset())[0], Pictured().render_as_observation())
    with pytest.raises(UserError, match="Undrawn-v0 cannot be filmed"):
        make_camera(EnvironmentConfig(env_id="Undrawn-v0"), 0)


@pytest.mark.parametrize("modes", [[], ["human"]])
def test_an_environment_that_takes_any_render_mode_and_draws_none_is_filmed_by_what_it_shows(
    opened, monkeypatch, modes
):
    class KeepsTheMode(Pictured):
        def __init__(self, render_mode=None):
            super().__init__()
            self.metadata, self.render_mode = {"render_modes": modes}, render_mode

    spec = gymnasium.envs.registration.EnvSpec("KeepsTheMode-v0", KeepsTheMode)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    camera = make_camera(EnvironmentConfig(env_id="KeepsTheMode-v0"), 0)
    opened.append(camera.environments)
    assert np.array_equal(camera.pictures(camera.environments.reset())[0], Pictured().render_as_observation())


def test_what_cannot_be_filmed_without_pygame_says_which_extra_has_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    camera = make_camera(EnvironmentConfig(env_id="CartPole-v1"), seed=0)
    with pytest.raises(UserError, match=r"pip install 'dba3c\[classic-control\]'"):
        camera.pictures(camera.environments.reset())
