"""The unrolls that are being filled, those that are complete, and spare ones."""

from __future__ import annotations

from collections import deque

from dba3c.central.unroll import GroupKey, Unroll
from dba3c.central.wire import GroupShape
from dba3c.environments.protocol import Episode
from dba3c.networks import State


class UnrollStore:
    """The partial unroll of every group, and the complete ones that wait to be trained on.

    Keyed by (actor, incarnation, group): an actor that was restarted is somebody new, and what its former life had
    begun is dropped. Memory of used unrolls is used again, so that a steady run allocates nothing.
    """

    def __init__(self, shape: GroupShape, length: int) -> None:
        self.shape, self.length = shape, length
        self._partial: dict[GroupKey, Unroll] = {}
        self._complete: deque[Unroll] = deque()
        self._spare: list[Unroll] = []

    @property
    def ready(self) -> int:
        """Complete unrolls that wait."""
        return len(self._complete)

    def begin(self, key: GroupKey, initial_state: State) -> None:
        """A group appears; a partial unroll under the same key is dropped."""
        self.drop(key)
        unroll = self._take_spare()
        unroll.begin(key, initial_state)
        self._partial[key] = unroll

    def drop(self, key: GroupKey) -> None:
        """A group is gone."""
        unroll = self._partial.pop(key, None)
        if unroll is not None:
            self._spare.append(unroll)

    def of(self, key: GroupKey) -> Unroll:
        """The group's partial unroll. Raises KeyError for a stranger."""
        return self._partial[key]

    def arrived(self, key: GroupKey, length: int, state: State) -> list[Episode]:
        """The group's next message is in its place; ``state`` is the recurrent state that meets it.

        Raises BadMessage when it is malformed. A message that completes the unroll also begins the next one.
        """
        unroll = self._partial[key]
        episodes = unroll.arrived(length)
        if unroll.complete:
            following = self._take_spare()
            following.begin_after(unroll, state)
            self._partial[key] = following
            self._complete.append(unroll)
        return episodes

    def take(self, count: int) -> list[Unroll]:
        """``count`` complete unrolls, oldest first; give them back with ``release`` when they are copied."""
        return [self._complete.popleft() for _ in range(count)]

    def release(self, unrolls: list[Unroll]) -> None:
        """Their memory may be used again."""
        self._spare += unrolls

    def _take_spare(self) -> Unroll:
        return self._spare.pop() if self._spare else Unroll(self.shape, self.length)
