"""ViZDoom, where it is installed: its screens, its actions, and why a game ended."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest

from dba3c.config import replace_options
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.errors import UserError
from dba3c.roles import RunProcess
from dba3c.runs.folder import RunFolder
from dba3c.workers.worker import worker
from launch.cli.presets import preset

pytest.importorskip("vizdoom")

CONFIG = EnvironmentConfig(env_id="vizdoom/basic")
NOTHING, LEFT, RIGHT, ATTACK = range(4)


@pytest.fixture
def envs():
    """Two games of the basic scenario."""
    made = make_vector_environment(CONFIG, 2, seed=1)
    yield made
    made.close()


def test_screens_are_rgb_72_by_96_and_change(envs):
    first = envs.reset()
    assert first.shape == (2, 3, 72, 96) and first.dtype == np.uint8
    assert envs.action_space.n == 4
    moved = envs.step(np.full(2, RIGHT)).observation
    assert (first != moved).mean() > 0.05


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not here")
def test_an_engine_dies_with_its_player_however_that_dies():
    code = (
        "from dba3c.environments.config import EnvironmentConfig\n"
        "from dba3c.environments.factory import make_vector_environment\n"
        "games = make_vector_environment(EnvironmentConfig(env_id='vizdoom/basic'), 1, seed=1)\n"
        "games.reset()\n"
        "print('ready', flush=True)\ninput()"
    )
    player = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert player.stdin is not None and player.stdout is not None
    with player.stdin, player.stdout:
        assert player.stdout.readline() == "ready\n"
        engines = psutil.Process(player.pid).children(recursive=True)
        assert any("vizdoom" in engine.name() for engine in engines)
        player.kill()
        player.wait(10)
        assert not psutil.wait_procs(engines, timeout=20)[1]


def test_a_game_is_played_where_setpriv_is_too_old(tmp_path, monkeypatch):
    old = tmp_path / "setpriv"
    old.write_text("#!/bin/sh\necho \"setpriv: unrecognized option '--pdeathsig'\" >&2\nexit 1\n")
    old.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    envs = make_vector_environment(replace(CONFIG, environment_restarts=0), 1, seed=1)
    assert envs.reset().any()
    envs.close()


def test_doing_nothing_runs_out_of_time_and_is_truncated_with_a_true_last_screen(envs):
    envs.reset()
    transitions = [envs.step(np.full(2, LEFT if t % 2 else RIGHT)) for t in range(76)]
    ends = [t for t, transition in enumerate(transitions) if transition.truncated.all()]
    assert ends == [74]  # 300 tics, 4 a step
    assert not any(transition.terminated.any() for transition in transitions)
    assert (transitions[74].observation != transitions[73].observation).any()
    assert not transitions[75].valid.any()
    assert [episode.score for episode in transitions[74].episodes] == [-300.0, -300.0]


def test_a_player_who_walks_to_the_red_monster_and_shoots_scores(envs):
    """What is observed is enough to play by, and actions do what they say."""
    observation, episodes = envs.reset(), []
    for _ in range(200):
        red, green, blue = observation[:, :, 20:45].astype(int).transpose(1, 0, 2, 3)
        redness = red - (green + blue) // 2
        weight = np.where(redness > 60, redness, 0).sum(axis=1)
        column = (weight * np.arange(96)).sum(axis=1) / np.maximum(weight.sum(axis=1), 1)
        action = np.where(column < 44, LEFT, np.where(column > 52, RIGHT, ATTACK))
        transition = envs.step(np.where(weight.any(axis=1), action, NOTHING))
        observation = transition.observation
        episodes += transition.episodes
    scores = [episode.score for episode in episodes]
    assert len(scores) > 10 and np.mean(scores) > 50 and all(episode.terminated for episode in episodes)


def test_an_unknown_scenario_names_the_close_ones():
    with pytest.raises(UserError, match="did you mean vizdoom/basic"):
        make_vector_environment(EnvironmentConfig(env_id="vizdoom/basik"), 1, seed=0)


def test_the_preset_trains_the_network_with_memory_on_real_games(tmp_path):
    """How well it learns is in results/algorithms: here a few real updates, with games that end within them."""
    config = replace_options(
        preset("vizdoom", "vizdoom/basic", workers=1),
        exchange="local",
        num_workers=1,
        envs_per_worker=4,
        total_frames=4 * 4 * 10 * 12,
        track=(),
        metrics_window_s=0.0,
    )
    assert config.network.network == "small_lstm"
    with RunFolder.create(tmp_path / "run", config.to_json()) as folder:
        worker(RunProcess(folder, config, rank=0, incarnation=0))
        records = [json.loads(line) for line in folder.metrics_file("worker", 0).open()]
    steps = [record for record in records if record["kind"] == "step"]
    scores = [record["score"] for record in records if record["kind"] == "episode"]
    assert len(steps) >= 12 and all(np.isfinite(record["loss_total"]) for record in steps)
    assert scores and all(-410 <= score <= 100 for score in scores)  # unscaled: −300 to −400 where nothing was hit
