"""Films: every picture of the game, whole files or none."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from dba3c.algorithms.policies import Decision
from dba3c.assembly.model import initial_parameters
from dba3c.config import NetworkConfig, TrainConfig, replace_options
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from dba3c.evaluation.full_games import GamesAbandoned
from dba3c.recording import recorder
from dba3c.recording.recorder import RecordedGame, record_game
from dba3c.recording.videos import FILM_PANEL, GIF_PANEL, GifWriter, Mp4Writer, Overlay, enlarge, shrink
from dba3c.roles import RunProcess
from dba3c.runs.checkpoints import CheckpointWatch, TrainedParameters
from dba3c.runs.folder import RunFolder


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    game = EnvironmentConfig(env_id="ALE/Breakout-v5", max_episode_frames=400)
    return TrainConfig(environment=game, network=NetworkConfig(network="small"))


def untrained(config: TrainConfig) -> TrainedParameters:
    plan, parameters = initial_parameters(config)
    return TrainedParameters(step=0, data_points=0, layout=plan.layout, parameters=parameters)


def decoded(path: Path) -> list[np.ndarray]:
    with imageio.get_reader(path) as reader:
        return list(reader.iter_data())


def test_a_film_shows_the_whole_game_in_colour_and_the_same_seed_films_the_same_game(
    config: TrainConfig, tmp_path: Path
) -> None:
    policy = untrained(config)
    game = record_game(config, policy, tmp_path / "videos" / "a.mp4")
    again = record_game(config, policy, tmp_path / "videos" / "b.mp4")
    assert game == again
    assert json.loads((tmp_path / "videos" / "a.mp4.json").read_text())["score"] == game.score
    pictures = decoded(tmp_path / "videos" / "a.mp4")
    assert len(pictures) == game.pictures == 2 * game.length_steps + 1  # 2 a step of 4 frames, and the first
    assert pictures[0].shape == (420, 320, 3)
    assert len({picture.tobytes() for picture in pictures}) > 20
    assert any(np.ptp(picture.astype(int), axis=2).max() > 60 for picture in pictures)  # not grey


def test_the_overlay_stands_beside_the_game_in_the_film_and_in_the_gif(config: TrainConfig, tmp_path: Path) -> None:
    gif, bare, seen = tmp_path / "game.gif", tmp_path / "bare.gif", []
    game = record_game(
        config, untrained(config), tmp_path / "game.mp4", gif=gif, overlay=True, on_step=lambda *now: seen.append(now)
    )
    assert seen[-1] == (game.length_steps, game.score) and len({step for step, _ in seen}) == game.length_steps + 1
    picture = decoded(tmp_path / "game.mp4")[10]
    assert picture.shape[0] == 420 and picture.shape[1] > 320
    assert picture[:, 320:].max() > 100  # something is written there
    assert game.pictures > len(imageio.mimread(gif, memtest=False)) > 20
    (shown,) = imageio.mimread(gif, memtest=False)[10:11]
    assert shown.shape[:2] == (210, 160 + GIF_PANEL.width) and np.ptp(shown[:, 160:]) > 100
    record_game(config, untrained(config), tmp_path / "bare.mp4", gif=bare)
    assert imageio.mimread(bare, memtest=False)[0].shape[:2] == (210, 160)


class ToldAtTheEnd(gymnasium.Env):
    """Four steps that cost a point each; the game's score comes with the last."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        ends = self.steps == 4
        return np.zeros(1, np.float32), -1.0, ends, False, {"score_reward": 10.0} if ends else {}

    def render(self):
        return np.zeros((24, 32, 3), np.uint8)


def test_the_last_score_of_a_film_is_the_game_s_also_where_it_comes_with_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "recorded_games", sys.modules[__name__])
    game = EnvironmentConfig(env_id="recorded_games:ToldAtTheEnd")
    config, shown = TrainConfig(environment=game, network=NetworkConfig(network="mlp")), []
    told = record_game(
        config, untrained(config), tmp_path / "game.mp4", on_step=lambda step, score: shown.append(score)
    )
    assert shown == [0.0, -1.0, -2.0, -3.0, 10.0] and told.score == 10.0


def test_each_bar_has_its_number_and_the_bars_of_eighteen_actions_fit_beside_a_small_picture() -> None:
    for size, height in ((FILM_PANEL, 420), (GIF_PANEL, 210)):
        panels = []
        for likely in (0.2, 0.8):
            probabilities = np.full((1, 18), (1 - likely) / 17, np.float32)
            probabilities[0, 17] = likely
            decision = Decision(np.array([0]), np.zeros(1), (), torch.ones(1), torch.from_numpy(probabilities))
            overlay = Overlay([f"ACTION {index}" for index in range(18)], size)
            panels.append(overlay.beside(np.zeros((height, 10, 3), np.uint8), 0.0, 1, decision)[:, 10:])
        last_row = np.flatnonzero((panels[0] != panels[1]).any(axis=(1, 2))).max()
        assert height - 4 * size.line < last_row < height
        numbers = [
            panel[: height // 2, -4 * size.margin :] for panel in panels
        ]  # beside bars that end far left of them
        assert (numbers[0] != numbers[1]).any()


def test_a_film_that_is_given_up_leaves_no_file(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(GamesAbandoned):
        record_game(config, untrained(config), tmp_path / "game.mp4", should_stop=lambda: "enough")
    assert list(tmp_path.iterdir()) == []


def test_a_film_without_its_gif_is_made_again(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "game.gif").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*game.gif"):
        record_game(config, untrained(config), tmp_path / "game.mp4", gif=tmp_path / "game.gif")
    assert not (tmp_path / "game.mp4.json").exists()  # by which a film counts as made


def test_a_small_picture_is_enlarged_in_a_gif() -> None:
    assert shrink(np.zeros((10, 20, 3), np.uint8)).shape == (100, 200, 3)
    assert shrink(np.zeros((210, 160, 3), np.uint8)).shape == (210, 160, 3)
    assert shrink(np.zeros((480, 640, 3), np.uint8)).shape == (180, 240, 3)


def test_without_ffmpeg_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr("imageio_ffmpeg._io.get_ffmpeg_exe", none)
    with pytest.raises(UserError, match=r"game.mp4: No ffmpeg exe"), Mp4Writer(tmp_path / "game.mp4", 30.0) as video:
        video.add(np.zeros((32, 32, 3), np.uint8))


def test_an_mp4_decodes_to_as_many_pictures_as_were_filmed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with Mp4Writer(tmp_path / "game.mp4", 30.0) as video:
        for _ in range(17):
            video.add(random.integers(0, 255, (48, 31, 3), dtype=np.uint8))
    pictures = decoded(tmp_path / "game.mp4")
    assert len(pictures) == video.pictures == 17 and pictures[0].shape == (48, 32, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["game.mp4"]


def test_a_picture_of_another_size_ends_a_film_with_one_line_and_no_file(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"pictures of one size, and got \[60, 40, 3\] after \[40, 60, 3\]"),
        Mp4Writer(tmp_path / "game.mp4", 30.0) as video,
    ):
        video.add(np.zeros((40, 60, 3), np.uint8))
        video.add(np.zeros((60, 40, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_the_count_of_a_film_s_pictures_reads_nothing_that_is_meant_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *of, **options: given.update(options) or real(*of, **options))
    with Mp4Writer(tmp_path / "game.mp4", 30.0) as video:
        video.add(np.zeros((32, 32, 3), np.uint8))
    assert given["stdin"] == subprocess.DEVNULL


def test_a_low_wide_picture_is_enlarged_as_far_as_can_be_encoded(tmp_path: Path) -> None:
    with Mp4Writer(tmp_path / "game.mp4", 30.0) as video:
        video.add(enlarge(np.zeros((4, 200, 3), np.uint8)))
    assert decoded(tmp_path / "game.mp4")[0].shape == (4 * 80, 200 * 80, 3)
    assert enlarge(np.zeros((210, 160, 3), np.uint8)).shape == (420, 320, 3)


def test_a_gif_of_a_slow_game_that_stands_still_is_written(tmp_path: Path) -> None:
    gif = GifWriter(0.5)
    for _ in range(400):
        gif.add(np.zeros((20, 16, 3), np.uint8))
    assert gif.save(tmp_path / "game.gif") == 400


def test_an_mp4_of_nothing_is_an_error_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="0 of 0 pictures"), Mp4Writer(tmp_path / "game.mp4", 30.0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_mp4_that_cannot_take_its_place_is_one_line_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").mkdir()
    with (
        pytest.raises(UserError, match=r"cannot write .*film.mp4: Is a directory"),
        Mp4Writer(tmp_path / "film.mp4", 30.0) as video,
    ):
        video.add(np.zeros((32, 32, 3), np.uint8))
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]


def test_a_gif_of_a_long_game_is_thinned_out_and_stays_below_its_limit(tmp_path: Path) -> None:
    gif, random = GifWriter(30.0), np.random.default_rng(0)
    for _ in range(2000):
        gif.add(random.integers(0, 255, (60, 48, 3), dtype=np.uint8))
    kept = gif.save(tmp_path / "game.gif", limit_bytes=100_000)
    assert len(imageio.mimread(tmp_path / "game.gif", memtest=False)) == kept <= 600
    assert (tmp_path / "game.gif").stat().st_size <= 100_000


@pytest.mark.parametrize(("pictures_per_s", "pictures"), [(15.0, 300), (60.0, 1200), (15.0, 1)])
def test_a_gif_of_a_short_game_is_shown_at_the_game_s_own_speed(
    tmp_path: Path, pictures_per_s: float, pictures: int
) -> None:
    gif = GifWriter(pictures_per_s)
    for number in range(pictures):
        gif.add(np.full((20, 16, 3), number % 251, np.uint8))
    gif.save(tmp_path / "game.gif")
    with Image.open(tmp_path / "game.gif") as shown:
        frames = ImageSequence.all_frames(shown, lambda frame: frame.copy())
    shown_s = sum(frame.info["duration"] for frame in frames) / 1000
    assert shown_s == pytest.approx(pictures / pictures_per_s, abs=0.01)


def test_a_gif_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    gif = GifWriter(30.0)
    with pytest.raises(UserError, match="no pictures"):
        gif.save(tmp_path / "game.gif")
    gif.add(np.zeros((20, 16, 3), np.uint8))
    with pytest.raises(UserError, match="cannot write"):
        gif.save(tmp_path / "missing" / "game.gif")


def test_the_recorder_keeps_its_pace_after_a_film_of_an_earlier_life_and_says_that_there_is_none(
    make_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    game = EnvironmentConfig(env_id="CartPole-v1")
    config = replace_options(TrainConfig(environment=game, network=NetworkConfig(network="mlp")), recording_every=5)
    run, first = make_run(config), untrained(config)
    came = iter([replace(first, step=step) for step in range(100, 220, 10)])
    filmed, film = [], SimpleNamespace(score=7.0)
    monkeypatch.setattr(CheckpointWatch, "wait", lambda self: next(came, None))
    monkeypatch.setattr(recorder, "shows", lambda path, policy: policy.step == 100)
    monkeypatch.setattr(recorder, "record_game", lambda config, policy, *_, **__: filmed.append(policy.step) or film)
    recorder.recorder(RunProcess(run, config, 0, 0))
    assert filmed == [150, 200] and "nothing" not in capsys.readouterr().out
    (run.checkpoints / "step-30").mkdir()
    recorder.recorder(RunProcess(run, config, 0, 0))
    said = f"the run ended before anything was filmed: `dba3c record {run.path}` films step 30"
    assert said in capsys.readouterr().out


def test_the_recorder_films_a_step_that_was_made_anew_and_none_twice(
    make_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    game = EnvironmentConfig(env_id="CartPole-v1")
    config = replace_options(TrainConfig(environment=game, network=NetworkConfig(network="mlp")), recording_every=1)
    run, first = make_run(config), untrained(config)
    anew = replace(first, parameters=torch.zeros_like(first.parameters))
    policies = iter([first, first, anew, anew])
    monkeypatch.setattr(CheckpointWatch, "wait", lambda self: next(policies, None))
    filmed = []

    def record(config: TrainConfig, policy: TrainedParameters, path: Path, **how: Any) -> RecordedGame:
        filmed.append(policy)
        return record_game(config, policy, path, **how)

    monkeypatch.setattr(recorder, "record_game", record)
    recorder.recorder(RunProcess(run, config, 0, 0))
    assert filmed == [first, anew]
    film = run.videos / "step-0.mp4"
    told = film.with_name("step-0.mp4.json")
    assert json.loads(told.read_text())["parameters_sha256"] == anew.sha256
    told.write_text("{}")  # of a version that did not say it
    assert recorder.shows(film, first)
    told.unlink(), told.mkdir()
    assert recorder.shows(film, anew)  # what cannot be read is not "none there"
    told.rmdir()
    assert not recorder.shows(film, anew)
