"""Start-up, memory and overhead of 64 ranks on a real Slurm on this machine, written to results/launch.

python -m launch.benchmarks            (root; about 12 minutes on two idle cores; 12 GB of memory)
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from dba3c.runs import host_facts
from dba3c.studies.figures import line_of, new_figure, save
from launch.benchmarks.overhead import Case, measure_overhead
from launch.benchmarks.slurm_lab import ROOT, measure_startup, slurm_lab

CASES = ["4:0.004:0", "4:0.133:0", "4:1.33:0", "4:1.33:4", "1:0.004:0", "1:0.133:0", "1:1.33:0"]
BOUND = 1.15
COLUMNS = {
    "servers": "servers",
    "backup_workers": "backup",
    "megabytes": "MB",
    "step_ms": "step, ms",
    "step_p90_ms": "p90, ms",
    "over_sleep": "step / sleep",
    "moved_mb_per_step": "moved, MB/step",
    "workers_cpu_ms_per_step": "workers' CPU, ms/step",
    "servers_cpu_ms_per_step": "servers' CPU, ms/step",
    "worker_waits_per_step": "waits of a worker/step",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "launch")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--sleep-s", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cases", type=Case.parse, nargs="+", default=list(map(Case.parse, CASES)))
    parser.add_argument("--startup-ranks", type=int, default=64, help="0: overhead only")
    options = parser.parse_args()
    nodes = max(options.startup_ranks, options.workers + max(case.servers for case in options.cases))
    with slurm_lab(nodes) as lab:
        startup = measure_startup(lab, options.startup_ranks) if options.startup_ranks else {}
        print(startup, flush=True)
        overhead = measure_overhead(
            lab, options.cases, workers=options.workers, sleep_s=options.sleep_s, steps=options.steps
        )
    write_report(
        options.out, {**facts(), "nodes": nodes, "steps": options.steps, "startup": startup, "overhead": overhead}
    )
    print((options.out / "README.md").read_text())


def facts() -> dict[str, Any]:
    """When, where, and by which command."""
    host, versions, source = host_facts.host(), host_facts.versions(), host_facts.git_commit()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "-m", "launch.benchmarks", *sys.argv[1:]]),
        "commit": source,
        "machine": {**host, "torch": versions.get("torch"), "python": versions.get("python")},
    }


def write_report(out: Path, measured: dict[str, Any]) -> None:
    """Write launch.json, overhead.csv, overhead.png, overhead.svg and README.md into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "launch.json").write_text(json.dumps(measured, indent=2) + "\n")
    rows = measured["overhead"]
    with (out / "overhead.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS), extrasaction="ignore")
        writer.writeheader()
        writer.writerows([{name: _rounded(row[name]) for name in COLUMNS} for row in rows])
    draw(rows, out / "overhead.png")
    (out / "README.md").write_text(page(measured))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Step time over the size of the parameters, a line for each number of servers."""
    figure, axes = new_figure()
    for index, servers in enumerate(sorted({row["servers"] for row in rows})):
        line = sorted((r for r in rows if r["servers"] == servers and not r["backup_workers"]), key=_megabytes)
        label = f"{servers} server{'s' if servers > 1 else ''}"
        axes.plot(
            [_megabytes(r) for r in line], [r["step_ms"] for r in line], marker="o", label=label, **line_of(index)
        )
    sleep_ms = rows[0]["sleep_ms"]
    axes.axhline(sleep_ms, color="grey", linestyle=":", label="the sleep")
    axes.axhline(BOUND * sleep_ms, color="black", linestyle="--", label=f"{BOUND} × the sleep")
    axes.set(xscale="log", xlabel="parameters, MB", ylabel="step, ms (median)", ylim=(0, None))
    axes.set_title(f"{rows[0]['workers']} workers that sleep {sleep_ms:.0f} ms, on this machine's cores")
    axes.legend(loc="lower right", frameon=False)
    save(figure, path)


def page(measured: dict[str, Any]) -> str:
    """README.md."""
    rows, startup, machine = measured["overhead"], measured["startup"], measured["machine"]
    cores = f"{machine['usable_cores']} cores of {machine['processor']}"
    commit = measured["commit"].get("commit", "unknown")[:10]
    lines = [
        "# What launching 64 ranks costs",
        "",
        f"A real Slurm of {measured['nodes']} nodes on one machine: {cores}; Python {machine['python']}, "
        f"torch {machine['torch']}; commit {commit}, {measured['date']}.",
        "All nodes share those cores, so start-up and steps are slower than on nodes of their own.",
        "",
        f"    {measured['command']}",
        "",
        f"## Overhead: {rows[0]['workers']} workers that sleep {rows[0]['sleep_ms']:.0f} ms instead of computing",
        "Servers, links, commits and optimizer are the real ones. A step is the time between two versions at worker 0, "
        f"median of {measured['steps']}; asked is at most {BOUND} × the sleep. All workers wake at once, so all bytes "
        "of a step move while nobody sleeps: on few cores the copying itself is the floor.",
        "",
        "| " + " | ".join(COLUMNS.values()) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(_cell(row[name]) for name in COLUMNS) + " |" for row in rows),
        "",
        "![step time](overhead.png)",
    ]
    if startup:
        lines += ["", f"## Start-up of `slurm/breakout_64nodes.sh` with CartPole, {startup['ranks']} ranks", ""]
        lines += ["| since sbatch | s |", "|---|---|"]
        lines += [
            f"| {name.removesuffix('_s').replace('_', ' ')} | {value:.1f} |"
            for name, value in startup.items()
            if name.endswith("_s")
        ]
        lines += ["", "## Memory of its processes, MB (medians; PSS divides shared pages among their users)", ""]
        lines += ["| process | count | RSS | PSS | PSS of all |", "|---|---|---|---|---|"]
        lines += [
            f"| {kind} | {m['processes']} | {m['rss_mb']} | {m['pss_mb']} | {m['pss_sum_mb']} |"
            for kind, m in startup["memory_mb"].items()
        ]
    return "\n".join(lines) + "\n"


def _megabytes(row: dict[str, Any]) -> float:
    return float(row["megabytes"])


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _cell(value: Any) -> str:
    if isinstance(value, float) and value < 1:
        return f"{value:.3g}"
    return f"{value:.2f}" if isinstance(value, float) and value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
