"""Cutting the flat buffer into one contiguous slice for each server.

`even_bytes` cuts anywhere, so that every server carries the same load. `greedy_by_tensor` keeps tensors whole,
as the 2017 system did: the largest tensor first, each to the server that has the fewest bytes so far.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from param_servers.errors import ConfigError
from param_servers.layout import FlatLayout

Sharding = Literal["even_bytes", "greedy_by_tensor"]
SHARDINGS: tuple[Sharding, ...] = ("even_bytes", "greedy_by_tensor")


@dataclass(frozen=True)
class ShardPlan:
    """Shard i owns `flat[cuts[i]:cuts[i + 1]]` of a buffer in the order of `layout`."""

    layout: FlatLayout
    cuts: tuple[int, ...]

    def __post_init__(self) -> None:
        ends = (self.cuts[0], self.cuts[-1]) if self.cuts else None
        growing = all(low < high for low, high in pairwise(self.cuts))
        if len(self.cuts) < 2 or ends != (0, self.layout.numel) or not growing:
            raise ConfigError(f"cuts must grow from 0 to {self.layout.numel}, got {list(self.cuts)}")

    @property
    def num_shards(self) -> int:
        return len(self.cuts) - 1

    def slice_of(self, shard: int) -> slice:
        """The elements of the flat buffer that `shard` owns."""
        return slice(self.cuts[shard], self.cuts[shard + 1])

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(self.slice_of(shard) for shard in range(self.num_shards))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each shard."""
        return tuple(part.stop - part.start for part in self.slices)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over layout and cuts; equal in all processes of a run."""
        return hashlib.sha256(f"{self.layout.fingerprint}:{self.cuts}".encode()).hexdigest()[:16]


def plan_shards(layout: FlatLayout, num_shards: int, policy: Sharding = "even_bytes") -> ShardPlan:
    """Plan `num_shards` slices. The plan's layout may be in another order than `layout`: use the plan's.

    Raises:
        ConfigError: an unknown policy, or more shards than there are elements (or tensors, kept whole).
    """
    if num_shards < 1:
        raise ConfigError(f"num_servers must be at least 1, got {num_shards}")
    if policy == "even_bytes":
        if num_shards > layout.numel:
            raise ConfigError(f"{layout.numel} parameters cannot be cut into {num_shards} shards: use fewer servers")
        return ShardPlan(layout, tuple(layout.numel * shard // num_shards for shard in range(num_shards + 1)))
    if policy == "greedy_by_tensor":
        return _greedy_by_tensor(layout, num_shards)
    raise ConfigError(f"unknown sharding {policy!r}: choose one of {', '.join(SHARDINGS)}")


def _greedy_by_tensor(layout: FlatLayout, num_shards: int) -> ShardPlan:
    sizes = dict(zip(layout.names, layout.sizes, strict=True))
    if num_shards > sum(size > 0 for size in sizes.values()):
        raise ConfigError(
            f"{len(sizes)} tensors cannot be placed whole on {num_shards} shards: "
            "use fewer servers or sharding even_bytes"
        )
    placed: list[list[str]] = [[] for _ in range(num_shards)]
    load = [0] * num_shards
    for name in sorted(layout.names, key=lambda name: -sizes[name]):  # stable: equal sizes keep their order
        shard = load.index(min(load))
        placed[shard].append(name)
        load[shard] += sizes[name]
    cuts = [0]
    for shard_load in load:
        cuts.append(cuts[-1] + shard_load)
    return ShardPlan(layout.reordered([name for names in placed for name in names]), tuple(cuts))
