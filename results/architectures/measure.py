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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tyro
from costs import ARCHITECTURES, Cost, cost_of, plot_costs, read_csv, table

from dba3c.errors import UserError
from dba3c.runs.folder import RunFolder
from dba3c.studies.page import made_by, renew, write_rows
from dba3c.studies.study import NETWORK_SIZES, Shape, build, load
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
    into: Path = HERE
    only: tuple[str, ...] = ()
    """Measure these alone; the rows of the others stay as they are."""
    runs: Path | None = None
    """Keep the run folders here; runs that are finished already are not repeated."""


def main() -> int:
    """Run, read, write."""
    arguments = tyro.cli(Arguments, description=__doc__, config=(tyro.conf.UseAppendAction,))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: SHAPE.workers])  # the runs inherit it
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.runs or Path(temporary) / "study"
        hours = f"{(START_S + arguments.seconds) / 3600:.6f}"
        declared = build("architectures", SHAPE, ("--max-hours", hours, "--track", "tensorboard"))
        only = arguments.only or tuple(ARCHITECTURES)
        points = tuple(point for point in declared.points if point.name.rpartition("-")[0] in only)
        replace(declared, points=points).save(folder)
        code = run_all(list(load(folder).runs(folder)))
        measured = read_costs(folder, arguments)
    if not measured:
        return 1
    costs = in_order([*measured, *kept_costs(arguments.into, measured)])
    write_rows(arguments.into / "costs.csv", [asdict(cost) for cost in costs])
    plot_costs(costs, arguments.into)
    if arguments.into == HERE:
        lives = json.loads((HERE / "machine.json").read_text()).values()
        newest = max(lives, key=lambda life: life.get("started_s", 0.0))
        renew(HERE / "README.md", made_by(newest), table(costs))
    print(table(costs))
    return code


def kept_costs(folder: Path, measured: list[Cost]) -> list[Cost]:
    """Rows of an earlier measurement of what was not measured now, or could not be."""
    anew = {(cost.architecture, cost.network) for cost in measured}
    return [cost for cost in read_csv(folder / "costs.csv") if (cost.architecture, cost.network) not in anew]


def in_order(costs: list[Cost]) -> list[Cost]:
    """By size of the network, then as the architectures are named."""
    names = list(ARCHITECTURES)
    return sorted(costs, key=lambda cost: (NETWORK_SIZES.index(cost.network), names.index(cost.architecture)))


def read_costs(folder: Path, arguments: Arguments) -> list[Cost]:
    """The table's rows; config.json and facts of each run are copied beside them."""
    machine = arguments.into / "machine.json"
    costs, facts = [], json.loads(machine.read_text()) if machine.exists() else {}
    for run in load(folder).runs(folder):
        architecture, _, network = run.point.name.rpartition("-")
        try:
            costs.append(cost_of(run.folder, architecture, network, arguments.seconds))
        except (UserError, OSError) as error:
            print(f"left out: {run.name}: {error}", file=sys.stderr)
            continue
        configs = arguments.into / "configs"
        configs.mkdir(parents=True, exist_ok=True)
        (configs / f"{run.point.name}.json").write_text((run.folder / "config.json").read_text())
        life = RunFolder.open(run.folder).meta()["lives"][0]
        names = ("started_s", "command", "cores", "host", "versions", "source")
        facts[run.point.name] = {name: life.get(name) for name in names}
    machine.write_text(json.dumps(facts, indent=1) + "\n")
    return costs


if __name__ == "__main__":
    sys.exit(main())
