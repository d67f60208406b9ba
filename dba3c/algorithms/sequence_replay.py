"""Prioritized replay of overlapping sequences, for R2D2 (Kapturowski et al. 2019; priorities of Schaul et al. 2016).

Legend: E environments, n of them in a call, Q steps kept of each, U burn-in steps of a sequence and L that train, K
stacked frames, B sequences of a sample, [*F] frame shape, C channels first where frames are stacked, H size of a part
of the recurrent state.

Each environment has a ring of Q steps, so that a frame is stored once, whatever stacks and sequences it is part of.
Every ``stride`` steps of it a sequence begins; it may be sampled once its U + L + 1 observations are there, until the
first of the frames that it needs is overwritten. It is drawn by its priority, a leaf's weight is p^α:

    P(i) = p_i^α / Σ_j p_j^α          w_i = (M·P(i))^−β / max_j w_j          (M sequences held; j over the sample)

Stacks are rebuilt from single frames, oldest first (`frame_rows`).
"""

from typing import NamedTuple

import numpy as np
import torch

from dba3c.algorithms.frame_rows import FrameRows, Whole
from dba3c.algorithms.r2d2 import Sequences


class Steps(NamedTuple):
    """``stride`` steps of n environments: what was known when their actions were chosen."""

    frames: np.ndarray
    """[stride, n, *F]: the newest frames, or whole observations when nothing is stacked."""
    rewards: np.ndarray
    """[stride, n] float32, of the step that led here."""
    terminated: np.ndarray
    """[stride, n] bool, of the step that led here."""
    truncated: np.ndarray
    """[stride, n] bool, of the step that led here."""
    valid: np.ndarray
    """[stride, n] bool: whether the step that led here trains."""
    first: np.ndarray
    """[stride, n] bool: whether an episode, or a stream of steps, begins here."""
    actions: np.ndarray
    """[stride, n] int64: chosen now."""
    older: list[np.ndarray]
    """[K−1, *F] behind each frame marked ``first``, in order of time, oldest first; [] when nothing is stacked."""
    state: tuple[np.ndarray, ...]
    """[n, H] each, before the first observation."""


class Sample(NamedTuple):
    """B sequences, and how to tell the replay their new priorities."""

    sequences: Sequences
    weights: torch.Tensor
    """[B] float32 importance weights, at most 1."""
    leaves: np.ndarray
    """[B] int64."""
    births: np.ndarray
    """[B] int64: which sequence the leaf was when sampled."""


class SequenceReplay:
    """The rings of all environments and the priorities of their sequences.

    Memory: E·Q·(frame + 16 bytes) + E·Q/stride·state, and K−1 frames of each episode's beginning, taken from the system
    as it fills.

    Args:
        environments: E; 0 … E−1 may be named.
        steps_per_environment: Q, a multiple of ``stride`` and longer than the history, a sequence and a stride.
        sequence_length: U + L, burn-in plus training steps.
        stride: steps between the starts of sequences, max(2, K) at least; less than U + L, they overlap.
        frame_stack: K; 1 stores whole observations and stacks nothing.
        frame_shape, frame_dtype: of one frame; state_sizes: H of each part of the recurrent state.
        priority_exponent, importance_exponent: α and β.
    """

    def __init__(
        self,
        *,
        environments: int,
        steps_per_environment: int,
        sequence_length: int,
        stride: int,
        frame_stack: int = 1,
        frame_shape: tuple[int, ...],
        frame_dtype: np.dtype,
        state_sizes: tuple[int, ...],
        priority_exponent: float = 0.9,
        importance_exponent: float = 0.6,
    ) -> None:
        self.stride, self.blocks = stride, steps_per_environment // stride
        self._capacity, self._length, self._frame_stack = steps_per_environment, sequence_length, frame_stack
        self._priority_exponent, self._importance_exponent = priority_exponent, importance_exponent
        rings = (environments, steps_per_environment)
        self._frame = np.zeros((*rings, *frame_shape), dtype=frame_dtype)
        self._older: dict[tuple[int, int], np.ndarray] = {}
        """[K−1, *F] behind the frames that begin something, by their environment and their place in its ring."""
        self._reward = np.zeros(rings, dtype=np.float32)
        self._terminated, self._truncated, self._valid, self._first = (np.zeros(rings, dtype=bool) for _ in range(4))
        self._action = np.zeros(rings, dtype=np.int64)
        self._states = [np.zeros((environments, self.blocks, size), dtype=np.float32) for size in state_sizes]
        self._head = np.zeros(environments, dtype=np.int64)  # steps appended so far
        self._stream_start = np.zeros(environments, dtype=np.int64)
        self._births = np.full(environments * self.blocks, -1, dtype=np.int64)  # first step of the leaf's sequence
        self._used = np.zeros(environments * self.blocks, dtype=bool)  # whether it has entered an update
        self._weights = np.zeros(environments * self.blocks)

    @property
    def memory_bytes(self) -> int:
        """All of it, full, but for what lies behind frames that begin something."""
        held = (*self._states, *vars(self).values())
        return sum(each.nbytes for each in held if isinstance(each, np.ndarray))

    def __len__(self) -> int:
        """Sequences that can be sampled."""
        return int(np.count_nonzero(self._births >= 0))

    def append(self, environments: np.ndarray, steps: Steps, *, continues: bool) -> None:
        """Add ``stride`` steps of environments [n] int, each named once; continues: they follow those before them.

        A new sequence gets the largest priority of those that entered an update and are still here, so that it is
        sampled soon. (R2D2's actors compute it from the values that they acted by.)
        """
        head = self._head[environments]
        if not continues:
            self._stream_start[environments] = head
        slots = (head + np.arange(self.stride)[:, None]) % self._capacity
        at = environments, slots  # [stride, n]
        self._keep_older(np.broadcast_to(environments, slots.shape), slots, steps)
        self._frame[at], self._reward[at], self._action[at] = steps.frames, steps.rewards, steps.actions
        self._terminated[at], self._truncated[at] = steps.terminated, steps.truncated
        self._valid[at], self._first[at] = steps.valid, steps.first
        for stored, part in zip(self._states, steps.state, strict=True):
            stored[environments, head // self.stride % self.blocks] = part
        self._head[environments] = head + self.stride
        self._forget(environments, head + self.stride - self._capacity)
        self._complete(environments, head - self._length // self.stride * self.stride)

    def sample(self, size: int, rng: np.random.Generator) -> Sample:
        """B = ``size`` sequences in proportion to p^α, one from each of ``size`` equal parts of the sum."""
        leaves = draw(self._weights, size, rng)
        chances = self._weights[leaves] / self._weights.sum()
        weights = (len(self) * chances) ** -self._importance_exponent
        environments, starts = leaves // self.blocks, self._births[leaves]
        scaled = torch.from_numpy((weights / weights.max()).astype(np.float32))
        return Sample(self._sequences(environments, starts), scaled, leaves, starts)

    def update_priorities(self, sample: Sample, priorities: torch.Tensor) -> None:
        """Give sampled sequences their priorities p [B] ≥ 0, finite; those overwritten since are left out."""
        same = self._births[sample.leaves] == sample.births
        # a sequence that is fully understood keeps a chance, however small
        weights = np.maximum(priorities.double().numpy()[same], 1e-6) ** self._priority_exponent
        if weights.size:
            self._weights[sample.leaves[same]] = weights

    def fresh(self, sample: Sample) -> torch.Tensor:
        """[B] bool: sequences that entered no update yet, each named once."""
        first = np.zeros(len(sample.leaves), dtype=bool)
        first[np.unique(sample.leaves, return_index=True)[1]] = True
        return torch.from_numpy(first & ~self._used[sample.leaves])

    def used(self, sample: Sample) -> None:
        """The sample has entered an update."""
        self._used[sample.leaves[self._births[sample.leaves] == sample.births]] = True

    def _keep_older(self, environments: np.ndarray, slots: np.ndarray, steps: Steps) -> None:
        """Of what begins here; what is overwritten here takes its own along."""
        if self._frame_stack == 1:
            return
        overwritten = self._first[environments, slots]
        for place in zip(environments[overwritten].tolist(), slots[overwritten].tolist(), strict=True):
            del self._older[place]
        places = zip(environments[steps.first].tolist(), slots[steps.first].tolist(), strict=True)
        self._older.update(zip(places, steps.older, strict=True))

    def _leaves(self, environments: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return environments * self.blocks + starts // self.stride % self.blocks

    def _forget(self, environments: np.ndarray, starts: np.ndarray) -> None:
        """The oldest steps that these sequences looked at were overwritten."""
        leaves = self._leaves(environments, starts)
        gone = leaves[(starts >= 0) & (self._births[leaves] == starts)]
        self._births[gone], self._weights[gone] = -1, 0.0

    def _complete(self, environments: np.ndarray, starts: np.ndarray) -> None:
        """The last observations of these sequences have come; of one stream, they can be sampled."""
        done = starts >= self._stream_start[environments]
        leaves = self._leaves(environments[done], starts[done])
        self._births[leaves], self._used[leaves] = starts[done], False
        # not of all: new ones would hand on for ever what the first of them got
        self._weights[leaves] = self._weights[self._used].max(initial=0.0) or 1.0

    def _sequences(self, environments: np.ndarray, starts: np.ndarray) -> Sequences:
        """Read B sequences out of the rings."""
        steps = starts[:, None] + np.arange(self._length + 1)  # [B, U+L+1]
        at = environments[:, None], steps % self._capacity
        before = environments, (starts - 1) % self._capacity
        block = environments, starts // self.stride % self.blocks
        return Sequences(
            observations=_tensor(self._observations(environments, steps)),
            actions=_tensor(self._action[at].T[:-1]),
            # what step t brought stands in record t + 1
            rewards=_tensor(self._reward[at].T[1:]),
            terminated=_tensor(self._terminated[at].T[1:]),
            truncated=_tensor(self._truncated[at].T[1:]),
            valid=_tensor(self._valid[at].T[1:]),
            first=_tensor(self._first[at].T),
            previous_action=_tensor(self._action[before]),
            previous_reward=_tensor(self._reward[at][:, 0]),
            state=tuple(_tensor(stored[block]) for stored in self._states),
        )

    def _observations(self, environments: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """[U+L+1, B, K·C, …], stacked; frames as they are when nothing is."""
        before = steps[:, :1] + np.arange(1 - self._frame_stack, 0)
        slots = np.concatenate((before, steps), axis=1).T % self._capacity  # [K−1+U+L+1, B]
        rows = FrameRows(self._frame[environments, slots], self._frame_stack)
        if self._frame_stack == 1:
            return rows.frames
        for row, first in enumerate(self._first[environments, slots]):
            if first.any():
                places = zip(environments[first].tolist(), slots[row, first].tolist(), strict=True)
                rows.mark_whole(Whole(row, np.flatnonzero(first), np.stack([self._older[place] for place in places])))
        channels, *size = self._frame.shape[2:]
        stacks = np.empty((*steps.T.shape, self._frame_stack * channels, *size), self._frame.dtype)
        for t, stack in enumerate(stacks):
            rows.stacks_into(self._frame_stack - 1 + t, stack)
        return stacks


def draw(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """[size] int: places of weights [N] ≥ 0, of which one is not 0, in proportion to them, one from each of ``size``
    equal parts of their sum."""
    sums = np.cumsum(weights)
    total = sums[-1]
    at = np.minimum((np.arange(size) + rng.random(size)) * (total / size), np.nextafter(total, 0.0))
    return np.searchsorted(sums, at, side="right")  # the first sum above it: never one of weight 0


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
