"""What is simulated (a cluster's links, the work of a step, how gradients are exchanged), and what is found."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dba3c.errors import UserError
from param_servers.config import check_options, option

ExchangeKind = Literal["servers", "async", "allreduce", "majority"]
_FASTEST_BYTES_PER_S = 1e18
"""Stands for a network without limit."""
WARM_UP_STEPS = 2
"""Steps that begin with everybody at once, as no later one does."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts that can each send and receive `bytes_per_s` at once, through a switch that blocks nobody."""

    bytes_per_s: float = option(above=0)
    """Of a host's link, in each direction; infinity for none."""

    latency_s: float = option(0.0, least=0, below=math.inf)
    """One way, from a send to the other process acting on it."""

    wire_efficiency: float = option(1.0, above=0, most=1)
    """Tensor bytes / bytes on the wire: headers of Ethernet, IP, TCP."""

    message_s: float = option(0.0, least=0, below=math.inf)
    """Processor time of a coordinator for one message about one gradient."""

    aggregate_bytes_per_s: float = option(math.inf, above=0)
    """Gradient bytes that a server sums per second."""

    apply_bytes_per_s: float = option(math.inf, above=0)
    """Parameter bytes that an optimizer steps per second."""

    overlap_lost: float = option(0.0, least=0, most=1)
    """Share of an update's transfer that unfair links keep from overlapping with its gradients' arrival
    (0: none, as with perfectly fair links; 1: all, as without cut-through)."""

    def __post_init__(self) -> None:
        check_options(self, UserError)

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

    mean_s: float = option(least=0, most=1e9)
    """Mean, before stragglers."""

    variation: float = option(0.0, least=0, most=1e3)
    """Standard deviation / mean between the steps of one worker."""

    samples_s: tuple[float, ...] = ()
    """Measured times; when there are some, they are drawn from (interpolated quantiles) and scaled to the mean."""

    worker_variation: float = option(0.0, least=0, most=1e3)
    """Standard deviation / mean between workers: a slow machine stays slow."""

    straggler_probability: float = option(0.0, least=0, most=1)
    """Share of a worker's steps that are slow."""

    straggler_slowdown: float = option(1.0, least=1, most=1e9)
    """How many times as long a slow step takes."""

    def __post_init__(self) -> None:
        check_options(self, UserError)

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

    model_bytes: float = option(above=0, below=math.inf)
    """M: bytes of a gradient, and of the parameters."""

    compute: ComputeTimes
    """Seconds from parameters to gradient."""

    data_points: float = option(1.0, above=0, below=math.inf)
    """In one gradient."""

    def __post_init__(self) -> None:
        check_options(self, UserError)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Who takes part."""

    exchange: ExchangeKind = "servers"

    workers: int = option(1, least=1)
    """n: gradients of a step + backup workers."""

    backup: int = option(0, least=0)
    """b: workers whose gradient a step does not wait for."""

    servers: int = option(1, least=1)
    """k: servers, async."""

    colocated: bool = False
    """servers: on the hosts of the first k workers, not on hosts of their own."""

    cut_through: bool = True
    """servers without backup workers: parameters leave while gradients arrive; False: after the update, as in 2017."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
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
