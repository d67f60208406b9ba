"""The gradients of the open step, as far as the shards have reported them. Pure.

A push is complete when every shard holds its slice; the order in which pushes complete is the order in which they
become members. A complete push is never let go of, whatever else arrives, until its step is committed or given up.
"""

from dataclasses import dataclass, field

from param_servers.servers.membership import Key
from param_servers.wire.messages import Code, Row


@dataclass
class Push:
    """A gradient, as far as shards have reported it."""

    sequence: int
    step: int
    """The version it was computed on: in synchronous mode the open step."""
    data_points: int = 0
    shards: set[int] = field(default_factory=set)


class OpenStep:
    """Pushes by worker.

    Args:
        num_shards: reports that make a push complete.
    """

    def __init__(self, num_shards: int) -> None:
        self.pushes: dict[Key, Push] = {}
        self.complete: list[Key] = []
        """In the order of completion."""
        self._num_shards = num_shards

    def report(self, shard: int, row: Row, step: int, data_points: int) -> Push | None:
        """A shard holds a slice (row.mark NONE) or has rejected it; the push, if this made it complete on all shards.

        The caller then puts it at the end of `complete`, or drops it.
        """
        key = (row.worker, row.incarnation)
        push = self.pushes.get(key)
        if push is None or push.sequence < row.sequence:
            if key in self.complete:
                return None
            push = self.pushes[key] = Push(row.sequence, step)
        if push.sequence != row.sequence or row.mark != Code.NONE:
            return None
        push.data_points = max(push.data_points, data_points)
        push.shards.add(shard)
        return push if len(push.shards) == self._num_shards and key not in self.complete else None

    def first(self, count: int) -> dict[Key, Push]:
        """The first `count` that became complete."""
        return {key: self.pushes[key] for key in self.complete[:count]}

    def drop(self, key: Key) -> None:
        """This push will not count (again)."""
        del self.pushes[key]
        if key in self.complete:
            self.complete.remove(key)

    def forget(self, worker: int) -> None:
        """Let go of what earlier incarnations of a worker pushed; all shards do the same when they read `Expel`."""
        for key in [key for key in self.pushes if key[0] == worker]:
            self.drop(key)

    def clear(self) -> None:
        """A new step, or a new term."""
        self.pushes.clear()
        self.complete.clear()
