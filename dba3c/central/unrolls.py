"""Unrolls: what groups of environments showed and did for T steps, kept as it arrived.

Legend: T unroll length, B environments of a group, N environments of a batch, K frames in a stack, H = K − 1, C
channels of a frame, R rows in time order.

The shift of one, once: message t (t = 0 … T) brings observation_t together with the reward and the ends of the step
that led to it. So transition t = (observation_t, action_t) → reward, terminated, truncated, valid of message t + 1, and
message T of an unroll is message 0 of the next one.

Only the newest frame travels, and each is stored once: stacks are rebuilt from single frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from dba3c.algorithms.frame_rows import FrameRows, Whole
from dba3c.central.wire import WHOLE, GroupShape, unpack_older
from dba3c.networks import State

_NOT_WHOLE = bytes(range(WHOLE))
"""Flags of environments where nothing begins; stripped from a row's, they leave nothing nearly always."""


class GroupKey(NamedTuple):
    """One group of environments of one life of an actor."""

    actor: int
    incarnation: int
    group: int


class GroupUnroll:
    """Memory for T + 1 messages of one group, with the K − 1 frames before them, and for the answers.

    A row keeps the fixed part of a message. What a longer one has beside it lies in the rows of the next messages until
    they come, by when it is unpacked: rows with room for it would be four times as long, memory that is never touched.
    """

    def __init__(self, shape: GroupShape, length: int, key: GroupKey, initial_state: State) -> None:
        self.shape, self.length, self.key = shape, length, key
        self.history = shape.frame_stack - 1
        rows = self.history + length + 1
        memory = np.zeros((rows - 1) * shape.fixed_bytes + shape.most_bytes, np.uint8)
        self._bytes = memory.data  # messages are received into it
        self._rows = memory[: rows * shape.fixed_bytes].view(shape.fixed)
        self.frames = FrameRows(self._rows["frames"], shape.frame_stack)
        self.rewards, self.flags = self._rows["reward"][self.history :], self._rows["flags"][self.history :]
        self.actions = np.zeros((length, shape.num_envs, *shape.action_shape), shape.action_dtype)
        self.log_probs = np.zeros((length, shape.num_envs), np.float32)
        self.versions = np.zeros(length, np.int64)
        """[T] which weights chose the actions."""
        self.initial_state = initial_state
        """The recurrent state [B, ...] with which observation 0 was met."""
        self.continues = False
        """Whether message 0 is the last one of an earlier unroll."""
        self.time = 0
        """t: the message that is awaited, or was the last to arrive."""

    def place(self, length: int) -> memoryview:
        """Where message ``time`` of ``length`` bytes is received. Raises BadMessage when it cannot be one."""
        self.shape.check_length(length)
        return self._message(length)

    def arrived(self, length: int) -> None:
        """Message ``time`` is in its place. Raises BadMessage when it is malformed."""
        if length == self.shape.fixed_bytes and not self.flags[self.time].tobytes().strip(_NOT_WHOLE):
            return  # nearly always: nothing began
        message = np.frombuffer(self._message(length), np.uint8)
        whole, older = unpack_older(self.shape, message, self.flags[self.time])
        self.frames.mark_whole(Whole(self.history + self.time, whole, older))

    def _message(self, length: int) -> memoryview:
        begin = (self.history + self.time) * self.shape.fixed_bytes
        return self._bytes[begin : begin + length]

    def observation_into(self, out: np.ndarray) -> None:
        """Observation ``time`` [B, ...], stacked."""
        self.frames.stacks_into(self.history + self.time, out)

    def answer(self, actions: np.ndarray, log_probs: np.ndarray, version: int) -> None:
        """What was decided for observation ``time``, which ends its turn."""
        self.actions[self.time], self.log_probs[self.time], self.versions[self.time] = actions, log_probs, version
        self.time += 1

    def following(self, initial_state: State) -> GroupUnroll:
        """The next one, which goes on where this one ended: message T here is message 0 there."""
        unroll = GroupUnroll(self.shape, self.length, self.key, initial_state)
        unroll.continues = True
        unroll._rows[: self.history + 1] = self._rows[self.length :]
        self.frames.carry_over(unroll.frames, self.length)
        return unroll


class UnrollStore:
    """The partial unroll of every group, and the complete ones that wait to be trained on.

    Keyed by (actor, incarnation, group): an actor that was restarted is somebody new, and what its former life had
    begun is dropped.
    """

    def __init__(self, shape: GroupShape, length: int) -> None:
        self.shape, self.length = shape, length
        self._partial: dict[GroupKey, GroupUnroll] = {}
        self._complete: deque[GroupUnroll] = deque()

    @property
    def ready(self) -> int:
        """Complete unrolls that wait."""
        return len(self._complete)

    @property
    def steps(self) -> int:
        """Of all unrolls that are here, complete or not; another thread than the one that fills them may ask."""
        return self.ready * self.length + sum(unroll.time for unroll in list(self._partial.values()))

    def begin(self, key: GroupKey, initial_state: State) -> None:
        """A group appears; a partial unroll under the same key is dropped."""
        self._partial[key] = GroupUnroll(self.shape, self.length, key, initial_state)

    def drop(self, key: GroupKey) -> None:
        """A group is gone."""
        self._partial.pop(key, None)

    def of(self, key: GroupKey) -> GroupUnroll:
        """The group's partial unroll. Raises KeyError for a stranger."""
        return self._partial[key]

    def arrived(self, key: GroupKey, length: int, state: State) -> None:
        """The group's next message is in its place; ``state`` is the recurrent state that meets it.

        Raises BadMessage when it is malformed. A message that completes the unroll also begins the next one.
        """
        unroll = self._partial[key]
        unroll.arrived(length)
        if unroll.time == unroll.length:
            self._partial[key] = unroll.following(state)
            self._complete.append(unroll)

    def take(self, count: int) -> list[GroupUnroll]:
        """``count`` complete unrolls, oldest first."""
        return [self._complete.popleft() for _ in range(count)]


def observations_of(unrolls: list[GroupUnroll]) -> np.ndarray:
    """[T + 1, N, ...] uint8 or float32, stacked, of complete unrolls of equal shape side by side."""
    shape, length = unrolls[0].shape, unrolls[0].length
    size = shape.num_envs
    observations = np.empty((length + 1, size * len(unrolls), *shape.observation_shape), shape.dtype)
    for i, unroll in enumerate(unrolls):
        for t in range(length + 1):
            unroll.frames.stacks_into(unroll.history + t, observations[t, i * size : (i + 1) * size])
    return observations


def side_by_side(parts: Iterable[np.ndarray]) -> np.ndarray:
    """What groups have [T, B, ...], as a batch's [T, N, ...]."""
    return np.concatenate(list(parts), axis=1)


def stack_states(states: list[State]) -> State:
    """Recurrent states of several groups [B, ...] as one [ΣB, ...]; () for feed-forward networks."""
    if len(states) == 1:
        return states[0]
    return tuple(torch.cat(parts) for parts in zip(*states, strict=True))
