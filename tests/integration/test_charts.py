"""Every chart that DBA3C had is drawn from a real run, and the numbers are right."""

import json
import math
from pathlib import Path

import pytest

from dba3c.monitor.replay import Point, replay
from dba3c.run_folder import RunFolder
from param_servers.snapshots import load_checkpoint
from tests.integration.runs import Run, newest_checkpoint, records

CHARTS_2017 = {
    "score/mean", "score/max", "score/online",
    "loss/total", "loss/policy", "loss/value", "policy/entropy", "policy/max_probability",
    "value/advantage", "value/predicted_reward",
    "cluster/active_workers", "speed/data_points_per_s", "network/active_relus",
    "gradient/delay_min", "gradient/delay_mean", "gradient/delay_max",
    "gradient/norm_before_clipping", "gradient/norm_after_clipping",
    "optimizer/m_norm", "optimizer/v_norm", "optimizer/update_norm",
    "schedule/learning_rate", "schedule/entropy_cost",
    "worker-0/loss_total", "worker-1/loss_total", "worker-0/score",
}  # fmt: skip
BREAKOUT = (
    "train", "ALE/Breakout-v5", "--workers", "2", "--servers", "2", "--network", "small", "--optimizer", "adam",
    "--envs-per-worker", "4", "--max-episode-frames", "400", "--total-frames", "20000", "--track",
    "--seed", "1", "--metrics-window-s", "0",
)  # fmt: skip


@pytest.mark.timeout(240)
@pytest.mark.parametrize("exchange", ["servers", "async"])
def test_every_chart_of_2017_is_recorded_by_a_real_run(tmp_path: Path, exchange: str) -> None:
    folder = tmp_path / "run"
    with Run(*BREAKOUT, "--exchange", exchange, "--run-dir", str(folder), folder=folder) as run:
        code, output = run.wait(200)
    assert code == 0, output
    points = [point for point in replay(RunFolder.open(folder), every_s=2.0) if isinstance(point, Point)]
    drawn = {name: point.values[name] for point in points for name in point.values}
    assert CHARTS_2017 - set(drawn) == set()
    assert 0.05 < drawn["network/active_relus"] < 0.95
    delays = [r["staleness_max"] for worker in (0, 1) for r in records(folder, "worker", worker) if r["kind"] == "step"]
    if exchange == "servers":
        assert max(delays) == 0  # nothing is stale where every gradient is waited for
    else:
        assert max(delays) >= 1  # the other worker's update came in between
    _check_moments(folder)


def _check_moments(folder: Path) -> None:
    """What the shards last said, combined by the reader, is the norm of the last checkpoint's state."""
    last = [[r for r in records(folder, "server", shard) if r["kind"] == "server"][-1] for shard in (0, 1)]
    checkpoint = load_checkpoint(newest_checkpoint(folder))
    manifest = json.loads((newest_checkpoint(folder) / "manifest.json").read_text())
    assert {record["step"] for record in last} == {manifest["step"]}
    for moment, name in (("exp_avg", "first_moment_norm"), ("exp_avg_sq", "second_moment_norm")):
        told = math.hypot(*(record[name] for record in last))
        assert told == pytest.approx(float(checkpoint.optimizer_state[moment].norm()), rel=1e-4)
