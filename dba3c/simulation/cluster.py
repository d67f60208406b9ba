"""What is simulated (a cluster's links, the work of a step, how gradients are exchanged), and what is found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dba3c.errors import UserError

ExchangeKind = Literal["servers", "async", "allreduce", "majority"]
_FASTEST_BYTES_PER_S = 1e18
"""Stands for a network without limit."""
WARM_UP_STEPS = 2
"""Steps that begin with everybody at once, as no later one does."""


def _require_shares(of: object, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(of, name) <= 1:
            raise UserError(f"{name} must lie in [0, 1], got {getattr(of, name)}")


def _require_finite(of: object, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(of, name) < math.inf:
            raise UserError(f"{name} must be at least 0 and finite, got {getattr(of, name)}")


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
        for name in ("bytes_per_s", "aggregate_bytes_per_s", "apply_bytes_per_s", "wire_efficiency"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be greater than 0, got {getattr(self, name)}")
        _require_shares(self, "wire_efficiency", "overlap_lost")
        _require_finite(self, "latency_s", "message_s", "link_unfairness")

    @property
    def tensor_bytes_per_s(self) -> float:
        """Bytes of tensors that a host's link carries in each direction."""
        return min(self.bytes_per_s * self.wire_efficiency, _FASTEST_BYTES_PER_S)


@dataclass(frozen=True, kw_only=True)
class ComputeTimes:
    """Distribution of the seconds from parameters to gradient.

    Without samples it is lognormal. `draw` depends only on the seed and the shape, so that two clusters that differ in
    their links or servers are given the same times (common random numbers).
    """

    mean_s: float
    """Mean, before stragglers."""

    variation: float = 0.0
    """Standard deviation / mean between the steps of one worker."""

    samples_s: tuple[float, ...] = ()
    """Measured times; when there are some, they are drawn from (interpolated quantiles) and scaled to the mean."""

    worker_variation: float = 0.0
    """Standard deviation / mean between workers: a slow machine stays slow."""

    straggler_probability: float = 0.0
    """Steps of a worker that take longer than that."""

    straggler_slowdown: float = 1.0
    """... by this factor."""

    def __post_init__(self) -> None:
        _require_finite(self, "mean_s", "variation", "worker_variation")
        _require_shares(self, "straggler_probability")
        if not 1 <= self.straggler_slowdown < math.inf:
            raise UserError(f"straggler_slowdown must be at least 1 and finite, got {self.straggler_slowdown}")

    def draw(self, steps: int, workers: int, seed: int) -> NDArray[np.float64]:
        """Seconds [steps, workers] float64. The first n workers' times are the same whatever `workers` is."""
        streams = np.random.SeedSequence(seed).spawn(workers)
        return np.stack([self._of_worker(np.random.default_rng(stream), steps) for stream in streams], axis=1)

    def _of_worker(self, random: np.random.Generator, steps: int) -> NDArray[np.float64]:
        factor = float(_lognormal(random.standard_normal(), self.worker_variation))
        if self.samples_s:
            quantiles = np.quantile(self.samples_s, random.random(steps))
            mean = float(np.mean(self.samples_s))
            times = quantiles * (self.mean_s / mean if mean else 1.0)
        else:
            times = self.mean_s * _lognormal(random.standard_normal(steps), self.variation)
        late = random.random(steps) < self.straggler_probability
        return factor * np.where(late, self.straggler_slowdown * times, times)


def _lognormal(normal: NDArray[np.float64] | float, variation: float) -> NDArray[np.float64]:
    """exp of a normal with mean 1 and standard deviation `variation` after exp."""
    sigma_squared = math.log1p(variation**2)
    return np.exp(math.sqrt(sigma_squared) * np.asarray(normal) - sigma_squared / 2)


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
        for name in ("model_bytes", "data_points"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be greater than 0 and finite, got {getattr(self, name)}")


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

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 1 or self.backup < 0:
            given = f"{self.workers}, {self.servers} and {self.backup}"
            raise UserError(f"workers and servers must be at least 1, backup workers at least 0, got {given}")
        if self.backup >= self.workers:
            raise UserError(f"{self.backup} backup of {self.workers} workers leave no gradient for an update")
        if self.backup and self.exchange in ("async", "allreduce"):
            raise UserError(f"exchange {self.exchange} has no backup workers, got {self.backup}")
        if self.colocated and self.servers > self.workers:
            raise UserError(f"{self.servers} servers cannot be colocated with {self.workers} workers")

    def __str__(self) -> str:
        """For people, without the backup workers: 4 servers beside workers, all-reduce."""
        if self.exchange in ("allreduce", "majority"):
            return "all-reduce"
        return f"{self.servers} server{'s' if self.servers > 1 else ''}{' beside workers' if self.colocated else ''}"

    @property
    def gradients(self) -> int:
        """g: gradients of one update."""
        return 1 if self.exchange == "async" else self.workers - self.backup


@dataclass(frozen=True)
class Outcome:
    """`commits_s` [steps] float64: when each step was committed, in seconds from the start."""

    commits_s: NDArray[np.float64]
    gradients: int
    dropped: int
    data_points: float
    """In one gradient."""
    warm_up: int = WARM_UP_STEPS

    @property
    def step_s(self) -> float:
        """Mean seconds of a step, after the first ones."""
        skipped = self.warm_up if len(self.commits_s) > 2 * self.warm_up else 0
        times = np.diff(self.commits_s, prepend=0.0)[skipped:]
        return float(times.mean())

    @property
    def data_points_per_s(self) -> float:
        """Data points that enter updates per second; infinity when a step takes no time."""
        return self.gradients * self.data_points / self.step_s if self.step_s else math.inf

    @property
    def dropped_share(self) -> float:
        """Late gradients among all that were finished."""
        return self.dropped / (self.gradients * len(self.commits_s) + self.dropped)
