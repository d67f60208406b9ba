"""The page's sections of what a user would pick instead, on the same wire; and what its other sections sort by."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any

from plan import STRAGGLER, UNDILATED_HOSTS, dilation_told

from dba3c.benchmarks.dilated_cluster import way
from dba3c.studies.page import markdown

OURS = ("servers", "async", "allreduce", "majority")
_CASE = ("workers", "megabytes", "slow")
Row = dict[str, Any]
Rows = Sequence[Row]


def by_columns(rows: Rows, *names: str) -> list[Row]:
    """By these columns; rows that have the same stay in their order."""
    return sorted(rows, key=itemgetter(*names))


def fastest_first(rows: Rows) -> list[Row]:
    return sorted(rows, key=itemgetter("data_points_per_s"), reverse=True)


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def peers(rows: Rows) -> list[str]:
    """Who is ahead, those cases first in which it is not ours."""
    cases, told = _contests(rows)
    cells = [
        (
            way(row), row["workers"], row["backup"], f"{row['megabytes']:g}", "yes" if row["slow"] > 1 else "no",
            dilation_told(row), f"{row['step_ms']:.1f}", f"{row['data_points_per_s']:,.0f}", f"{row['own_share']:.0%}",
        )
        for row in by_columns(fastest_first(rows), *_CASE)
    ]  # fmt: skip
    columns = ("exchange", "n", "b", "MB", "straggler", "D", "step, ms", "data points/s", "busy")
    introduction = _PEERS.format(straggler=STRAGGLER, majority=_behind("majority", cases))
    return [introduction, told, markdown(columns, cells)]


def at_one(rows: Rows) -> list[str]:
    """The same at D = 1, each row beside the dilated one of its scene; of all rows."""
    mine = [row for row in rows if row["part"] == "undilated"]
    dilated = {_scene(row): row for row in rows if row["part"] == "peers"}
    told, errors, cells = _contests(mine)[1], [], []
    for row in by_columns(fastest_first(mine), *_CASE):
        beside = dilated.get(_scene(row))
        error = beside["step_ms"] / row["step_ms"] - 1 if beside else 0.0
        if beside and not beside["refused"]:
            errors.append(error)
        as_dilated = (f"{beside['step_ms']:.1f}", dilation_told(beside), f"{error:+.1%}") if beside else ("–",) * 3
        cells.append(
            (
                way(row), row["backup"], f"{row['megabytes']:g}", "yes" if row["slow"] > 1 else "no",
                f"{row['step_ms']:.1f}", *as_dilated, f"{row['data_points_per_s']:,.0f}", f"{row['own_share']:.0%}",
            )
        )  # fmt: skip
    columns = ("exchange", "b", "MB", "straggler", "step, ms", "dilated", "D", "error", "data points/s", "busy")
    introduction = _AT_ONE.format(
        hosts=UNDILATED_HOSTS,
        machine=f"{mine[0]['cores']} cores of {mine[0]['processor']}",
        rows=len(errors),
        five=sum(abs(error) <= 0.05 for error in errors),
        ten=sum(abs(error) <= 0.1 for error in errors),
        median=f"{median(errors):+.1%}" if errors else "unknown",
        furthest=f"{min(errors):+.0%} to {max(errors):+.0%}" if errors else "unknown",
    )
    return [introduction, told, markdown(columns, cells)]


def _scene(row: Row) -> tuple[Any, ...]:
    return itemgetter("exchange", "workers", "backup", "servers", "colocated", "megabytes", "gbit", "slow")(row)


def _contests(rows: Rows) -> tuple[list[list[Row]], str]:
    """(all cases, a line for each in which ours and others were measured)."""
    cases = [list(group) for _, group in groupby(by_columns(rows, *_CASE), itemgetter(*_CASE))]
    return cases, "\n".join(line for _, line in sorted(_ahead(case) for case in cases if _is_contest(case)))


def _behind(exchange: str, cases: Sequence[Rows]) -> str:
    """In words, how far it is behind the best of others where that is furthest, and nobody late."""
    furthest = []
    for case in cases:
        counted = [row for row in case if not row["refused"] and row["slow"] == 1]
        ours = [row["data_points_per_s"] for row in counted if row["exchange"] == exchange]
        theirs = [row["data_points_per_s"] for row in counted if row["exchange"] not in OURS]
        if ours and theirs:
            furthest.append((1 - max(ours) / max(theirs), case[0]))
    if not furthest:
        return ""
    share, row = max(furthest, key=itemgetter(0))
    return f" ({percent(share)} behind theirs at {row['workers']} workers and {row['megabytes']:g} MB)"


def _is_contest(case: Rows) -> bool:
    counted = [row["exchange"] in OURS for row in case if not row["refused"]]
    return any(counted) and not all(counted)


def _ahead(case: Rows) -> tuple[float, str]:
    """(by how much the best of ours is ahead of the best of theirs, in words)."""
    counted = fastest_first([row for row in case if not row["refused"]])
    our, their = (next(row for row in counted if (row["exchange"] in OURS) is own) for own in (True, False))
    ratio = our["data_points_per_s"] / their["data_points_per_s"]
    late = "nobody late" if case[0]["slow"] == 1 else "one straggler"
    if ratio < 1:
        result = f"**{way(their)} is ahead**, ours {percent(1 - ratio)} behind"
    else:
        result = f"ours {ratio:.2f} times {way(their)}" if ratio >= 1.1 else f"ours {percent(ratio - 1)} ahead"
    if our["processor"] != their["processor"]:
        result += " **(not side by side: two machines)**"
    points = "; ".join(f"{way(row)} {row['data_points_per_s']:,.0f}" for row in counted)
    return ratio, f"- {case[0]['workers']} workers, {case[0]['megabytes']:g} MB, {late}: {result} ({points})."


_PEERS = """\
Their code is `other_systems.py` and `open_mpi.py`, as their documentation shows it; the same harness, gradients, \
compute times and hosts. Straggler: worker 1 always computes {straggler:g} times as long; ours then have one backup \
worker, which none of theirs knows. Where nobody is late ours have their plain all-reduce, too, as one would choose \
it then: a majority's ranks sum when it is known who is in the step, so all wait for the one that was last to end the \
step before, where a ring lets each go on by itself{majority}. Servers are slower with a backup worker than without \
where the wire is the limit: who is in a step is known when the g-th gradient is complete, so nothing is passed on \
before, and pushing and pulling follow each other. A majority knows it before anything is sent. Data points/s, those \
cases first in which another is furthest ahead:"""

_AT_ONE = """\
**Measured, not dilated**: {hosts} of these hosts on {machine}, their links at 1 Gbit/s and processors as fast as they \
are (torch 2.11.0, Python 3.12; no real-time priority there, and no other work). Hosts and compute times are emulated \
as above. Beside it, what the dilated row of the same scene says: of {rows} (without †), {five} are within 5 % of it \
and {ten} within 10 %, the median is {median}, all are {furthest}. Below zero dilation is kind: what summing, the \
optimizer and the kernel take is D times too cheap there, and so are the kernel's timers when packets are lost. \
Open MPI's ranks, which poll, have a core each here; Horovod was not built on that machine. Rows are one run of 6 to \
66 steps."""
