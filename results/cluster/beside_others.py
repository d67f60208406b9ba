"""The page's sections of what a user would pick instead, on the same wire; and what its other sections sort by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any

from figures import way
from open_mpi import POLL_S
from plan import STRAGGLER, UNDILATED_HOSTS, mark

from dba3c.studies.page import markdown

OURS = ("servers", "async", "allreduce", "all-reduce (MPI)", "all-reduce (Horovod)", "majority")
_CASE = ("workers", "megabytes", "slow")
MOST_BEHIND = 0.05
ASKED_OVER_BOUND = 1.15
LEVEL = 0.0005
"""A ratio so close to 1 is no lead: it would be told as 0.0 %."""
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
    """Who is ahead, those cases first in which it is not ours; and all, of the most hosts."""
    cases, told = _contests(rows)
    introduction = _PEERS.format(straggler=STRAGGLER, poll=1e6 * POLL_S, majority=_behind("majority", cases))
    contests = [case for case in cases if _is_contest(case)]
    goals = _GOALS.format(
        ahead=_leads(contests),
        near=percent(MOST_BEHIND, 0),
        reached=_reached(contests),
        asked=ASKED_OVER_BOUND,
        bounds=_over_bound(rows),
    )
    return [goals, introduction, told, _at_a_glance(rows)]


def _leads(contests: Sequence[Rows]) -> str:
    """In words, where another system is ahead of all of ours."""
    told = []
    for case in contests:
        ratio, our, their = _best_of_each(case)
        if ratio < 1 - LEVEL:
            where = f"{our['workers']} workers, {our['megabytes']:g} MB, {_late(our['slow'])}"
            told.append((ratio, f"{way(their)} (ours {percent(1 - ratio)} behind: {where})"))
    return f"**Ahead of all of ours: {'; '.join(who for _, who in sorted(told))}**" if told else "**Nobody is ahead**"


def _reached(contests: Sequence[Rows]) -> str:
    """In words, how far those that have backup workers are from the best of theirs, whatever D and machine."""
    behind: dict[str, tuple[list[float], list[float]]] = {}  # nobody late, one straggler
    for case in contests:
        _, _, their = _best_of_each(case)
        for row in case:
            if not row["refused"] and row["exchange"] in ("servers", "majority"):
                share = 1 - row["data_points_per_s"] / their["data_points_per_s"]
                behind.setdefault(way(row), ([], []))[row["slow"] > 1].append(share)
    told = []
    for who, (none_late, one_late) in behind.items():
        near = sum(share <= MOST_BEHIND for share in none_late)
        most = f" (at most {percent(max(none_late))} behind)" if none_late else ""
        ahead = sum(share < 0 for share in one_late)
        told.append(f"{who} {near} of {len(none_late)}{most} and {ahead} of {len(one_late)}")
    return "; ".join(told)


def in_bounds(row: Row) -> float | None:
    """What the exchange takes, in bounds of the wire; None for those that have none or do not wait for it."""
    if not row["bound_ms"] or row["exchange"] == "async":
        return None
    return float((row["step_ms"] - row["slowest_compute_ms"]) / row["bound_ms"])


def _over_bound(rows: Rows) -> str:
    """In words, what servers of the most workers take, by how many are late and how much they send."""
    most = max(row["workers"] for row in rows)
    mine = [row for row in rows if row["workers"] == most and row["exchange"] == "servers"]
    told: dict[tuple[str, float], list[str]] = {}
    for row in by_columns(mine, "slow", "colocated", "megabytes"):
        told.setdefault((way(row), row["slow"]), []).append(
            f"{in_bounds(row):.2f}{mark(row)} ({row['megabytes']:g} MB)"
        )
    return "; ".join(f"with {who}, {_late(slow)} {' and '.join(all_of)}" for (who, slow), all_of in told.items())


def _at_a_glance(rows: Rows) -> str:
    """A line for each exchange among the most hosts, a column for each case."""
    most = max(row["workers"] for row in rows)
    mine = fastest_first([row for row in rows if row["workers"] == most])
    cases = sorted({(row["megabytes"], row["slow"]) for row in mine})
    best = {case: _best_of_ours(row for row in mine if (row["megabytes"], row["slow"]) == case) for case in cases}
    rates = {
        (way(row), *case): f"{row['data_points_per_s']:,.0f}{mark(row)}{unlike(row, best[case])}"
        for row in mine
        for case in [(row["megabytes"], row["slow"])]
    }
    cells = [[name, *(rates.get((name, *case), "–") for case in cases)] for name in dict.fromkeys(map(way, mine))]
    return markdown([f"{most} hosts", *(f"{mb:g} MB, {_late(slow)}" for mb, slow in cases)], cells)


def _best_of_ours(rows: Iterable[Row]) -> Row | None:
    """The fastest that counts."""
    counted = [row for row in rows if not row["refused"] and row["exchange"] in OURS]
    return fastest_first(counted)[0] if counted else None


def unlike(row: Row, other: Row | None) -> str:
    """In which of D and machine it differs from another, in brackets."""
    if other is None:
        return ""
    words = [f"D = {row['dilation']}"] if row["dilation"] != other["dilation"] else []
    words += ["§"] if row["processor"] != other["processor"] else []
    return f" [{', '.join(words)}]" if words else ""


def _late(slow: float) -> str:
    return "nobody late" if slow == 1 else "one straggler"


def at_one(rows: Rows) -> list[str]:
    """The same at D = 1, and how far the dilated rows of the same scenes are from it; of all rows."""
    mine = [row for row in rows if row["part"] == "undilated"]
    dilated = {_scene(row): row for row in rows if row["part"] == "peers"}
    beside = [(row, dilated[_scene(row)]) for row in mine if _scene(row) in dilated]
    errors = [of["step_ms"] / row["step_ms"] - 1 for row, of in beside if not of["refused"]]
    introduction = _AT_ONE.format(
        hosts=UNDILATED_HOSTS,
        machine=f"{mine[0]['cores']} cores of {mine[0]['processor']}",
        rows=len(errors),
        five=sum(abs(error) <= 0.05 for error in errors),
        ten=sum(abs(error) <= 0.1 for error in errors),
        median=f"{median(errors):+.1%}" if errors else "unknown",
        furthest=f"{min(errors):+.0%} to {max(errors):+.0%}" if errors else "unknown",
    )
    return [introduction, _contests(mine)[1]]


def _scene(row: Row) -> tuple[Any, ...]:
    return itemgetter("exchange", "workers", "backup", "servers", "colocated", "megabytes", "gbit", "slow")(row)


def _contests(rows: Rows) -> tuple[list[list[Row]], str]:
    """(all cases, a line for each in which ours and others were measured)."""
    cases = [list(group) for _, group in groupby(by_columns(rows, *_CASE), itemgetter(*_CASE))]
    return cases, "\n".join(line for _, line in sorted(_ahead(case) for case in cases if _is_contest(case)))


def _behind(exchange: str, cases: Sequence[Rows]) -> str:
    """In words, how far it is behind the best of others at the same D and machine, where that is furthest, and nobody
    late."""
    furthest = []
    for case in cases:
        counted = [row for row in case if not row["refused"] and row["slow"] == 1]
        our = next((row for row in counted if row["exchange"] == exchange), None)
        if our is None:
            continue
        beside = [row for row in counted if all(row[name] == our[name] for name in ("processor", "dilation"))]
        if theirs := [row["data_points_per_s"] for row in beside if row["exchange"] not in OURS]:
            furthest.append((1 - our["data_points_per_s"] / max(theirs), our))
    if not furthest:
        return ""
    share, row = max(furthest, key=itemgetter(0))
    return f" ({percent(share)} behind theirs at {row['workers']} workers and {row['megabytes']:g} MB)"


def _is_contest(case: Rows) -> bool:
    counted = [row["exchange"] in OURS for row in case if not row["refused"]]
    return any(counted) and not all(counted)


def _best_of_each(case: Rows) -> tuple[float, Row, Row]:
    """(ours in theirs, the fastest row of ours, of theirs)."""
    counted = fastest_first([row for row in case if not row["refused"]])
    our, their = (next(row for row in counted if (row["exchange"] in OURS) is own) for own in (True, False))
    return our["data_points_per_s"] / their["data_points_per_s"], our, their


def _ahead(case: Rows) -> tuple[float, str]:
    """(by how much the best of ours is ahead of the best of theirs, in words)."""
    ratio, our, their = _best_of_each(case)
    if abs(1 - ratio) < LEVEL:
        result = f"ours level with {way(their)}"
    elif ratio < 1:
        result = f"**{way(their)} is ahead**, ours {percent(1 - ratio)} behind"
    else:
        result = f"ours {ratio:.2f} times {way(their)}" if ratio >= 1.1 else f"ours {percent(ratio - 1)} ahead"
    if our["dilation"] != their["dilation"]:
        result += f" (D = {our['dilation']} beside {their['dilation']})"
    if our["processor"] != their["processor"]:
        result += " **(not side by side: two machines)**"
    counted = fastest_first([row for row in case if not row["refused"]])
    points = "; ".join(f"{way(row)} {row['data_points_per_s']:,.0f}{unlike(row, our)}" for row in counted)
    points = f"D = {our['dilation']}: {points}" if our["dilation"] > 1 else points
    who = f"{case[0]['workers']} workers, {case[0]['megabytes']:g} MB, {_late(case[0]['slow'])}"
    return ratio, f"- {who}: {result} ({points})."


_GOALS = """\
{ahead}. Asked was that servers and a majority be within {near} of the best of theirs where nobody is late, and ahead \
of it with a straggler. In so many of the cases below they are: {reached}. Our plain all-reduce, which one would \
choose where nobody is late, is compared, too. The exchange of 64 workers takes, in bounds of the wire (asked was at \
most {asked:g}), {bounds}."""

_PEERS = """\
Their code is `other_systems.py` and `open_mpi.py`, as their documentation shows it; the same harness, gradients, \
hosts and compute times (those of the small network for 1.33 MB, of Nature's for 6.7). Open MPI's ranks that wait ask \
again and again, here with naps of {poll:g} µs of the cluster's time between; Horovod's cycle is its default, 1 ms of \
the cluster's, and its ranks call `allreduce_async_` and ask `poll` after such naps, where its DistributedOptimizer \
would spin. 64 ranks of Horovod take up to five minutes to join on these two cores: they may wait longer for it than \
by default, and their rendezvous is at the switch. Our all-reduce over MPI calls `Iallreduce` and polls, for which \
Open MPI has other algorithms. In square brackets: another D than that of the best of ours, § another processor; from \
D = 10 to 40 alone an all-reduce of 16 hosts is 2.7 % faster ([below](#does-d-matter)). Straggler: worker 1 always \
computes {straggler:g} times as long; ours then have one backup worker, which none of theirs knows. Where nobody is \
late ours have their plain all-reduce, too, as one would choose it then: a majority's ranks sum when it is known who \
is in the step, so all wait for the one that was last to end the step before, where a ring lets each go on by \
itself{majority}. Servers are slower with a backup worker than without where the wire is the limit: who is in a step \
is known when the g-th gradient is complete, so nothing is passed on before, and pushing and pulling follow each \
other. A majority knows it before anything is sent. Data points/s, those cases first in which another is furthest \
ahead, and below them all exchanges of the most hosts (all rows: `part` *peers* in `rows.jsonl`):"""

_AT_ONE = """\
**Measured, not dilated**: {hosts} of these hosts on {machine}, their links at 1 Gbit/s and processors as fast as they \
are (torch 2.11.0, Python 3.12; no real-time priority there, and no other work). Hosts and compute times are emulated \
as above. Beside it, what the dilated row of the same scene says: of {rows} (without †), {five} are within 5 % of it \
and {ten} within 10 %, the median is {median}, all are {furthest}. Below zero dilation is kind: what summing, the \
optimizer and the kernel take is D times too cheap there, and so are the kernel's timers when packets are lost. \
Open MPI's ranks have a core each here and poll without naps; Horovod was not built on that machine. Rows are one \
run of 6 to 66 steps (`part` *undilated* in `rows.jsonl`)."""
