"""The ranks that sum together in one generation of a majority all-reduce, as one rank's comm thread holds them."""

from typing import Any

from torch import Tensor

from param_servers.allreduce.collective_torch import TorchCollective, reach_store
from param_servers.config import ExchangeConfig
from param_servers.majority.messages import Formation
from param_servers.wire.interfaces import listen_address


class MajorityGroup:
    """The group of rank `rank`; there is none before the first `form` and after `leave`."""

    def __init__(self, rank: int, config: ExchangeConfig, secret: bytes) -> None:
        self.generation = 0
        self.members: list[int] = []
        self._rank, self._config, self._secret = rank, config, secret
        self._collective: TorchCollective | None = None
        self._stores: dict[tuple[str, int], Any] = {}

    @property
    def formed(self) -> bool:
        """Whether there is a group."""
        return self._collective is not None

    @property
    def is_first(self) -> bool:
        """Whether this is the lowest rank of the group."""
        return self._rank == self.members[0]

    def knows_store(self, host: str, port: int, store: Any) -> None:
        """This process holds the store itself."""
        self._stores[host, port] = store

    def begin(self, generation: int, members: list[int]) -> None:
        """What was before is over."""
        self.leave()
        self.generation, self.members = generation, members

    def form(self, formation: Formation) -> None:
        """Build the group of the generation that has begun.

        Raises:
            PeerLost: a member did not come within the step timeout.
            RunBroken: somebody else writes in the store.
        """
        timeout_s = self._config.timeouts.sum_s
        if formation.store not in self._stores:
            self._stores[formation.store] = reach_store(*formation.store, self._secret, timeout_s)
        self._collective = TorchCollective(
            formation.members.index(self._rank),
            len(formation.members),
            self._stores[formation.store],
            secret=self._secret,
            host=listen_address(self._config.listen_host, self._config.interface),
            interface=self._config.interface,
            step_timeout_s=timeout_s,
            join_timeout_s=timeout_s,
            generation=self.generation,
            roll_call_s=0.0,
        )

    def broadcast_(self, tensor: Tensor, source: int) -> None:
        """Every member gets the tensor of rank `source`.

        Raises:
            PeerLost: the group is broken.
        """
        assert self._collective is not None
        self._collective.broadcast_(tensor, self.members.index(source))

    def sum_(self, tensor: Tensor) -> None:
        """The sum over all members.

        Raises:
            PeerLost: the group is broken.
        """
        assert self._collective is not None
        self._collective.all_reduce_sum_(tensor)

    def leave(self) -> None:
        """Closing our connections lets ranks that wait for us fail at once, too."""
        if self._collective is not None:
            self._collective.close()
            self._collective = None
