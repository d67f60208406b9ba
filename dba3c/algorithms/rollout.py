"""A rollout: T steps of B environments, with the graph that chose the actions kept for the loss.

Legend: T rollout length, B environments, P distribution parameters.

An on-policy learner computes its loss on exactly the forward pass that chose the actions, so that pass is done once:
``Collector.collect`` keeps the policy and values with their autograd graph, and ``Agent.gradient`` differentiates
through them. Frames are not kept at all: what the graph needs of them it has saved itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dba3c.environments.protocol import Episode, Experience


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What T steps of B environments gave, and the graph of the policy and value that chose them."""

    policy_logits: Tensor
    """[T, B, P] float32, with graph."""
    values: Tensor
    """[T, B] float32, with graph."""
    actions: Tensor
    """[T, B] int64, or [T, B, D]; time t is the transition (observation_t, action_t) → reward_t."""
    rewards: Tensor
    """[T, B] float32."""
    terminated: Tensor
    """[T, B] bool, training view (a lost life counts where configured)."""
    truncated: Tensor
    """[T, B] bool."""
    valid: Tensor
    """[T, B] bool: False where the step was autoreset's extra one, which is no experience."""
    bootstrap_value: Tensor
    """[B] float32: value of the observation after the last step, without graph."""
    experience: Experience
    """What the environments did."""
    episodes: list[Episode]
    """Games that ended inside the rollout, with their unclipped scores."""
    observations: Tensor | None = None
    """[T, B, ...] that were acted on, where they are kept (PPO)."""
    failures: tuple[str, ...] = ()
    """One line for each environment that broke and was started anew."""

    @property
    def data_points(self) -> int:
        """Transitions that train."""
        return int(self.valid.sum())

    @property
    def reward_mean(self) -> float:
        """Of the steps that train: a reset's 0 is no reward."""
        return float((self.rewards * self.valid).sum()) / max(1, self.data_points)


class EpisodeStarts:
    """Tells after each step of B environments which observations begin an episode: those after a whole game's end.

    `terminated` and `valid` would not do. A lost life may be `terminated` though the game goes on, and the step after
    it may be a FIRE, which is as little `valid` as a reset is; an evaluation, which plays whole games, remembers across
    both. So a game has ended when it is reported, or `truncated` (an environment that broke reports no game).
    """

    def __init__(self, num_envs: int) -> None:
        self._ended = np.zeros(num_envs, dtype=bool)

    def __call__(self, truncated: np.ndarray, episodes: Iterable[Episode]) -> np.ndarray:
        """The step just taken, truncated [B] bool and the games it finished → [B] bool: its observation is a first."""
        first, self._ended = self._ended, truncated.copy()
        for episode in episodes:
            self._ended[episode.environment] = True
        return first
