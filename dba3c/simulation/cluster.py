"""What is simulated: a cluster's links, the work of a step, and how the gradients are exchanged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dba3c.errors import UserError
from dba3c.simulation.compute import ComputeTimes

ExchangeKind = Literal["servers", "async", "allreduce", "majority"]
_FASTEST_BYTES_PER_S = 1e18
"""Stands for a network without limit."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts that can each send and receive `bytes_per_s` at once, through a switch that blocks nobody."""

    bytes_per_s: float
    """Of a host's link, in each direction; infinity for none."""

    latency_s: float = 0.0
    """One way, from a send to the other process acting on it."""

    wire_efficiency: float = 1.0
    """Tensor bytes / bytes on the wire: headers of Ethernet, IP, TCP."""

    message_s: float = 0.0
    """Processor time of a coordinator for one message about one gradient."""

    aggregate_bytes_per_s: float = math.inf
    """Gradient bytes that a server sums per second."""

    apply_bytes_per_s: float = math.inf
    """Parameter bytes that an optimizer steps per second."""

    overlap_lost: float = 0.0
    """Share of an update's transfer that unfair links keep from overlapping with its gradients' arrival
    (0: none, as with perfectly fair links; 1: all, as without cut-through)."""

    link_unfairness: float = 0.0
    """How unevenly n workers share a server's link without cut-through: standard deviation of the logarithm of a
    share, divided by √n (0: evenly; n beyond 8 counts as 8). With backup workers it helps: the first g gradients are
    there earlier."""

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "aggregate_bytes_per_s", "apply_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be greater than 0, got {getattr(self, name)}")
        for name in ("wire_efficiency", "overlap_lost"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in ("latency_s", "message_s", "link_unfairness"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")

    @property
    def tensor_bytes_per_s(self) -> float:
        """Bytes of tensors that a host's link carries in each direction."""
        return min(self.bytes_per_s * self.wire_efficiency, _FASTEST_BYTES_PER_S)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A step's work, the same on every cluster."""

    model_bytes: float
    """M: bytes of a gradient, and of the parameters."""

    compute: ComputeTimes
    """Seconds from parameters to gradient."""

    data_points: float = 1.0
    """In one gradient."""

    def __post_init__(self) -> None:
        if not 0 < self.model_bytes < math.inf:
            raise UserError(f"model_bytes must be greater than 0 and finite, got {self.model_bytes}")
        if not 0 < self.data_points < math.inf:
            raise UserError(f"data_points must be greater than 0 and finite, got {self.data_points}")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Who takes part."""

    exchange: ExchangeKind = "servers"

    workers: int = 1
    """n: gradients of a step + backup workers."""

    backup: int = 0
    """b: workers whose gradient a step does not wait for."""

    servers: int = 1
    """k: servers, async."""

    colocated: bool = False
    """servers: on the hosts of the first k workers, not on hosts of their own."""

    cut_through: bool = True
    """servers without backup workers: parameters leave while gradients arrive; False: after the update, as in 2017."""

    largest_share: float = 0.0
    """Part of the model on the fullest shard; 0: even, 1/k."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 1 or self.backup < 0:
            raise UserError(f"needs at least 1 worker, 1 server, 0 backup workers, got {self}")
        if self.backup >= self.workers:
            raise UserError(f"{self.backup} backup of {self.workers} workers leave no gradient for an update")
        if self.backup and self.exchange in ("async", "allreduce"):
            raise UserError(f"exchange {self.exchange} has no backup workers, got {self.backup}")
        if self.colocated and self.servers > self.workers:
            raise UserError(f"{self.servers} servers cannot be colocated with {self.workers} workers")

    @property
    def gradients(self) -> int:
        """g: gradients of one update."""
        return 1 if self.exchange == "async" else self.workers - self.backup

    @property
    def hosts(self) -> int:
        """Hosts that it takes."""
        dedicated = self.exchange in ("servers", "async") and not self.colocated
        return self.workers + (self.servers if dedicated else 0)

    @property
    def shard_share(self) -> float:
        """Part of the model on the fullest shard."""
        return self.largest_share or 1 / self.servers
