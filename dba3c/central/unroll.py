"""Unrolls: what one group of environments showed and did for T steps, kept as it arrived.

Legend: T unroll length, B environments of a group, N environments of a batch, K frames in a stack, H = K − 1.

The shift of one, once: message t (t = 0 … T) brings observation_t together with the reward and the ends of the step
that led to it. So transition t = (observation_t, action_t) → reward, terminated, truncated, valid of message t + 1, and
message T of an unroll is message 0 of the next one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dba3c.central.stacks import FrameRows, Whole
from dba3c.central.wire import WHOLE, GroupShape, unpack_extras
from dba3c.environments.protocol import Episode
from dba3c.networks import State

_NOT_WHOLE = bytes(range(WHOLE))
"""Flags of environments where nothing begins; stripped from a row's, they leave nothing nearly always."""


class GroupKey(NamedTuple):
    """One group of environments of one life of an actor."""

    actor: int
    incarnation: int
    group: int


class Unroll:
    """Memory for T + 1 messages of one group, with the K − 1 frames before them, and for the answers.

    A row keeps the fixed part of a message. What a longer one has beside it lies in the rows of the next messages until
    they come, by when it is unpacked: rows with room for it would be four times as long, memory that is never touched.
    """

    def __init__(self, shape: GroupShape, length: int) -> None:
        self.shape, self.length = shape, length
        self.history = shape.frame_stack - 1
        rows = self.history + length + 1
        memory = np.zeros((rows - 1) * shape.row_bytes + max(shape.row_bytes, shape.most_bytes), np.uint8)
        self._bytes = memory.data
        self._rows = memory[: rows * shape.row_bytes].reshape(rows, shape.row_bytes)
        frames = self._rows[:, : shape.num_envs * shape.frame_bytes].view(shape.dtype)
        frames = frames.reshape(rows, shape.num_envs, *shape.wire_frame_shape)
        assert np.may_share_memory(frames, memory)  # a view: messages are received into it
        planes = shape.observation_shape[0] if shape.binary_planes else None
        self.frames = FrameRows(frames, shape.frame_stack, planes)
        self.rewards = self._rows[self.history :, shape.reward_at : shape.flags_at].view(np.float32)
        self.flags = self._rows[self.history :, shape.flags_at : shape.fixed_bytes]
        self.actions = np.zeros((length, shape.num_envs, *shape.action_shape), shape.action_dtype)
        self.log_probs = np.zeros((length, shape.num_envs), np.float32)
        self.versions = np.zeros(length, np.int64)
        """[T] which weights chose the actions."""
        self.initial_state: State = ()
        """The recurrent state [B, ...] with which observation 0 was met."""
        self.key = GroupKey(-1, 0, 0)
        """Whose it is."""
        self.continues = False
        """Whether message 0 is the last one of an earlier unroll."""
        self.time = 0
        """t: the message that is awaited, or was the last to arrive."""

    def place(self, length: int) -> memoryview:
        """Where message ``time`` of ``length`` bytes is received. Raises BadMessage when it cannot be one."""
        self.shape.check_length(length)
        return self._message(length)

    def arrived(self, length: int) -> list[Episode]:
        """Message ``time`` is in its place; the episodes that it reports. Raises BadMessage when it is malformed."""
        if length == self.shape.fixed_bytes and not self.flags[self.time].tobytes().strip(_NOT_WHOLE):
            return []  # nearly always: nothing began and nothing ended
        message = np.frombuffer(self._message(length), np.uint8)
        extras = unpack_extras(self.shape, message, self.flags[self.time])
        self.frames.mark_whole(Whole(self.history + self.time, extras.whole, extras.older))
        return extras.episodes

    def _message(self, length: int) -> memoryview:
        begin = (self.history + self.time) * self.shape.row_bytes
        return self._bytes[begin : begin + length]

    @property
    def reward(self) -> np.ndarray:
        """[B] of the step that led to observation ``time``."""
        return self.rewards[self.time]

    def observation_into(self, out: np.ndarray) -> None:
        """Observation ``time`` [B, ...], stacked."""
        self.frames.stacks_into(self.history + self.time, out)

    def observation_view(self) -> np.ndarray | None:
        """Observation ``time`` [B, ...] where it lies, valid until the next message; None when it lies in pieces."""
        return self.frames.stacks_view(self.history + self.time)

    def answer(self, actions: np.ndarray, log_probs: np.ndarray, version: int) -> None:
        """What was decided for observation ``time``, which ends its turn."""
        self.actions[self.time], self.log_probs[self.time], self.versions[self.time] = actions, log_probs, version
        self.time += 1

    @property
    def complete(self) -> bool:
        return self.time == self.length

    def begin(self, key: GroupKey, initial_state: State) -> None:
        """Forget everything; message 0 is awaited, which no other unroll goes before."""
        self.key, self.time, self.initial_state, self.continues = key, 0, initial_state, False
        self.frames.wholes = []

    def begin_after(self, before: Unroll, initial_state: State) -> None:
        """Go on where ``before`` ended: its message T is message 0 here."""
        self.begin(before.key, initial_state)
        self.continues = True
        self._rows[: self.history + 1] = before._rows[before.length :]
        before.frames.carry_over(self.frames, before.length)
