"""What ``dba3c simulate`` found, as a table to read and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dba3c.errors import writing

if TYPE_CHECKING:
    from dba3c.simulation.simulate import Option

COLUMNS = (
    "nodes", "exchange", "servers", "colocated", "workers", "backup", "step_ms", "data_points_per_s", "dropped_share",
)  # fmt: skip


def cells(option: Option) -> list[object]:
    """A row of `COLUMNS` but the first."""
    setup = option.setup
    servers = setup.servers if setup.exchange in ("servers", "async") else 0
    numbers = [f"{1e3 * option.step_s:.4g}", f"{option.data_points_per_s:.6g}", f"{option.dropped_share:.4g}"]
    return [setup.exchange, servers, int(setup.colocated), setup.workers, setup.backup, *numbers]


def print_table(found: Sequence[Option], backups: Sequence[int]) -> None:
    """Exchanges down, backup workers across."""
    names = {option.name.replace("majority", "all-reduce"): None for option in found}
    print(f"{'':>24}" + "".join(f"{f'b = {backup}':>26}" for backup in backups))
    for name in names:
        shown = []
        for backup in backups:
            here = [o for o in found if o.name.replace("majority", "all-reduce") == name and o.setup.backup == backup]
            shown.append(
                f"{here[0].data_points_per_s:.0f} ({1e3 * here[0].step_s:.1f} ms, {here[0].dropped_share:.0%})"
                if here
                else "-"
            )
        print(f"{name:>24}" + "".join(f"{cell:>26}" for cell in shown))


def write_table(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Rows of `COLUMNS` as CSV. Raises UserError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
