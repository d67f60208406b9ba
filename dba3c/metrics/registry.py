"""Every number that a run records or draws, by name: unit, meaning, and how many of them become one.

Two layers share one type. *Recorded* metrics (kind step, server, episode, evaluation) are fields of the lines in
`metrics/*.jsonl`. *Derived* metrics (kind chart) are computed from them by `dba3c.metrics`. A metric with a `chart` is
drawn under that name by every tracker. docs/metrics.md is generated from here:
`python -m dba3c.metrics.registry > docs/metrics.md`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dba3c.errors import UserError

Kind = Literal["step", "server", "episode", "evaluation", "chart"]
Reduction = Literal["sum", "mean", "min", "max", "last", "norm"]
"""norm: the mean in time, the root of the sum of squares over shards."""
SECTIONS = {
    "environment": "stepping the environments",
    "inference": "the forward pass that chooses actions",
    "serving": "a learner exchanging observations and actions with its actors",
    "learning": "loss, backward pass and clipping",
    "waiting": "waiting: a worker for parameters, a server for gradients",
    "pushing": "sending the gradient and waiting for its receipt",
    "aggregating": "a server averaging the gradients of a step",
    "applying": "a server's optimizer step",
    "other": "everything else",
}

INFERENCE_THREAD_SECTIONS = {
    "inference": "the forward pass that chooses actions",
    "serving": "exchanging observations and actions with its actors",
    "waiting": "waiting for observations",
    "holding": "holding the actors up until the learner has taken unrolls",
}
"""Of a learner's second thread (`--inference-thread own`), whose time is no part of the first one's."""


@dataclass(frozen=True)
class Metric:
    """One number. `reduction` says what becomes of several: in a window, over workers, over a chart's interval."""

    name: str
    kind: Kind
    unit: str
    reduction: Reduction
    meaning: str
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
        if self.reduction in ("mean", "norm"):
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


Row = tuple[str, str, Reduction, str, str]
"""name, unit, reduction, meaning, chart ("": not drawn)."""


def _metrics(kind: Kind, *rows: Row) -> tuple[Metric, ...]:
    return tuple(Metric(name, kind, unit, reduction, meaning, chart) for name, unit, reduction, meaning, chart in rows)


_STEP = _metrics(
    "step",
    ("accepted", "gradients", "sum", "gradients that entered an update", ""),
    ("dropped", "gradients", "sum", "gradients that came too late for their step (stale)", ""),
    ("rejected", "gradients", "sum", "gradients refused for another reason (not finite, wrong length)", ""),
    ("agent_steps", "agent steps", "sum", "agent steps taken, whatever became of them (a reset is none)", ""),
    ("frames", "frames", "sum", "emulator frames that these steps ran", ""),
    ("data_points", "data points", "sum", "agent steps that entered an accepted update, each counted once", ""),
    ("loss_total", "loss", "mean", "the loss as it is optimised", "loss/total"),
    ("loss_policy", "loss", "mean", "its policy gradient term", "loss/policy"),
    ("loss_value", "loss", "mean", "its value term, weighted as it is optimised", "loss/value"),
    ("loss_critic", "loss", "mean", "the two critics' loss (SAC)", "loss/critic"),
    ("loss_temperature", "loss", "mean", "the entropy temperature's loss (SAC)", "loss/temperature"),
    (
        "entropy",
        "nats",
        "mean",
        "mean entropy of the policy, as the loss has it: steps that do not train count as 0",
        "policy/entropy",
    ),
    ("temperature", "nats⁻¹", "mean", "entropy temperature (SAC)", "policy/temperature"),
    ("max_probability", "probability", "mean", "mean probability of the likeliest action", "policy/max_probability"),
    ("value_mean", "return", "mean", "mean predicted value: the predicted reward", "value/predicted_reward"),
    ("advantage_mean", "return", "mean", "mean advantage", "value/advantage"),
    (
        "reward_mean",
        "reward per agent step",
        "mean",
        "mean reward as trained on (clipped when configured)",
        "value/reward",
    ),
    (
        "importance_mean",
        "weight",
        "mean",
        "mean importance weight: the clipped ratio of learning to acting policy (V-trace), the replay's (R2D2)",
        "loss/importance_weight",
    ),
    ("td_error_mean", "|TD error|", "mean", "mean error of rescaled action values (R2D2)", "value/td_error"),
    ("clip_fraction", "share", "mean", "data points whose ratio was clipped (PPO)", "policy/clip_fraction"),
    ("kl_divergence", "nats", "mean", "estimated KL(old‖new) while a rollout is learned (PPO)", "policy/kl"),
    ("priority_mean", "|TD error|", "mean", "mean replay priority (R2D2)", "replay/priority"),
    ("active_relus", "share", "mean", "share of hidden ReLU units that are above zero", "network/active_relus"),
    ("gradient_norm", "L2 norm", "mean", "norm of the gradient before clipping", "gradient/norm_before_clipping"),
    ("gradient_norm_clipped", "L2 norm", "mean", "norm of the gradient after clipping", "gradient/norm_after_clipping"),
    ("learning_rate", "rate", "last", "learning rate that the schedule gives", "schedule/learning_rate"),
    ("entropy_cost", "factor", "last", "weight of the entropy term that the schedule gives", "schedule/entropy_cost"),
    (
        "staleness_mean",
        "steps",
        "mean",
        "updates by others between a gradient's parameters and its answer",
        "gradient/delay_mean",
    ),
    ("staleness_min", "steps", "min", "the least of them", "gradient/delay_min"),
    ("staleness_max", "steps", "max", "the most of them", "gradient/delay_max"),
    (
        "policy_lag_mean",
        "steps",
        "mean",
        "updates between the weights that acted and the weights that learn",
        "policy/lag_mean",
    ),
    ("policy_lag_p50", "steps", "mean", "the median of them", "policy/lag_p50"),
    ("policy_lag_p99", "steps", "max", "their 99th percentile", "policy/lag_p99"),
    ("policy_lag_max", "steps", "max", "the most of them", "policy/lag_max"),
    ("inference_batch", "environments", "mean", "mean size of a central inference batch", "inference/batch"),
    (
        "inference_occupancy",
        "share",
        "mean",
        "share of a learner's environments that a batch answers",
        "inference/occupancy",
    ),
    (
        "inference_latency_p50_ms",
        "ms",
        "mean",
        "median time from an observation's arrival to its answer",
        "inference/latency_p50_ms",
    ),
    ("inference_latency_p99_ms", "ms", "max", "its 99th percentile", "inference/latency_p99_ms"),
    ("unroll_queue", "unrolls", "mean", "complete unrolls that wait for the learner", "inference/unroll_queue"),
    *(
        (
            f"inference_thread_{name}",
            "share",
            "mean",
            f"share of a learner's second thread's time: {text}",
            f"inference/thread_{name}",
        )
        for name, text in INFERENCE_THREAD_SECTIONS.items()
    ),
)
_SERVER = _metrics(
    "server",
    ("active_workers", "workers", "last", "live members of the run", ""),
    ("num_gradients", "gradients", "last", "g: gradients that make an update", "cluster/num_gradients"),
    ("commits", "steps", "sum", "steps committed", ""),
    ("stale", "gradients", "sum", "gradients answered as stale", ""),
    ("rejected", "gradients", "sum", "gradients rejected", ""),
    ("data_points_total", "data points", "last", "data points committed since the run began", ""),
    (
        "update_norm",
        "L2 norm",
        "norm",
        "norm of one update's parameter change: the first since the last report (about 1 s; of each shard its own)",
        "optimizer/update_norm",
    ),
    ("first_moment_norm", "L2 norm", "norm", "norm of the Adam m (momentum)", "optimizer/m_norm"),
    ("second_moment_norm", "L2 norm", "norm", "norm of the Adam v (mean square)", "optimizer/v_norm"),
    ("learning_rate", "rate", "last", "learning rate of the last step", "schedule/learning_rate"),
    ("bytes_received", "bytes", "sum", "bytes of gradients received", ""),
    ("bytes_sent", "bytes", "sum", "bytes of parameters sent", ""),
    ("collective_s", "s", "sum", "seconds in sums over ranks, within this process's `pushing` (all-reduce)", ""),
    ("applying_s", "s", "sum", "seconds in updates, within this process's `pushing` (where there is no server)", ""),
)
_EPISODE = _metrics(
    "episode",
    ("score", "game points", "mean", "unclipped sum of a whole game's rewards", ""),
    ("length_steps", "agent steps", "mean", "length of the game", "game/length_steps"),
)
_EVALUATION = _metrics(
    "evaluation",
    ("checkpoint_step", "steps", "last", "step of the evaluated checkpoint", "evaluation/checkpoint_step"),
    ("games", "games", "last", "full games played", ""),
    ("unfinished", "games", "last", "games that had not ended when the run's end left no more time", ""),
    ("mean", "game points", "last", "mean score", "evaluation/mean"),
    ("median", "game points", "last", "median score", "evaluation/median"),
    ("iqm", "game points", "last", "interquartile mean of the scores", "evaluation/iqm"),
    ("max", "game points", "last", "highest score", "evaluation/max"),
)
_CHARTS: tuple[tuple[str, str, str], ...] = (
    ("score/online", "game points", "mean score of the games that ended since the last point"),
    ("score/mean", "game points", "mean score of the last 50 finished games"),
    ("score/max", "game points", "highest score of the last 50 finished games"),
    ("score/best", "game points", "highest score of any game so far"),
    ("score/best_mean", "game points", "highest mean over 50 consecutive games so far"),
    ("progress/games", "games", "games finished"),
    ("progress/frames", "frames", "emulator frames stepped, whatever became of them"),
    ("progress/data_points", "data points", "agent steps that entered an update"),
    ("progress/hours", "hours", "wall clock, over all lives of the run, without the time between them"),
    ("progress/core_hours", "core-hours held", "cores held × wall clock, over all lives of the run"),
    ("progress/cpu_hours", "core-hours", "processor time used by all processes of the run"),
    ("speed/data_points_per_s", "data points/s", "data points of accepted gradients, mean of 10 s"),
    ("speed/frames_per_s", "frames/s", "emulator frames stepped, mean of 10 s"),
    ("speed/steps_per_s", "steps/s", "steps committed, mean of 10 s"),
    ("speed/cpu_cores", "cores", "processor time used by all processes of the run, mean of 10 s"),
    ("cluster/active_workers", "workers", "live workers: the server's count, else those heard of in 10 s"),
    ("cluster/dropped_share", "share", "dropped gradients among all, mean of 10 s"),
    ("cluster/dropped", "gradients", "gradients dropped as stale so far"),
    ("cluster/rejected", "gradients", "gradients rejected so far"),
    *((f"sections/worker_{name}", "share", f"share of the workers' time: {text}, mean of 10 s")
      for name, text in SECTIONS.items() if name not in ("aggregating", "applying", "other")),
    *((f"sections/server_{name}", "share", f"share of the servers' time: {text}, mean of 10 s")
      for name, text in SECTIONS.items() if name in ("aggregating", "applying", "waiting", "other")),
)  # fmt: skip
PER_WORKER_CHARTS = {
    "score": ("game points", "mean score of its last 50 finished games"),
    "frames_per_s": ("frames/s", "emulator frames it stepped, mean of 10 s"),
    "dropped_share": ("share", "its gradients that were dropped, mean of 10 s"),
    "loss_total": ("loss", "its own loss, newest window"),
    "waiting_share": ("share", "share of its time spent waiting for parameters, mean of 10 s"),
}
"""Drawn once for each worker, as ROLE-RANK/NAME, e.g. worker-3/score."""

METRICS: tuple[Metric, ...] = (
    *_STEP,
    *_SERVER,
    *_EPISODE,
    *_EVALUATION,
    *(Metric(chart, "chart", unit, "last", meaning, chart) for chart, unit, meaning in _CHARTS),
)
_BY_KIND: dict[str, dict[str, Metric]] = {}
for _metric in METRICS:
    if _metric.name in _BY_KIND.setdefault(_metric.kind, {}):
        raise ValueError(f"metric {_metric.kind}/{_metric.name} is defined twice")
    _BY_KIND[_metric.kind][_metric.name] = _metric


def of_kind(kind: Kind) -> dict[str, Metric]:
    """The metrics of one kind, by name."""
    return _BY_KIND[kind]


def charts() -> dict[str, Metric]:
    """What a tracker draws: chart name to metric."""
    return {metric.chart: metric for metric in METRICS if metric.chart}


def find(kind: Kind, name: str) -> Metric:
    """The metric, or a UserError that names the nearest ones."""
    known = _BY_KIND[kind]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise UserError(f"unknown {kind} metric {name!r}{hint} (all of them: docs/metrics.md)")
    return known[name]


_INTRODUCTION = """# Metrics

*Generated from `dba3c/metrics/registry.py`: `python -m dba3c.metrics.registry > docs/metrics.md`; a test keeps it so.*

Every process of a run appends one JSON object a line to its own file, `RUN/metrics/ROLE-RANK.jsonl`. These files are
the truth: the live view, the trackers, the stop rule, exports and plots are computed from them.

Every record has `kind`, `time_s` (unix), `step` (the newest committed step its writer knew), `role`, `rank` and
`incarnation` (+1 by each restart, +100 by each launch). Step and server records are reduced over windows (about one
second by default) by the rule in the tables, hold `count` (how many became one), `window_s` (the seconds that they are
of), `cpu_s` (processor seconds used) and `sections_s` (seconds by section). A value that is not finite becomes null,
and `not_finite` counts it by name.

Three counts, each made in one place: **frames** that emulators ran (as drawn, where the frame skip is random; a reset's
are none) and **agent steps**, both counted by whoever steps environments (workers, actors), whatever becomes of them;
**data points**, agent steps that entered an accepted update, each once (of a replay: when an update first uses them).
`--total-frames` is data points × the frame skip, its mean where it is random.
"""
_KINDS = {
    "step": "Recorded for each gradient of a worker or learner",
    "server": "Recorded about once a second by a server, or by the rank that speaks where there is none",
    "episode": "Recorded for each finished game",
    "evaluation": "Recorded for each evaluated checkpoint (with `interval_95`, the bootstrap interval of the IQM)",
}


def render() -> str:
    """The text of docs/metrics.md."""
    parts = [_INTRODUCTION]
    for kind, title in _KINDS.items():
        rows = (
            (f"`{m.name}`", m.unit, m.reduction, m.meaning, f"`{m.chart}`" if m.chart else "")
            for m in METRICS
            if m.kind == kind
        )
        parts.append(
            f'## {title}: `kind="{kind}"`\n\n' + _table(("name", "unit", "reduced by", "meaning", "chart"), rows)
        )
    parts.append(
        "`episode` records also say `terminated` and `truncated`; `event` records hold `event` (joined, left, killed, "
        "shrunk, checkpoint, ...) and `message`, one line for people.\n\n"
        "Reduced by `norm`: the mean in time, and the root of the sum of squares over shards."
    )
    sections = ((f"`{name}`", meaning) for name, meaning in SECTIONS.items())
    parts.append("## Sections of a step\n\n" + _table(("name", "meaning"), sections))
    drawn = ((f"`{m.chart}`", m.unit, _chart_meaning(m)) for m in charts().values())
    parts.append("## Charts, the same in every tracker\n\n" + _table(("chart", "unit", "meaning"), drawn))
    per_worker = ((f"`{name}`", unit, meaning) for name, (unit, meaning) in PER_WORKER_CHARTS.items())
    parts.append(
        "## Charts of each worker, as `ROLE-RANK/NAME`, e.g. `worker-3/score`\n\n"
        + _table(("name", "unit", "meaning"), per_worker)
    )
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _chart_meaning(metric: Metric) -> str:
    if metric.kind == "chart":
        return metric.meaning
    return f"{metric.meaning} (`{metric.kind}` record's `{metric.name}`, {metric.reduction} since the last point)"


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(headings)]
    lines += [["---"] * len(lines[0])]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(render(), end="")
