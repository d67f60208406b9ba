"""The campaign of results/cluster: what is measured is not measured again, and is predicted before."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dba3c.simulation.cluster import Cluster
from param_servers.benchmarks.cluster import Scene

FOLDER = Path(__file__).resolve().parents[1] / "results" / "cluster"
ROW = {"refused": False, "step_ms": 50.0, "own_share": 0.4, "dilation": 20}


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """measure.py, with two rows to measure, a fake lab that is called `measured`, and files of its own."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("cluster_campaign", FOLDER / "measure.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("peers", "page"):
        sys.modules.pop(name, None)
    for name in ("ROWS", "REFUSED", "CALIBRATED", "HERE"):
        monkeypatch.setattr(module, name, tmp_path / name if name != "HERE" else tmp_path)
    monkeypatch.setattr(module, "recorded_s", lambda network: np.array([0.015, 0.02]))
    monkeypatch.setattr(module, "calibrate", lambda rows: dict.fromkeys(module.CALIBRATION, Cluster(bytes_per_s=1e7)))
    rows = [module.Row("workers", "small", Scene("servers", n, 0, 2, False, 2.7, 10.0)) for n in (4, 8)]
    monkeypatch.setattr(module, "everything", lambda: iter(rows))
    module.measured = []
    monkeypatch.setattr(
        module.lab, "measure", lambda scene, *given: module.measured.append((scene, *given)) or dict(ROW)
    )
    return module


def test_an_interrupted_campaign_goes_on_where_it_stopped(campaign: Any) -> None:
    campaign.campaign(float("inf"), 5.0, None)
    assert [scene.workers for scene, *_ in campaign.measured] == [4, 8]
    lines = campaign.ROWS.read_text().splitlines()
    campaign.ROWS.write_text(lines[1] + "\n")
    campaign.campaign(float("inf"), 5.0, None)
    assert [scene.workers for scene, *_ in campaign.measured] == [4, 8, 4]
    assert len(campaign.ROWS.read_text().splitlines()) == 2


def test_a_prediction_is_written_with_its_error_and_comes_from_the_same_compute_times(campaign: Any) -> None:
    campaign.campaign(float("inf"), 5.0, None)
    row = json.loads(campaign.ROWS.read_text().splitlines()[0])
    assert row["error"] == pytest.approx(row["predicted_ms"] / 50.0 - 1, abs=1e-3)
    _, times_s, *_ = campaign.measured[0]
    wire_ms = 1e3 * 4 * 2.7e6 / (2 * 10e9 / 8)
    assert row["predicted_ms"] == pytest.approx(1e3 * times_s.max(axis=1)[2:20].mean() + wire_ms, rel=0.05)


def test_a_row_on_a_busy_machine_is_kept_apart_and_tried_again_more_slowly(campaign: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(campaign.lab, "measure", lambda *given: ROW | {"refused": True, "dilation": given[2]})
    campaign.campaign(float("inf"), 5.0, None)
    refused = campaign.read(campaign.REFUSED)
    assert len(refused) == 2 and not campaign.ROWS.exists()
    least = campaign.least_dilation(refused, refused[0]["key"])
    assert least == 2 * refused[0]["dilation"]
    for _ in range(3):
        campaign.campaign(float("inf"), 5.0, None)
    again = campaign.read(campaign.REFUSED)
    assert len(again) == 2 * campaign.ATTEMPTS  # then it is given up
    assert again[2]["dilation"] >= least


def test_no_row_is_begun_that_would_end_too_late(campaign: Any) -> None:
    campaign.campaign(0.0, 5.0, None)
    assert not campaign.measured


def test_every_row_that_is_planned_can_be_named_and_drawn_for(campaign: Any) -> None:
    fresh = importlib.util.spec_from_file_location("cluster_campaign", FOLDER / "measure.py")
    assert fresh is not None and fresh.loader is not None
    module: Any = importlib.util.module_from_spec(fresh)
    fresh.loader.exec_module(module)
    rows = list(module.everything())
    assert len({row.key for row in rows}) == len(rows) > 50
    assert all(row.times_s().shape[1] == row.scene.workers for row in rows[:40])


def test_the_tables_of_the_page_are_what_the_rows_say(campaign: Any) -> None:
    rows, refused = (campaign.read(FOLDER / name) for name in ("rows.jsonl", "refused.jsonl"))
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    tables = campaign.tables(campaign.with_marked(rows, refused))
    assert len(tables) == 4 and all(table in page for table in tables)
