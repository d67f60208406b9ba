"""What actors and learners say to each other, as raw bytes; nothing is pickled.

    actor -> learner    OBSERVATION what the environments of group `term` showed after action `sequence` of this link
    learner -> actor    ACTION      what they shall do, as the answer to observation `sequence`
                        STOP        the run is over, the payload says why

What an actor's group of environments says after each step:

Legend: B environments of the group, K frames in a stack, R rows whose whole stack is sent.

    frames    [B, *frame]           the newest frame of each observation (the whole observation where K = 1)
    reward    [B] float32           training view
    flags     [B] uint8             TERMINATED | TRUNCATED | VALID | WHOLE
    older     [R, K − 1, *frame]    of the rows marked WHOLE, in order: the frames before the newest one, oldest first

The first three are one record, padded so that each number lies where it may, in the next message's place, too.

A row is WHOLE when its observation begins something: a link, or a game (not a life, after which the game goes on). Only
there it is not the last one shifted by one frame, so whatever a console puts behind a game's first frame (zeros,
copies, no-ops), and whatever was seen before a link broke, arrives as it was.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from dba3c.assembly.model import Spaces
from dba3c.config import TrainConfig
from dba3c.errors import UserError
from param_servers.errors import BadMessage
from param_servers.wire.handshake import ROLES
from param_servers.wire.messages import FIRST_FREE, KINDS

TERMINATED, TRUNCATED, VALID, WHOLE = 1, 2, 4, 8


class CentralKind(IntEnum):
    """Frames beside those of `param_servers`."""

    OBSERVATION = FIRST_FREE
    ACTION = FIRST_FREE + 1


class CentralRole(IntEnum):
    """Peers beside those of `param_servers`; a learner is the server that its actors dial."""

    ACTOR = FIRST_FREE


KINDS.update({int(kind): kind for kind in CentralKind})
ROLES.update({int(role): role for role in CentralRole})


@dataclass(frozen=True)
class GroupShape:
    """What both ends must agree on: the environments of one group."""

    num_envs: int
    """B."""
    frame_stack: int
    """K: the newest frames that make an observation, along its first dimension."""
    observation_shape: tuple[int, ...]
    dtype: str
    """ "uint8" or "float32"."""
    action_shape: tuple[int, ...]
    action_dtype: str
    """ "int64" or "float32"."""

    @staticmethod
    def of(
        observation_space: spaces.Space[Any], action_space: spaces.Space[Any], num_envs: int, frame_stack: int
    ) -> GroupShape:
        """The shape for single spaces. Raises UserError when observations are no boxes of uint8 or float32."""
        shape, dtype = observation_space.shape, str(observation_space.dtype)
        if shape is None or dtype not in ("uint8", "float32") or shape[0] % frame_stack:
            raise UserError(f"observations {observation_space} cannot be sent to a learner")
        action_dtype = "float32" if isinstance(action_space, spaces.Box) else "int64"
        action_shape = tuple(action_space.shape or ())
        return GroupShape(num_envs, frame_stack, shape, dtype, action_shape, action_dtype)

    @cached_property
    def frame_shape(self) -> tuple[int, ...]:
        """Of one frame: [C / K, H, W]."""
        return (self.observation_shape[0] // self.frame_stack, *self.observation_shape[1:])

    @cached_property
    def fixed(self) -> np.dtype[np.void]:
        """The record with which every message begins: frames, reward, flags."""
        each = (self.num_envs,)
        formats = [(self.dtype, each + self.frame_shape), ("float32", each), ("uint8", each)]
        return np.dtype({"names": ["frames", "reward", "flags"], "formats": formats}, align=True)

    @cached_property
    def fixed_bytes(self) -> int:
        """Bytes of a message in which nothing began."""
        return self.fixed.itemsize

    @cached_property
    def older_bytes(self) -> int:
        return (self.frame_stack - 1) * math.prod(self.frame_shape) * np.dtype(self.dtype).itemsize

    @cached_property
    def most_bytes(self) -> int:
        """Bytes of the longest message: every row whole."""
        return self.fixed_bytes + self.num_envs * self.older_bytes

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that actor and learner compare."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    def check_length(self, length: int) -> None:
        """Raise BadMessage for a message that cannot be, before any of it is taken."""
        if not self.fixed_bytes <= length <= self.most_bytes:
            raise BadMessage(f"an observation of {length} bytes, which should have {self.fixed_bytes}")


def group_shape(config: TrainConfig, spaces: Spaces) -> GroupShape:
    """The shape of an actor's group."""
    frames = config.environment.frames_per_observation
    return GroupShape.of(spaces.observation, spaces.action, config.central.envs_per_group, frames)


def pack_step(
    shape: GroupShape,
    buffer: np.ndarray,
    observation: np.ndarray,
    reward: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray, np.ndarray],
    whole: np.ndarray,
) -> int:
    """Write one step into ``buffer`` [most_bytes] uint8; returns its length.

    observation [B, ...]; reward [B]; ends: terminated, truncated, valid, bool [B]; whole: bool [B].
    """
    newest, (terminated, truncated, valid) = shape.frame_shape[0], ends
    (fixed,) = buffer[: shape.fixed_bytes].view(shape.fixed)
    fixed["frames"], fixed["reward"] = observation[:, -newest:], reward
    fixed["flags"] = terminated * TERMINATED + truncated * TRUNCATED + valid * VALID + whole * WHOLE
    older = observation[whole, :-newest].tobytes()
    length = shape.fixed_bytes + len(older)
    buffer.data[shape.fixed_bytes : length] = older
    return length


def unpack_older(shape: GroupShape, message: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What follows the fixed part of ``message`` [length] uint8, whose flags [B] are given.

    Returns:
        The WHOLE rows [R] int64; what lies behind their newest frames [R, K − 1, *frame].

    Raises:
        BadMessage: the length is not that of the rows it should hold.
    """
    whole = np.flatnonzero(flags & WHOLE)
    needed = shape.fixed_bytes + len(whole) * shape.older_bytes
    if len(message) != needed:
        raise BadMessage(f"an observation of {len(message)} bytes with {len(whole)} whole rows, which needs {needed}")
    bytes_ = message[shape.fixed_bytes :].tobytes()  # copied: alignment, and the message's place is reused
    return whole, np.frombuffer(bytes_, shape.dtype).reshape(len(whole), shape.frame_stack - 1, *shape.frame_shape)
