"""Observations of images and numbers, Dicts and Tuples: what is learned from them needs both."""

import json

import dba3c
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from tests.integration.games import TwoSenses
from tests.integration.runs import Run

GAME = "tests.integration.games:TwoSenses"


def test_environments_in_processes_show_the_same_images_and_numbers_as_the_loop() -> None:
    shown = []
    for processes in (False, True):
        config = EnvironmentConfig(env_id=GAME, environment_processes=processes)
        environments = make_vector_environment(config, num_envs=3, seed=5)
        try:
            rows = [environments.reset()]
            for _ in range(6):
                rows.append(environments.step([0, 1, 0]).observation)
            shown.append([row.tolist() for row in rows])
            assert environments.observation_space.images == ((3, 36, 36),)
        finally:
            environments.close()
    assert shown[0] == shown[1]


def test_what_an_image_and_a_number_say_together_is_learned_and_played(tmp_path) -> None:
    words = ["train", GAME, "--exchange", "local", "--workers", "1", "--lanes", "1", "--total-frames", "300000"]
    words += ["--stop-score", "0.95", "--learning-rate", "2e-3", "--run-dir", str(tmp_path / "run")]
    with Run(*words, folder=tmp_path / "run") as run:
        code, output = run.wait(timeout_s=280)
    assert code == 0, output
    ended = json.loads((tmp_path / "run" / "meta.json").read_text())["lives"][-1]["ended"]
    assert "0.95" in ended["reason"], ended
    agent, game, right = dba3c.load(tmp_path / "run"), TwoSenses(), 0.0
    for seed in range(20):
        observation, _ = game.reset(seed=seed)
        right += game.step(agent.act(observation, greedy=True))[1]
    assert right >= 18


def test_actors_send_images_and_numbers_to_a_learner(tmp_path) -> None:
    words = ["train", GAME, "--mode", "central", "--algorithm", "vtrace", "--actors", "1", "--envs-per-actor", "4"]
    words += [
        "--unroll-length",
        "5",
        "--batch-unrolls",
        "4",
        "--total-frames",
        "400",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    with Run(*words, folder=tmp_path / "run") as run:
        code, output = run.wait(timeout_s=280)
    assert code == 0 and "frames trained on" in output, output
