"""The memory task: who remembers scores 1, who does not scores chance."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dba3c.environments.memory_task import MEMORY_TASK_ID, MemoryCue, register_memory_task


def play(env: MemoryCue, seed: int, remembers: bool) -> tuple[float, int]:
    observation, _ = env.reset(seed=seed)
    cue, score, steps, done = int(observation[:-1].argmax()), 0.0, 0, False
    while not done:
        seen = int(observation[:-1].argmax())
        observation, reward, done, truncated, _ = env.step(np.int64(cue if remembers else seen))
        assert not truncated
        score, steps = score + reward, steps + 1
    return score, steps


@pytest.mark.parametrize("cues", [2, 4])
def test_memory_scores_1_and_its_lack_scores_chance(cues: int) -> None:
    env = MemoryCue(cues=cues, delay_steps=3)
    assert all(play(env, seed, remembers=True) == (1.0, 5) for seed in range(20))
    scores = [play(env, seed, remembers=False)[0] for seed in range(400)]
    assert abs(np.mean(scores)) < 0.15


def test_the_question_looks_the_same_whatever_the_cue() -> None:
    env, asked = MemoryCue(delay_steps=2), set()
    for seed in range(8):
        env.reset(seed=seed)
        later = [tuple(env.step(np.int64(0))[0].tolist()) for _ in range(3)]
        asked.add(tuple(later))
    assert asked == {((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0))}


def test_gymnasium_accepts_it_by_its_id() -> None:
    register_memory_task()
    register_memory_task()
    env = gymnasium.make(MEMORY_TASK_ID, delay_steps=3)
    check_env(env.unwrapped, skip_render_check=True)


def test_the_factory_makes_it_by_its_id_alone() -> None:
    code = (
        "from dba3c.environments.config import EnvironmentConfig\n"
        "from dba3c.environments.factory import make_vector_environment\n"
        "envs = make_vector_environment(EnvironmentConfig(env_id='dba3c/MemoryCue-v0'), 2, seed=0)\n"
        "print(envs.reset(0).shape)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.stdout.strip() == "(2, 3)", said.stderr


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError, match="cues"):
        MemoryCue(cues=1)
