"""The campaign of results/cluster: what is measured is not measured again, and is predicted before."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import lab
import numpy as np
import pytest
from figures import read
from lab import Scene
from numpy.typing import NDArray

from dba3c.simulation.cluster import Cluster
from dba3c.studies.page import rows_of
from param_servers.benchmarks.exchange import Measured, Worked
from param_servers.benchmarks.hosts import Fault
from param_servers.errors import PeerLost

FOLDER = Path(__file__).resolve().parents[2] / "results" / "cluster"
ROW = {"refused": False, "step_ms": 50.0, "own_share": 0.4, "busy_share": 0.5, "dilation": 20, "row_s": 7.0}
ROW["others_share"] = 0.1
FAMILIES = ("servers", "allreduce", "majority")


def row_of(times_s: NDArray[np.float64], **given: Any) -> dict[str, Any]:
    """What the fake lab says of these compute times."""
    return {**ROW, "compute_ms": round(1e3 * float(times_s.mean()), 3), **given}


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """measure.py, with two rows to measure, a fake lab whose calls are `asked`, and files of its own."""
    spec = importlib.util.spec_from_file_location("cluster_campaign", FOLDER / "measure.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("ROWS", "REFUSED", "CALIBRATED", "HERE"):
        monkeypatch.setattr(module, name, tmp_path / name if name != "HERE" else tmp_path)
    monkeypatch.setattr(sys.modules["plan"], "recorded_s", lambda *which: np.array([0.015, 0.02]))
    monkeypatch.setattr(module, "calibrate", lambda rows: dict.fromkeys(FAMILIES, Cluster(bytes_per_s=1e7)))
    rows = [module.Row("workers", "small", Scene("servers", n, 0, 2, False, 2.7, 10.0)) for n in (4, 8)]
    monkeypatch.setattr(module, "everything", lambda: iter(rows))
    module.asked = []
    monkeypatch.setattr(module.lab, "measure", lambda *given: module.asked.append(given) or row_of(given[1]))
    yield module
    for name in ("other_systems", "page", "beside_others", "plan", "predicted", "time_to_score", "beyond"):
        sys.modules.pop(name, None)


def test_an_interrupted_campaign_goes_on_where_it_stopped(campaign: Any) -> None:
    campaign.campaign(float("inf"), 5.0, [""])
    assert [scene.workers for scene, *_ in campaign.asked] == [4, 8]
    lines = campaign.ROWS.read_text().splitlines()
    campaign.ROWS.write_text(lines[1] + "\n")
    campaign.campaign(float("inf"), 5.0, [""])
    assert [scene.workers for scene, *_ in campaign.asked] == [4, 8, 4]
    assert len(campaign.ROWS.read_text().splitlines()) == 2


def test_a_row_of_other_compute_times_than_are_recorded_now_is_measured_again(campaign: Any, monkeypatch: Any) -> None:
    campaign.campaign(float("inf"), 5.0, [""])
    monkeypatch.setattr(sys.modules["plan"], "recorded_s", lambda *which: np.array([0.015, 0.021]))
    campaign.campaign(float("inf"), 5.0, [""])
    assert [scene.workers for scene, *_ in campaign.asked] == [4, 8, 4, 8]


def test_a_prediction_is_written_with_its_error_and_comes_from_the_same_compute_times(campaign: Any) -> None:
    campaign.campaign(float("inf"), 5.0, [""])
    row = json.loads(campaign.ROWS.read_text().splitlines()[0])
    assert row["error"] == pytest.approx(row["predicted_ms"] / 50.0 - 1, abs=1e-3)
    _, times_s, *_ = campaign.asked[0]
    wire_ms = 1e3 * 4 * 2.7e6 / (2 * 10e9 / 8)
    assert row["predicted_ms"] == pytest.approx(1e3 * times_s.max(axis=1)[2:20].mean() + wire_ms, rel=0.05)


@pytest.mark.parametrize(
    "load", [{"own_share": 0.7}, {"server_cores": 0.6}, {"worker_cores": 0.6}], ids=["all", "a server", "a worker"]
)
def test_a_row_on_a_busy_machine_is_kept_apart_and_tried_again_more_slowly(
    campaign: Any, monkeypatch: Any, load: dict[str, float]
) -> None:
    asked: list[tuple[int, int]] = []

    def busy(scene: Scene, times_s: Any, dilation: int, *given: Any) -> dict[str, Any]:
        asked.append((scene.workers, dilation))
        cores = {name: share * (dilation if name.endswith("cores") else 1) for name, share in load.items()}
        row = row_of(times_s, **cores, dilation=dilation)
        return {**row, "refused": lab.too_busy(row)}

    monkeypatch.setattr(campaign.lab, "measure", busy)
    campaign.campaign(float("inf"), 5.0, [""])
    refused = rows_of(campaign.REFUSED)
    assert len(refused) == 2 and not campaign.ROWS.exists()
    campaign.REFUSED.write_text(json.dumps(refused[0]) + "\n")  # as if it had been interrupted after the first row
    for _ in range(3):
        campaign.campaign(float("inf"), 5.0, [""])
    assert [workers for workers, _ in asked] == [4, 8, 4, 8, 4, 8, 8]  # then both are given up
    assert asked[2][1] >= 2 * asked[0][1]


def test_a_row_beside_other_work_is_tried_again_at_the_same_dilation(campaign: Any, monkeypatch: Any) -> None:
    asked: list[int] = []

    def beside_others(scene: Scene, times_s: Any, dilation: int, *given: Any) -> dict[str, Any]:
        asked.append(dilation)
        return row_of(times_s, others_share=0.55 if len(asked) == 1 else 0.1, dilation=dilation)

    monkeypatch.setattr(campaign.lab, "measure", beside_others)
    for _ in range(2):
        campaign.campaign(float("inf"), 5.0, [""])
    assert len(asked) == 3 and asked[2] == asked[0]
    assert len(rows_of(campaign.REFUSED)) == 1 and len(rows_of(campaign.ROWS)) == 2


def test_a_row_whose_processes_fail_stops_no_other(campaign: Any, monkeypatch: Any, capsys: Any) -> None:
    def fail(scene: Scene, times_s: Any, *given: Any) -> dict[str, Any]:
        if scene.workers == 4:
            raise PeerLost("process 3 failed")
        return row_of(times_s)

    monkeypatch.setattr(campaign.lab, "measure", fail)
    campaign.campaign(float("inf"), 5.0, [""])
    assert "FAILED" in (out := capsys.readouterr().out) and "process 3 failed" in out
    assert len(rows_of(campaign.ROWS)) == 1


def test_a_fit_finds_the_cluster_that_made_the_rows() -> None:
    predicted = importlib.import_module("predicted")
    hidden = Cluster(bytes_per_s=1.0, latency_s=0.004, wire_efficiency=0.9, overlap_lost=0.4)
    scenes = [Scene("servers", n, 0, k, False, 1.33, 0.1) for n in (1, 2, 4, 8) for k in (1, 2, 4)]
    scenes += [Scene("servers", 4, 1, k, False, 1.33, 0.1) for k in (1, 2)]
    rows = [{**scene._asdict(), "rate_mbit": 100.0, "step_ms": 1.0} for scene in scenes]
    rows = [row | {"step_ms": 1e3 * predicted.simulated_s(hidden, row)} for row in rows]  # as if measured
    found = predicted.fit(rows, ("latency_s", "wire_efficiency", "overlap_lost"))
    assert found.latency_s == pytest.approx(0.004, rel=0.05)
    assert found.wire_efficiency == pytest.approx(0.9, rel=0.01)
    assert found.overlap_lost == pytest.approx(0.4, abs=0.02)


def test_todays_simulator_is_still_within_ten_percent_of_nearly_all_rows() -> None:
    *_, fitted, constants, _ = importlib.import_module("predicted").judged()
    for line, least in ((fitted, 0.95), (constants, 0.93)):
        within, of = (int(number) for number in re.findall(r"(\d+) of (\d+) rows", line)[0])
        assert of > 400 and within >= least * of, line


def test_the_list_says_what_is_missing_and_how_long_it_takes(campaign: Any) -> None:
    first, second = campaign.listed(5.0, [""])
    assert first.lstrip().startswith("1") and '"servers", 4' in first and '"servers", 8' in second
    campaign.campaign(float("inf"), 5.0, [""])
    assert campaign.listed(5.0, [""]) == []


def test_only_rows_that_were_asked_for_are_measured(campaign: Any) -> None:
    campaign.campaign(float("inf"), 5.0, ['"servers", 8', "nobody's"])
    assert [scene.workers for scene, *_ in campaign.asked] == [8]


def test_no_row_is_begun_that_would_end_too_late(campaign: Any) -> None:
    campaign.campaign(0.0, 5.0, [""])
    assert not campaign.asked


def test_every_row_that_is_planned_can_be_named_and_drawn_for(campaign: Any) -> None:
    plan = sys.modules["plan"]
    rows = list(plan.everything())
    assert len({row.key for row in rows}) == len(rows) > 150
    assert all(row.times_s().shape[1] == row.scene.workers for row in rows[:60])
    struck = [row for row in rows if isinstance(row, plan.Row) and row.fault is not None]
    assert {row.fault for row in struck} == {"slow host", "unplugged host", "dead server"}
    for row in struck:
        row.fault_at(20.0).check(row.scene.workers, row.scene.servers, row.scene.colocated)


def test_of_a_row_with_a_fault_the_numbers_are_from_before_it_and_all_steps_are_kept() -> None:
    pulls = [(3, 10.0), (4, 12.0), (5, 14.0), (4, 50.0), (5, 52.0)]  # a roll-back after 36 s
    worker = Worked(0, pulls, [True] * 5, 54.0, None, "measured", None)
    measured = Measured([worker], 1.0, "reno", 15.0)
    fault = Fault("dead server", 5, 40.0, 20.0, 2)
    assert lab.before(measured).workers[0].pulls == pulls[:3]
    line = lab.through(measured, fault, 20.0)
    assert line["through_ms"] == [[-250.0, 3], [-150.0, 4], [-50.0, 5], [1750.0, 4], [1850.0, 5], [1950.0, 5]]
    assert (line["fault"], line["ended"], line["step_timeout_ms"]) == ("dead server", "measured", 2000.0)
    with pytest.raises(PeerLost, match="the case ended before step 5"):
        lab.through(measured._replace(struck_s=None), fault, 20.0)


def test_what_is_beyond_64_nodes_is_simulated_from_what_was_recorded(campaign: Any) -> None:
    del sys.modules["plan"]
    beyond = importlib.import_module("beyond")
    costs, page = beyond.Processors.measured(), beyond.PAGE.read_text(encoding="utf-8")
    assert costs.table() in page
    first = next(beyond.ways(64, 10.0, costs))
    assert first.workers == 48 and first.step_s > max(first.parts.values())
    assert f"| 64 | {first.name} | {1e3 * first.step_s:.0f} |" in page


def test_the_page_says_first_where_another_is_ahead(campaign: Any) -> None:
    page = importlib.import_module("page")
    base = next(row for row in read(FOLDER) if row["part"] == "peers")
    rows = [
        base | {"key": str(n), "exchange": name, "workers": n, "slow": 1.0, "data_points_per_s": rate, "refused": False}
        for n, name, rate in [(8, "majority", 100.0), (8, "DDP", 80.0), (64, "majority", 90.0), (64, "DDP", 100.0)]
    ]
    goals, _, told, table = page.peers(rows)
    assert goals.startswith("**Ahead of all of ours: DDP (ours 10.0 % behind: 64 workers, 1.33 MB, nobody late)**.")
    assert "majority 1 of 2 (at most 10.0 % behind) and 0 of 0" in goals
    assert [line.split(" workers")[0] for line in told.splitlines()] == ["- 64", "- 8"]
    assert "**DDP is ahead**, ours 10.0 % behind" in told and "ours 1.25 times DDP" in told
    assert len(table.splitlines()) == 4  # those of 64 hosts
