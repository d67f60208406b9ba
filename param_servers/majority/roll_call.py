"""Which ranks of a majority all-reduce are connected, and how far each says it is. Pure."""

from param_servers.wire.handshake import Hello, Lives, Role


class RollCall:
    """Begun anew whenever the ranks have to form another group.

    Args:
        num_ranks: of the run.
        fingerprint: of the layout that all must have.
    """

    def __init__(self, num_ranks: int, fingerprint: str) -> None:
        self.incarnations: dict[int, int] = {}
        """Of the ranks that are connected."""
        self.standing: dict[int, tuple[int, int]] = {}
        """(step, data points) of the ranks that have answered."""
        self._num_ranks, self._fingerprint, self._lives = num_ranks, fingerprint, Lives()

    def admits(self, hello: Hello) -> str:
        """ "" or one line why this rank may not join."""
        if hello.fingerprint != self._fingerprint:
            return f"its layout is {hello.fingerprint}, this run's is {self._fingerprint}"
        if hello.role is not Role.WORKER or hello.rank >= self._num_ranks:
            return f"there is no {hello.peer} in this run of {self._num_ranks} workers"
        return self._lives.admits(hello)

    def leave(self, rank: int) -> bool:
        """A rank is gone; whether it was connected."""
        self.standing.pop(rank, None)
        return self.incarnations.pop(rank, None) is not None

    def complete(self, first: bool) -> bool:
        """Whether all connected ranks have answered; the first time, all ranks of the run have to be connected."""
        connected = set(self.incarnations)
        enough = not first or len(connected) >= self._num_ranks
        return enough and bool(connected) and connected == set(self.standing)

    def silent(self, answered: set[int], first: bool) -> list[int]:
        """Who should have answered and did not."""
        everyone = set(range(self._num_ranks)) if first else set(self.incarnations)
        return sorted(everyone - answered)

    def furthest(self) -> int:
        """The rank at the newest step, the lowest of them: its state is taken over by the others."""
        return max(self.standing, key=lambda rank: (self.standing[rank][0], -rank))
