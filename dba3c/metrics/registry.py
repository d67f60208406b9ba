"""Every number that a run records or draws, by name: unit, and how many of them become one.

Two layers share one type. *Recorded* metrics (kind step, server, episode, evaluation) are fields of the lines in
`metrics/*.jsonl`. *Derived* metrics (kind chart) are computed from them by `dba3c.metrics`. A metric with a `chart` is
drawn under that name by every tracker. docs/metrics.md says what each means; a test holds that it names them all.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dba3c.errors import UserError, did_you_mean

Kind = Literal["step", "server", "episode", "evaluation", "chart"]
Reduction = Literal["sum", "mean", "min", "max", "last", "norm"]
"""norm: the mean in time, the root of the sum of squares over shards."""
WEIGHTED = ("mean", "norm")
SECTIONS = (
    "environment",
    "inference",
    "serving",
    "learning",
    "waiting",
    "pushing",
    "aggregating",
    "applying",
    "other",
)
INFERENCE_THREAD_SECTIONS = ("inference", "serving", "waiting", "holding")
"""Of a learner's second thread, whose time is no part of the first one's."""


@dataclass(frozen=True)
class Metric:
    """One number. `reduction` says what becomes of several: in a window, over workers, over a chart's interval."""

    name: str
    kind: Kind
    unit: str
    reduction: Reduction
    chart: str = ""


class Reduced:
    """Several finite values of one process made one number, as their metric's reduction says."""

    __slots__ = ("_kept", "reduction", "total", "weight")

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self.total = 0.0
        self.weight = 0.0
        self._kept = math.nan

    def add(self, value: float, weight: float = 1.0) -> None:
        """One more value; `weight` (above 0): of how many values it is the mean."""
        self.total += value * weight
        self.weight += weight
        if self.reduction == "min":
            self._kept = min(value, self._kept)  # of NaN and a number, the number that comes first
        elif self.reduction == "max":
            self._kept = max(value, self._kept)
        else:
            self._kept = value

    @property
    def value(self) -> float:
        """The number; of at least one value."""
        if self.reduction in WEIGHTED:
            return self.total / self.weight
        return self.total if self.reduction == "sum" else self._kept


def over_processes(parts: Sequence[Reduced]) -> float:
    """One number of several processes' (at least one), all of one metric."""
    values = [part.value for part in parts]
    reduction = parts[0].reduction
    if reduction == "norm":
        return math.sqrt(sum(value**2 for value in values))
    if reduction == "mean":
        return sum(part.total for part in parts) / sum(part.weight for part in parts)
    if reduction == "last":
        return sum(values) / len(values)
    if reduction == "sum":
        return sum(values)
    return min(values) if reduction == "min" else max(values)


_WORKER_SECTIONS = tuple(name for name in SECTIONS if name not in ("aggregating", "applying", "other"))
_SERVER_SECTIONS = ("waiting", "aggregating", "applying", "other")
_CHARTS = (
    ("score/online", "game points"),
    ("score/mean", "game points"),
    ("score/max", "game points"),
    ("score/best", "game points"),
    ("score/best_mean", "game points"),
    ("progress/games", "games"),
    ("progress/frames", "frames"),
    ("progress/data_points", "data points"),
    ("progress/hours", "hours"),
    ("progress/core_hours_held", "core-hours held"),
    ("progress/cpu_hours", "core-hours"),
    ("speed/data_points_per_s", "data points/s"),
    ("speed/frames_per_s", "frames/s"),
    ("speed/steps_per_s", "steps/s"),
    ("speed/cpu_cores", "cores"),
    ("cluster/active_workers", "workers"),
    ("cluster/dropped_share", "share"),
    ("cluster/dropped", "gradients"),
    ("cluster/rejected", "gradients"),
    *((f"sections/worker_{name}", "share") for name in _WORKER_SECTIONS),
    *((f"sections/server_{name}", "share") for name in _SERVER_SECTIONS),
)
_ROWS: dict[Kind, tuple[tuple[str, str, Reduction, str], ...]] = {
    "step": (
        ("accepted", "gradients", "sum", ""),
        ("dropped", "gradients", "sum", ""),
        ("rejected", "gradients", "sum", ""),
        ("agent_steps", "agent steps", "sum", ""),
        ("frames", "frames", "sum", ""),
        ("data_points", "data points", "sum", ""),
        ("loss_total", "loss", "mean", "loss/total"),
        ("loss_policy", "loss", "mean", "loss/policy"),
        ("loss_value", "loss", "mean", "loss/value"),
        ("loss_critic", "loss", "mean", "loss/critic"),
        ("loss_temperature", "loss", "mean", "loss/temperature"),
        ("entropy", "nats", "mean", "policy/entropy"),
        ("temperature", "nats⁻¹", "mean", "policy/temperature"),
        ("max_probability", "probability", "mean", "policy/max_probability"),
        ("value_mean", "return", "mean", "value/predicted_reward"),
        ("advantage_mean", "return", "mean", "value/advantage"),
        ("reward_mean", "reward per agent step", "mean", "value/reward"),
        ("importance_mean", "weight", "mean", "loss/importance_weight"),
        ("td_error_mean", "|TD error|", "mean", "value/td_error"),
        ("clip_fraction", "share", "mean", "policy/clip_fraction"),
        ("kl_divergence", "nats", "mean", "policy/kl"),
        ("priority_mean", "|TD error|", "mean", "replay/priority"),
        ("active_relus", "share", "mean", "network/active_relus"),
        ("gradient_norm", "L2 norm", "mean", "gradient/norm_before_clipping"),
        ("gradient_norm_clipped", "L2 norm", "mean", "gradient/norm_after_clipping"),
        ("entropy_cost", "factor", "last", "schedule/entropy_cost"),
        ("staleness_mean", "steps", "mean", "gradient/delay_mean"),
        ("staleness_min", "steps", "min", "gradient/delay_min"),
        ("staleness_max", "steps", "max", "gradient/delay_max"),
        ("policy_lag_mean", "steps", "mean", "policy/lag_mean"),
        ("policy_lag_p50", "steps", "mean", "policy/lag_p50"),
        ("policy_lag_p99", "steps", "max", "policy/lag_p99"),
        ("policy_lag_max", "steps", "max", "policy/lag_max"),
        ("inference_batch", "environments", "mean", "inference/batch"),
        ("inference_occupancy", "share", "mean", "inference/occupancy"),
        ("inference_latency_p50_ms", "ms", "mean", "inference/latency_p50_ms"),
        ("inference_latency_p99_ms", "ms", "max", "inference/latency_p99_ms"),
        ("unroll_queue", "unrolls", "mean", "inference/unroll_queue"),
        *(
            (f"inference_thread_{name}", "share", "mean", f"inference/thread_{name}")
            for name in INFERENCE_THREAD_SECTIONS
        ),
    ),
    "server": (
        ("active_workers", "workers", "last", ""),
        ("num_gradients", "gradients", "last", "cluster/num_gradients"),
        ("commits", "steps", "sum", ""),
        ("stale", "gradients", "sum", ""),
        ("rejected", "gradients", "sum", ""),
        ("data_points_total", "data points", "last", ""),
        ("update_norm", "L2 norm", "norm", "optimizer/update_norm"),
        ("first_moment_norm", "L2 norm", "norm", "optimizer/m_norm"),
        ("second_moment_norm", "L2 norm", "norm", "optimizer/v_norm"),
        ("learning_rate", "rate", "last", "schedule/learning_rate"),
        ("bytes_received", "bytes", "sum", ""),
        ("bytes_sent", "bytes", "sum", ""),
        ("collective_s", "s", "sum", ""),
        ("applying_s", "s", "sum", ""),
    ),
    "episode": (
        ("score", "game points", "mean", ""),
        ("length_steps", "agent steps", "mean", "game/length_steps"),
    ),
    "evaluation": (
        ("checkpoint_step", "steps", "last", "evaluation/checkpoint_step"),
        ("games", "games", "last", "evaluation/games"),
        ("unfinished", "games", "last", "evaluation/unfinished"),
        ("mean", "game points", "last", "evaluation/mean"),
        ("median", "game points", "last", "evaluation/median"),
        ("iqm", "game points", "last", "evaluation/iqm"),
        ("max", "game points", "last", "evaluation/max"),
    ),
    "chart": tuple((chart, unit, "last", chart) for chart, unit in _CHARTS),
}
"""By kind: (name, unit, reduction, chart), the chart "" where it is not drawn."""
TRACKER_GROUPS = {
    "score": ("score", "evaluation", "game"),
    "speed": ("speed", "progress", "sections", "inference"),
    "loss": ("loss", "policy", "value", "replay"),
    "optimizer": ("optimizer", "gradient", "schedule", "network"),
    "cluster": ("cluster",),
}
"""Few groups are what people look through: a tracker's group, and whose charts stand in it. Beside them: workers."""
PER_WORKER_CHARTS = ("score", "frames_per_s", "dropped_share", "loss_total", "waiting_share")
"""Drawn once for each worker, as ROLE-RANK/NAME, e.g. worker-3/score."""
METRICS = tuple(
    Metric(name, kind, unit, reduction, chart) for kind, rows in _ROWS.items() for name, unit, reduction, chart in rows
)
_BY_KIND = {kind: {metric.name: metric for metric in METRICS if metric.kind == kind} for kind in _ROWS}


def of_kind(kind: Kind) -> dict[str, Metric]:
    """The metrics of one kind, by name."""
    return _BY_KIND[kind]


def charts() -> dict[str, Metric]:
    """What a tracker draws: chart name to metric."""
    return {metric.chart: metric for metric in METRICS if metric.chart}


def tracker_name(chart: str) -> str:
    """What a chart is called in trackers: `policy/entropy` is `loss/policy_entropy`, `worker-3/score` is
    `workers/score_worker-3`."""
    own, name = chart.split("/")
    for group, members in TRACKER_GROUPS.items():
        if own in members:
            return chart if own == group else f"{group}/{own}_{name}"
    return f"workers/{name}_{own}"


def find(kind: Kind, name: str) -> Metric:
    """The metric, or a UserError that names the nearest ones."""
    known = _BY_KIND[kind]
    if name not in known:
        raise unknown(f"{kind} metric", name, known)
    return known[name]


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error that names the nearest."""
    return UserError(f"unknown {what} {name!r}; {did_you_mean(name, known, 'docs/metrics.md has them all')}")
