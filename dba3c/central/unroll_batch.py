"""Batches made of complete unrolls. For the legend and the shift of one see `dba3c.central.unroll`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dba3c.central.unroll import Unroll
from dba3c.central.wire import TERMINATED, TRUNCATED, VALID, first_of
from dba3c.networks import State


@dataclass(frozen=True)
class UnrollBatch:
    """Complete unrolls side by side, as the loss reads them."""

    observation: Tensor
    """[T + 1, N, ...] uint8 or float32, stacked."""
    actions: Tensor
    """[T, N] int64, or [T, N, D]."""
    rewards: Tensor
    """[T, N] float32."""
    terminated: Tensor
    """[T, N] bool."""
    truncated: Tensor
    """[T, N] bool."""
    valid: Tensor
    """[T, N] bool."""
    first: Tensor
    """[T + 1, N] bool: observations that begin an episode; ``initial_state`` is fresh already where row 0 says so."""
    behaviour_log_probs: Tensor
    """[T, N] float32, log μ(a|x) of the policy that acted."""
    versions: np.ndarray
    """[T, groups] int64: the weights that acted."""
    initial_state: State
    """Recurrent state [N, ...] at observation 0."""

    @property
    def data_points(self) -> int:
        """Transitions that train."""
        return int(self.valid.sum())


def batch_of(unrolls: list[Unroll]) -> UnrollBatch:
    """Complete unrolls of equal shape as one batch; copies, so that their memory may be used again."""
    shape, length = unrolls[0].shape, unrolls[0].length
    size = shape.num_envs
    observation = np.empty((length + 1, size * len(unrolls), *shape.observation_shape), shape.dtype)
    for i, unroll in enumerate(unrolls):
        for t in range(length + 1):
            unroll.frames.stacks_into(unroll.history + t, observation[t, i * size : (i + 1) * size])
    flags = np.concatenate([unroll.flags[1:] for unroll in unrolls], axis=1)
    _keep_for_this_stream(unrolls)
    return UnrollBatch(
        observation=torch.from_numpy(observation),
        actions=_joined([unroll.actions for unroll in unrolls]),
        rewards=_joined([unroll.rewards[1:] for unroll in unrolls]),
        terminated=torch.from_numpy(flags & TERMINATED != 0),
        truncated=torch.from_numpy(flags & TRUNCATED != 0),
        valid=torch.from_numpy(flags & VALID != 0),
        first=torch.from_numpy(np.concatenate([first_of(unroll.flags) for unroll in unrolls], axis=1)),
        behaviour_log_probs=_joined([unroll.log_probs for unroll in unrolls]),
        versions=np.stack([unroll.versions for unroll in unrolls], axis=1),
        initial_state=tuple(torch.cat(parts) for parts in zip(*(u.initial_state for u in unrolls), strict=True)),
    )


def _keep_for_this_stream(unrolls: list[Unroll]) -> None:
    """On a GPU, states come from the inference thread's stream: their memory is not free before this one has read."""
    for unroll in unrolls:
        for part in unroll.initial_state:
            if part.is_cuda:
                part.record_stream(torch.cuda.current_stream(part.device))  # type: ignore[no-untyped-call]


def _joined(parts: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts, axis=1))


def stack_states(states: list[State]) -> State:
    """Recurrent states of several groups [B, ...] as one [ΣB, ...]; () for feed-forward networks."""
    if len(states) == 1:
        return states[0]
    return tuple(torch.cat(parts) for parts in zip(*states, strict=True))
