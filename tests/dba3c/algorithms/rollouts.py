"""Random rollouts as autoreset makes them: an invalid step after each true end, none after a lost life."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch


class RandomRollout(NamedTuple):
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    values: np.ndarray
    bootstrap_value: np.ndarray
    ratios: np.ndarray

    def tensors(self) -> list[torch.Tensor]:
        """All but the ratios, as the algorithms take them."""
        return [torch.from_numpy(array) for array in self[:-1]]


def random_rollout(seed: int, length: int = 12, environments: int = 6) -> RandomRollout:
    rng = np.random.default_rng(seed)
    shape = (length, environments)
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    valid = np.ones(shape, bool)
    for b in range(environments):
        reset_next = rng.random() < 0.3  # the rollout before may have ended a game
        for t in range(length):
            if reset_next:
                valid[t, b], reset_next = False, False
                continue
            event = rng.choice(["none", "end", "cut", "life", "both"], p=[0.7, 0.1, 0.08, 0.09, 0.03])
            terminated[t, b] = event in ("end", "life", "both")
            truncated[t, b] = event in ("cut", "both")
            reset_next = event in ("end", "cut", "both")
    rewards = (rng.normal(size=shape) * valid).astype(np.float32)
    values, bootstrap = rng.normal(size=shape).astype(np.float32), rng.normal(size=environments).astype(np.float32)
    ratios = np.exp(rng.normal(size=shape)).astype(np.float32)
    return RandomRollout(rewards, terminated, truncated, valid, values, bootstrap, ratios)
