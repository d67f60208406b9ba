"""What each architecture costs on this machine: ``python results/architectures/measure.py``, about 13 minutes.

It runs the grid of ``dba3c study architectures`` (three sizes of network, four architectures) one after the other on
the same cores and writes everything in this folder: costs.csv, config and machine of each run, figures, the table of
README.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from costs import Cost, cost_of, plot_costs, table

from dba3c.runs.folder import RunFolder
from dba3c.studies.page import made_by, renew, write_rows
from dba3c.studies.study import Shape, build, load
from launch.cli.study import run_all

HERE = Path(__file__).parent
SHAPE = Shape(env="breakout", workers=2, servers=2, seeds=1)
"""All processes of a run share as many cores as it has workers or actors."""
START_S = 20.0
"""Of each run that are not measured: its processes start, and warm up."""


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    seconds: float = 45.0
    """Measured time of each of the twelve runs."""
    runs: Path | None = None
    """Keep the run folders here; runs that are finished already are not repeated."""


def main() -> int:
    """Run, read, write: all of it or nothing."""
    arguments = tyro.cli(Arguments, description=__doc__)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: SHAPE.workers])  # the runs inherit it
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.runs or Path(temporary) / "study"
        hours = f"{(START_S + arguments.seconds) / 3600:.6f}"
        build("architectures", SHAPE, ("--max-hours", hours, "--track", "tensorboard")).save(folder)
        if code := run_all(list(load(folder).runs(folder))):
            return code
        costs, lives = read_runs(folder, arguments.seconds)
    write_rows(HERE / "costs.csv", [asdict(cost) for cost in costs])
    (HERE / "machine.json").write_text(json.dumps(lives, indent=1) + "\n")
    plot_costs(costs, HERE)
    renew(HERE / "README.md", made_by(max(lives.values(), key=lambda life: life["started_s"])), table(costs))
    print(table(costs))
    return 0


def read_runs(folder: Path, seconds: float) -> tuple[list[Cost], dict[str, Any]]:
    """Each run's row and how it was launched; its config.json is copied beside them."""
    costs, lives = [], {}
    for run in load(folder).runs(folder):
        architecture, _, network = run.point.name.rpartition("-")
        costs.append(cost_of(run.folder, architecture, network, seconds))
        (HERE / "configs" / f"{run.point.name}.json").write_text((run.folder / "config.json").read_text())
        life = RunFolder.open(run.folder).meta()["lives"][0]
        names = ("started_s", "command", "cores", "host", "versions", "source")
        lives[run.point.name] = {name: life.get(name) for name in names}
    return costs, lives


if __name__ == "__main__":
    sys.exit(main())
