"""Which observations are answered together: a pure state machine, no clock and no sockets inside.

A batch is due when it has reached its target size, or its oldest observation has waited for the timeout, or when
nobody is left who could still add to it. Whoever has been silent for long is not waited for: a dead or frozen actor
makes batches smaller and blocks nobody.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")


class Batcher(Generic[Key]):
    """Observations by group.

    Args:
        target: environments that make a full batch.
        timeout_s: longest wait of an observation.
        absent_after_s: a group that was answered longer ago than this is not expected.
    """

    def __init__(self, target: int, timeout_s: float, absent_after_s: float = 1.0) -> None:
        self.target, self.timeout_s, self.absent_after_s = target, timeout_s, absent_after_s
        self._sizes: dict[Key, int] = {}
        self._answered_s: dict[Key, float] = {}
        self._waiting: dict[Key, float] = {}
        """Arrival of each unanswered observation, oldest first."""
        self._size = 0

    @property
    def queued(self) -> int:
        """Environments that wait for an answer."""
        return self._size

    @property
    def environments(self) -> int:
        """Environments of all groups that have joined."""
        return sum(self._sizes.values())

    def join(self, key: Key, size: int, now_s: float) -> None:
        """A group of ``size`` environments appeared; a second time it begins anew."""
        self.leave(key)
        self._sizes[key], self._answered_s[key] = size, now_s

    def leave(self, key: Key) -> None:
        """A group is gone, with what it had in the batch. Harmless when it never was there."""
        if self._waiting.pop(key, None) is not None:
            self._size -= self._sizes[key]
        self._sizes.pop(key, None)
        self._answered_s.pop(key, None)

    def offer(self, key: Key, now_s: float) -> None:
        """An observation of a joined group is here. Raises KeyError for a stranger, ValueError for a second one."""
        if key in self._waiting:
            raise ValueError(f"{key} offers a second observation before the first is answered")
        self._size += self._sizes[key]
        self._waiting[key] = now_s

    def waits(self, key: Key) -> bool:
        """Whether the group's observation is unanswered."""
        return key in self._waiting

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until a batch is due even if nothing more arrives; None when nothing waits."""
        if not self._waiting:
            return None
        if self._size >= self.target or not self._expects_more(now_s):
            return 0.0
        oldest_s = next(iter(self._waiting.values()))
        return max(0.0, oldest_s + self.timeout_s - now_s)

    def take(self, now_s: float) -> dict[Key, float]:
        """The due batch: groups and how long each waited, oldest first; empty when none is due."""
        if self.wait_s(now_s) != 0.0:
            return {}
        taken = {key: now_s - arrived_s for key, arrived_s in self._waiting.items()}
        for key in taken:
            self._answered_s[key] = now_s
        self._waiting.clear()
        self._size = 0
        return taken

    def _expects_more(self, now_s: float) -> bool:
        """Whether a group that is not in the batch was answered lately."""
        since_s = now_s - self.absent_after_s
        return any(answered > since_s for key, answered in self._answered_s.items() if key not in self._waiting)
