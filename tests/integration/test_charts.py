"""Every chart that DBA3C had is drawn from a real run, and the numbers are right."""

import re
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from dba3c.metrics import registry as metric_registry
from dba3c.runs.files import checkpoint_steps
from param_servers.checkpoint.files import load_checkpoint
from param_servers.layout import plan_shards
from tests.integration.runs import Run, charts, records

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
SERVERS_TIME = {name for name in metric_registry.charts() if name.startswith("sections/server_")}
OF_OTHER_ALGORITHMS = {
    "policy/clip_fraction", "policy/kl",  # PPO
    "loss/critic", "loss/temperature", "policy/temperature",  # SAC
    "value/td_error", "replay/priority",  # R2D2
}  # fmt: skip
OF_OLDER_RUNS = {"sections/worker_serving"}
SELDOM = {"inference/thread_holding"}  # where the learner is slower than its actors
OF_OTHER_RUNS = {"network/active_relus", *(name for name in metric_registry.charts() if name.startswith("evaluation/"))}
CARTPOLE = (
    "train", "CartPole-v1", "--optimizer", "adam", "--track", "--seed", "1",
    "--metrics-window-s", "0", "--step-timeout-s", "60",
)  # fmt: skip
WITHOUT_SERVERS = {
    "allreduce": ("--exchange", "allreduce", "--workers", "2", "--envs-per-worker", "4", "--total-frames", "2000"),
    "central": (
        "--mode", "central", "--actors", "1", "--envs-per-actor", "4", "--unroll-length", "5", "--batch-unrolls", "4",
        "--total-frames", "100000000",
    ),
}  # fmt: skip
BREAKOUT = (
    "train", "ALE/Breakout-v5", "--workers", "2", "--servers", "2", "--network", "small", "--optimizer", "adam",
    "--envs-per-worker", "4", "--max-episode-frames", "400", "--track",
    "--seed", "1", "--metrics-window-s", "0", "--checkpoint-every-steps", "10",
)  # fmt: skip


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("exchange", "stale"), [("servers", 0), ("async", 1)])
def test_every_chart_of_2017_is_recorded_by_a_real_run(tmp_path: Path, exchange: str, stale: int) -> None:
    """`stale`: what the oldest gradient is at least; 1: the other worker's update came in between."""
    folder = tmp_path / "run"
    with Run(*BREAKOUT, "--exchange", exchange, "--run-dir", str(folder), folder=folder) as run:
        run.wait_until(lambda: finished_games(run) and max(delays(run), default=0) >= stale, "games of both workers")
        run.signal(signal.SIGINT)
        code, output = run.wait(200)
    assert code == 0, output
    drawn = charts(folder)
    assert (CHARTS_2017 | SERVERS_TIME) - set(drawn) == set()
    assert not_registered(drawn) == set()
    assert 0.05 < drawn["network/active_relus"] < 0.95
    if exchange == "servers":
        assert max(delays(run)) == 0  # nothing is stale where every gradient is waited for
    _check_moments(folder)


def finished_games(run: Run) -> bool:
    """Whether each of the two workers has one."""
    return all(any(r["kind"] == "episode" for r in run.records("worker", worker)) for worker in (0, 1))


def delays(run: Run) -> list[int]:
    """The last record of all may be of a rollout that the end overtook: no gradient of it was answered."""
    return [r["staleness_max"] for worker in (0, 1) for r in run.records("worker", worker) if "staleness_max" in r]


@pytest.mark.timeout(240)
def test_runs_without_servers_draw_what_is_registered_and_all_of_it(tmp_path: Path) -> None:
    drawn: set[str] = set()
    for name, words in WITHOUT_SERVERS.items():
        folder = tmp_path / name
        with Run(*CARTPOLE, *words, "--run-dir", str(folder), folder=folder) as run:
            if name == "central":  # whose thread's shares are of a second of it, however many frames that is
                run.wait_until(lambda: shares(run), "shares of the inference thread")
                run.signal(signal.SIGINT)
            code, output = run.wait(110)
        assert code == 0, output
        assert not_registered(charts(folder)) == set(), name
        drawn |= set(charts(folder))
    expected = set(metric_registry.charts()) - SERVERS_TIME - OF_OTHER_ALGORITHMS - OF_OTHER_RUNS
    expected -= OF_OLDER_RUNS | SELDOM
    assert expected - drawn == set()
    _check_time_is_counted_once(tmp_path / "allreduce")


def shares(run: Run) -> bool:
    return any("inference_thread_serving" in record for record in run.records("learner", 0))


def not_registered(drawn: Iterable[str]) -> set[str]:
    """The charts that docs/metrics.md does not know."""
    one_process = re.compile(rf"(worker|learner|actor)-\d+/({'|'.join(metric_registry.PER_WORKER_CHARTS)})")
    return {name for name in drawn if name not in metric_registry.charts() and not one_process.fullmatch(name)}


def _check_time_is_counted_once(folder: Path) -> None:
    """Rank 0 works and speaks for the all-reduce: all its sections together fit between its first step's record and its
    last; what the server reports before that one is also in it."""
    mine = [r for r in records(folder, "worker", 0) if r["kind"] in ("step", "server")]
    began_s = next(r["time_s"] for r in mine if r["kind"] == "step")
    spent_s = sum(sum(r["sections_s"].values()) for r in mine if r["time_s"] > began_s)
    assert spent_s <= 1.02 * (mine[-1]["time_s"] - began_s)
    reports = [r for r in mine if r["kind"] == "server"]
    assert reports and all(0 < r["collective_s"] + r["applying_s"] <= r["window_s"] + 0.01 for r in reports)


def _check_moments(folder: Path) -> None:
    """What a shard said of a step is the norm of its slice of that step's checkpoint."""
    compared, checkpoints = 0, folder / "checkpoints"
    for step in checkpoint_steps(checkpoints):
        checkpoint = load_checkpoint(checkpoints / f"step-{step}")
        plan = plan_shards(checkpoint.layout, 2)
        for shard in (0, 1):
            for said in (r for r in records(folder, "server", shard) if (r["kind"], r["step"]) == ("server", step)):
                _, state = checkpoint.slice_for(plan, shard)
                for moment, name in (("exp_avg", "first_moment_norm"), ("exp_avg_sq", "second_moment_norm")):
                    assert said[name] == pytest.approx(float(state[moment].norm()), rel=1e-4)
                    compared += 1
    assert compared
