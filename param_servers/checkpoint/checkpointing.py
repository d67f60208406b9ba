"""Which checkpoint is being written, which shards have written their slice, which one is safe. Pure."""


def steps_lost(saved: int, why: str) -> str:
    """What it costs that the last checkpoint was not written; `saved` is the step of the newest one that was."""
    return f"the last checkpoint could not be written ({why}): all steps since {saved} are lost"


class Checkpointing:
    """At most one checkpoint is in the making.

    Args:
        num_shards: slices in a checkpoint.
        every: steps between checkpoints; 0: only when asked.
        saved: (step, data_points) of the newest valid checkpoint.
    """

    def __init__(self, num_shards: int, every: int, saved: tuple[int, int]) -> None:
        self.saved = saved
        self.failure = ""
        """Why the last one that failed did."""
        self.data_points = 0
        """Of the checkpoint in the making."""
        self._num_shards, self._every = num_shards, every
        self._writing: int | None = None
        self._tried = saved[0]
        """The step of the newest one that was begun: a full disk is not tried again before the next one is due."""
        self._written: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether one is in the making."""
        return self._writing is not None

    def due(self, step: int) -> bool:
        """Whether to write one of version `step`."""
        return bool(self._every) and not self.busy and step // self._every > self._tried // self._every

    def begin(self, step: int, data_points: int) -> None:
        """All shards are told to write version `step`."""
        self._writing = self._tried = step
        self.data_points = data_points
        self._written.clear()

    def abandon(self) -> None:
        """Nobody waits for it any more; the run goes back to the newest valid one."""
        self._writing, self._tried = None, self.saved[0]
        self._written.clear()

    def slice_written(self, shard: int, step: int) -> bool:
        """A shard has written its slice of `step`; True when it was the last one."""
        if step != self._writing:
            return False
        self._written.add(shard)
        return len(self._written) == self._num_shards

    def done(self, step: int, error: str) -> bool:
        """It is published, or has failed; False when nobody waits for it any more."""
        if step != self._writing:
            return False
        self.failure = error
        if not error:
            self.saved = (step, self.data_points)
        self._writing = None
        return True
