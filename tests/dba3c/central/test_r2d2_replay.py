"""What R2D2 replays is what was acted on, bit for bit, whatever lies behind the first frame of a game or a link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.policies import Asked, Decision
from dba3c.assembly.model import build_model, spaces_of
from dba3c.central.learner import build_trainer, check_trainable
from dba3c.central.r2d2 import R2d2Trainer
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from dba3c.metrics.writer import Sections
from tests.dba3c.central.in_process import InProcessServing

T, ENVS = 10, 3
BREAKOUT = TrainConfig(
    environment=EnvironmentConfig(env_id="ALE/Breakout-v5", env_threads=1, max_episode_frames=160),
    algorithm=AlgorithmConfig(algorithm="r2d2"),
    central=CentralConfig(mode="central", actors=1, envs_per_actor=ENVS, actor_groups=1, unroll_length=T),
    replay=ReplayConfig(replay_capacity=3000, replay_start=1, burn_in=3, memory_size=8, dueling_size=8),
)


class RandomPolicy:
    """Acts at random, and remembers what it was shown."""

    version = 0

    def __init__(self) -> None:
        self.shown: list[np.ndarray] = []
        self._rng = np.random.default_rng(0)

    def initial_state(self, num_envs: int) -> tuple:
        return (torch.zeros(num_envs, 8), torch.zeros(num_envs, 8), torch.zeros(num_envs, 1))

    def load(self, parameters: object, version: int) -> None: ...

    def act(self, asked: Asked) -> Decision:
        self.shown.append(asked.observation.copy())
        size = len(asked.observation)
        return Decision(self._rng.integers(4, size=size), np.zeros(size, np.float32), asked.state)


class Acting:
    """One group, its trainer, and the stacks of the complete unrolls [t, B, K·C, H, W]."""

    def __init__(self, environment: dict) -> None:
        config = replace(BREAKOUT, environment=replace(BREAKOUT.environment, **environment))
        spaces = spaces_of(config)
        self.policy = RandomPolicy()
        self.serving = InProcessServing(config, self.policy)  # type: ignore[arg-type]
        trainer = build_trainer(config, build_model(config, spaces).network, spaces, range(1), 0)
        assert isinstance(trainer, R2d2Trainer)
        self.trainer, self.unrolls = trainer, 0

    def act(self, unrolls: int) -> None:
        for _ in range(unrolls):
            taken = self.serving.collect(1, Sections())
            self.trainer.take(taken)
            self.unrolls += 1

    def redial(self) -> None:
        """The link breaks in the middle of games and of an unroll, whose steps are lost."""
        for _ in range(4):
            self.serving.service.turn()
        del self.policy.shown[self.unrolls * T :]
        service = self.serving.service
        ((key, group),) = service.groups.items()
        group.begin_link()
        service.states[key] = self.policy.initial_state(ENVS)
        service.store.begin(key, service.states[key])

    def replayed(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(stacks replayed, stacks acted on [L + 1, K·C, H, W], first [L + 1]) of many sequences."""
        replay, shown, found = self.trainer._replay, np.stack(self.policy.shown), []
        sample = replay.sample(4 * len(replay), np.random.default_rng(1))
        for b, (leaf, start) in enumerate(zip(sample.leaves, sample.births, strict=True)):
            first = sample.sequences.first[:, b].numpy()
            acted = shown[start : start + len(first), leaf // replay.blocks]
            # a stack of colour frames is one image while acting
            found.append((sample.sequences.observations[:, b].numpy().reshape(acted.shape), acted, first))
        return found


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"episodic_life": True},
        {"episodic_life": True, "fire_on_life_loss": True},
        {"grayscale": False, "frame_stack": 3},
    ],
    ids=["ale", "lives", "lives and fire", "colour"],
)
def test_r2d2_replays_the_stacks_that_were_acted_on(environment: dict) -> None:
    acting = Acting(environment)
    try:
        acting.act(unrolls=16)
        sequences = acting.replayed()
        assert len({acted.tobytes() for _, acted, _ in sequences}) > 20
        assert sum(first[1:].sum() for _, _, first in sequences) > 5  # games began within them
        for stacks, acted, _ in sequences:
            np.testing.assert_array_equal(stacks, acted)
    finally:
        acting.serving.close("")


def test_what_was_seen_before_a_link_broke_is_replayed_behind_what_came_after() -> None:
    acting = Acting({"max_episode_frames": 10_000})
    try:
        acting.act(unrolls=4)
        acting.redial()
        acting.act(unrolls=8)
        behind = []
        for stacks, acted, first in acting.replayed():
            np.testing.assert_array_equal(stacks, acted)
            behind += [stack[:-1].any() for stack in stacks[first]]
        assert any(behind)  # the games went on: older frames were there, not zeros
    finally:
        acting.serving.close("")


@pytest.mark.parametrize("capacity", [10**13, 10**18])
def test_a_replay_that_no_memory_holds_is_one_line_with_its_option(capacity: int) -> None:
    config = replace(BREAKOUT, replay=replace(BREAKOUT.replay, replay_capacity=capacity))
    with pytest.raises(UserError, match=f"no memory for a replay of {capacity:,} agent steps: .*--replay-capacity$"):
        check_trainable(config)
