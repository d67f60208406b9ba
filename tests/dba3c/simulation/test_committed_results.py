"""What is committed under results/simulation is what the code beside it makes."""

import json
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "results" / "simulation"


@pytest.mark.parametrize("name", ["scaling", "servers"])
def test_the_committed_table_is_what_the_model_says(name):
    made = runpy.run_path(str(FOLDER / "make_data.py"))
    rows = made[name](json.loads((FOLDER / "config.json").read_text()))
    lines = (FOLDER / f"{name}.csv").read_text().splitlines()[1:]
    assert [",".join(map(str, row)) for row in rows] == lines
