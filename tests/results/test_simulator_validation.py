"""The command that holds the simulator against real steps, in small: what it fits, predicts, measures and writes."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from simulation.validation import (
    CALIBRATION,
    TOLERANCE,
    VALIDATION,
    Measured,
    Point,
    calibrated,
    draw,
    measure,
    predict,
    read,
    row_of,
    tables,
    write,
)

from dba3c.simulation.cluster import Cluster, ComputeTimes, Setup
from param_servers.benchmarks.exchange import WARM_UP_STEPS

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "simulation"
NAMESPACES = os.geteuid() == 0 and shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") is not None
TRUE = Cluster(bytes_per_s=12.5e6, latency_s=0.0004, message_s=0.0001, wire_efficiency=0.93, overlap_lost=0.3)


def point_of(n, k, b, megabytes=1.33, part="calibration", times=None):
    return Point(
        part, Setup(workers=n, servers=k, backup=b), megabytes, 8, np.zeros((1, n)) if times is None else times
    )


def test_the_points_cover_what_is_asked_of_the_model():
    assert {n for n, _, _ in VALIDATION} == set(range(1, 9))
    assert {k for _, k, _ in VALIDATION} == {1, 2, 3, 4} and {b for _, _, b in VALIDATION} == {0, 1, 2}
    assert 12 <= len(VALIDATION) <= 16


def test_calibration_finds_the_cluster_that_its_points_came_from():
    points = [point_of(*values) for values in CALIBRATION]
    found = calibrated([(point, Measured(predict(TRUE, point).step_s, 0.0)) for point in points])
    assert found.wire_efficiency == pytest.approx(0.93, rel=0.01)
    assert found.overlap_lost == pytest.approx(0.3, abs=0.05)
    assert found.latency_s == pytest.approx(0.0004, rel=0.3) and found.message_s == pytest.approx(0.0001, rel=0.3)


def test_todays_model_is_still_within_ten_percent_of_every_step_that_was_measured():
    rows, made = read(COMMITTED)
    compute, cluster = ComputeTimes(**made["compute"]), Cluster(**made["calibrated"])
    measured = [row for row in rows if row["part"] == "validation"]
    assert [tuple(int(row[name]) for name in ("workers", "servers", "backup")) for row in measured] == list(VALIDATION)
    for row, (n, k, b) in zip(measured, VALIDATION, strict=True):
        steps = int(row["steps"])
        times_s = compute.draw(1000, n, made["seed"])[: steps + WARM_UP_STEPS]
        point = point_of(n, k, b, float(row["megabytes"]), "validation", times_s)._replace(steps=steps)
        said_ms = 1e3 * predict(cluster, point).step_s
        assert said_ms == pytest.approx(float(row["measured_ms"]), rel=TOLERANCE), (n, k, b)


def test_a_straggler_that_sends_alone_loses_no_overlap():
    times = np.tile([0.01, 0.01, 1.0], (10, 1))
    unfair = Cluster(bytes_per_s=12.5e6, overlap_lost=1.0)
    fair = Cluster(bytes_per_s=12.5e6)
    assert predict(unfair, point_of(3, 1, 0, times=times)).step_s == pytest.approx(
        predict(fair, point_of(3, 1, 0, times=times)).step_s
    )


def test_rows_become_a_figure_and_a_page_that_says_how_many_points_are_within_ten_percent(tmp_path):
    good, bad = point_of(2, 1, 0, part="validation"), point_of(3, 1, 1, part="validation")
    right = predict(TRUE, good)
    rows = [
        row_of(good, Measured(right.step_s * 1.05, 0.0), right),
        row_of(bad, Measured(predict(TRUE, bad).step_s * 1.5, 0.2), predict(TRUE, bad)),
    ]
    write(tmp_path, rows, TRUE, ComputeTimes(mean_s=0.1))
    near, _, points = tables(tmp_path)
    assert "| 1 of 2 |" in near and "| validation | 3 | 1 | 1 | 1.33 |" in points
    assert {path.name for path in draw(tmp_path)} == {"validation.png", "validation.svg"}


@pytest.mark.timeout(180)
@pytest.mark.skipif(not NAMESPACES, reason="namespaces need root")
def test_a_real_step_in_namespaces_takes_at_least_its_bytes_and_its_compute():
    times = np.full((8, 3), 0.05)
    point = Point("validation", Setup(workers=3, servers=1, backup=1), 0.4, 6, times)
    found = measure(point)
    assert found.step_s >= 0.05 + 2 * 2 * 0.4e6 / 12.5e6 * 0.9  # two gradients in, then the version out to three
    assert 0.0 <= found.dropped_share < 0.6
