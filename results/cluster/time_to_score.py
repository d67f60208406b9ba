"""The page's first section: time to a mean of 300 of Breakout, against nodes, from what `headline` composes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import way
from headline import (
    DBA3C_MINUTES,
    DBA3C_NODES,
    ENVIRONMENTS,
    GOAL,
    RUNS,
    SAMPLES,
    SIZES_GBIT,
    Composed,
    composed,
    learnt,
    of_sizes,
)
from lab import CORES
from plan import REDUCTION_MS, SHARED_TIMES, dilation_told, recorded_s

from dba3c.studies.page import markdown, rows_of

HERE = Path(__file__).resolve().parent
ASKED_MINUTES = 5.0
SWITCH_US = 25
"""From one host to the next, as is usual; no row has it."""


def to_score(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Updates that were learned × step times that were measured."""
    reached, every = learnt(SAMPLES), composed(rows)
    points = [point for point in every if point.samples == SAMPLES]
    as_many = [p for p in points if DBA3C_NODES - 4 <= p.nodes <= DBA3C_NODES and not p.row["backup"]]
    script = next(point for point in points if point.row["backup"])
    best, served = (next(p for p in as_many if p.row["exchange"] == name) for name in ("allreduce", "servers"))
    cells = [
        (
            point.nodes, way(row), _sum(row), f"{row['gbit']:g}", point.environments,
            dilation_told(row), f"{row['slowest_compute_ms']:.1f}", f"{row['bound_ms']:.1f}", f"{row['step_ms']:.1f}",
            f"{point.processor_ms:.1f}", f"{point.step_ms:.1f}", f"**{point.minutes:.1f}**", f"{row['own_share']:.0%}",
        )
        for point in points
        for row in [point.row]
    ]  # fmt: skip
    few = min(points, key=lambda point: (point.nodes, point.minutes))
    crowded_ms, rounds = _adding_up_ms(CORES), 2 * (best.row["workers"] - 1)
    switch_ms = rounds * SWITCH_US / 1e3
    columns = ("nodes", "exchange", "workers", "Gbit/s", "environments a lane", "D", "compute, ms", "bound, ms")
    told = _TO_SCORE.format(
        goal=GOAL, script=script.minutes, beside=script.row["servers"],
        minutes=best.minutes, nodes=best.nodes, who=best.who, served=served.who, more=served.minutes,
        then=DBA3C_MINUTES, then_nodes=DBA3C_NODES, sum_ms=REDUCTION_MS["small"], two_ms=_adding_up_ms(2),
        crowded_ms=crowded_ms, added=reached.updates * (best.row["step_ms"] + best.processor_ms + switch_ms) / 60e3,
        crowded=reached.updates * (best.step_ms + crowded_ms - REDUCTION_MS["small"]) / 60e3, switch_us=SWITCH_US,
        rounds=rounds, ring_ms=switch_ms, dilated=reached.updates * best.row["step_ms"] / 60e3,
        asked=ASKED_MINUTES, of_seeds=" and ".join(f"{n:,.0f}" for n in reached.of_seeds), updates=reached.updates,
        steps=reached.agent_steps / 1e6, hours=reached.cpu_hours,
        environments=ENVIRONMENTS, samples=SAMPLES, cores=CORES,
        few=few.nodes, few_minutes=few.minutes, times=few.minutes / best.minutes,
        one_ms=best.row["slowest_compute_ms"], many_ms=few.row["slowest_compute_ms"], many=few.environments,
        one_mean_ms=_mean_ms(best.environments), many_mean_ms=_mean_ms(few.environments),
    )  # fmt: skip
    more = ("dilated step, ms", "processor, ms", "step, ms", "minutes", "busy")
    return [told, markdown((*columns, *more), cells), *_of_sizes(every)]


def _of_sizes(points: Sequence[Composed]) -> list[str]:
    """How many samples an update has, on how many nodes."""
    found = of_sizes(points)
    minutes = {(point.samples, point.nodes): point.minutes for point in found}
    cells = [
        (
            f"{point.samples:,}", f"{point.updates:,.0f}", point.nodes, way(point.row), point.environments,
            f"{point.row['slowest_compute_ms']:.1f}", f"{point.step_ms:.1f}", f"**{point.minutes:.1f}**",
            f"{point.nodes * point.minutes / 60:.1f}",
        )
        for point in found
    ]  # fmt: skip
    seeds = ", ".join(f"{samples:,}: {' and '.join(f'{n:,.0f}' for n in learnt(samples).of_seeds)}" for samples in RUNS)
    columns = ("samples an update", "updates", "nodes", "exchange", "environments a lane", "compute, ms", "step, ms")
    return [
        _OF_SIZES.format(
            gbit=SIZES_GBIT,
            seeds=seeds,
            many=minutes[1200, 20],
            as_many=minutes[SAMPLES, 15],
            few=minutes[1200, 5],
            least=minutes[480, 8],
            more=minutes[1920, 8],
        ),
        "![minutes by samples of an update](to_score_samples.png)",
        markdown((*columns, "minutes", "node-hours"), cells),
    ]


def _mean_ms(environments: int) -> float:
    return float(1e3 * recorded_s(SHARED_TIMES, "small", environments).mean())


def _sum(row: dict[str, Any]) -> str:
    return f"{row['workers'] - row['backup']} + {row['backup']} backup" if row["backup"] else str(row["workers"])


def _adding_up_ms(lanes: int) -> float:
    """On two cores, as results/lanes has it."""
    rows = rows_of(HERE.parent / "lanes" / "reduction.jsonl")
    return next(row["step_ms"] for row in rows if (row["lanes"], row["megabytes"]) == (lanes, 2.7))


_TO_SCORE = """\
**{minutes:.1f} minutes on {nodes} nodes of {cores} cores ({who}; {more:.1f} with {served}), composed**; DBA3C \
reported {then:g} on {then_nodes}, {asked:g} were asked. `slurm/breakout_64nodes.sh` as it is, 64 workers of which \
the first 60 make an update, with {beside} servers beside them: **{script:.1f}**. Composed of {updates:,.0f} updates \
of {samples:,} samples, the mean of what real runs on two cores took to a mean of {goal:g} over 50 games (5-step \
actor-critic, {steps:.2f} M agent steps, {hours:.2f} core-hours; {of_seeds} updates by seed: [batch \
size](../batch_size/)), times the mean step of the rows here, whose compute times were recorded of a lane that has \
its core to itself (`shared_times.csv`; twelve on a node also share its memory). All nodes share {environments} \
environments, so the run is the same one at every number of nodes that shares them evenly; evaluation, start-up and \
recovery are not in it. It has not been run on a cluster. **More nodes pay less and less**: {few} take \
{few_minutes:.1f} minutes, {nodes} are {times:.1f} times as fast: the slowest of all their lanes computes \
{one_ms:.0f} ms for its one environment (a lane's mean is {one_mean_ms:.0f}), on {few} nodes {many_ms:.0f} for \
{many} (mean {many_mean_ms:.0f}), and the exchange becomes as long as the computing.

A step is *compute* and then the longer of two: what the exchange takes in the time-dilated row, where processors \
are D times too fast, and *processor*, what it takes of the busiest server or rank when as many processes exchange \
over this machine's loopback, not dilated (`processors.py`, the median of its runs; they share two cores, which \
costs them more than hosts of their own would). By the dilated rows alone the first would be {dilated:.1f} minutes. \
Not in it: {switch_us} µs from host to host, {ring_ms:.1f} ms in the {rounds} rounds of that ring (wire, processor \
and switch one after the other, as [beyond 64 nodes](../../docs/scaling.md) counts them, would be {added:.1f} \
minutes); and the adding up of a node's twelve lanes is taken as {sum_ms:g} ms, that of two lanes on two cores of an \
EPYC (of another {two_ms:.1f}), while twelve that take turns on two need {crowded_ms:.0f} ms ([lanes](../lanes/)), \
with which it would be {crowded:.1f} minutes."""

_OF_SIZES = """\
**1,200 samples do about as well as 3,600 on about as many nodes (20: {many:.1f} minutes; 15: {as_many:.1f}), and five \
nodes with them take {few:.1f}.** Fewer are slower: 480 on eight nodes {least:.1f}, where 1,920 take {more:.1f}. At \
{gbit:g} Gbit/s, the best exchange of each, all nodes computing and sharing the environments of an update. Updates to \
the goal by seed of [batch size](../batch_size/): {seeds} (the second of 1,200 on [16 cores](../gpu/)). No size has \
each number of nodes; *processor* is another machine's for the smaller ones."""
