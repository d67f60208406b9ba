"""From run folders to a model, and what central inference is compared with."""

import dataclasses
import json

import numpy as np
import pytest

from dba3c.config import TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from dba3c.simulation.calibration import calibrate
from dba3c.simulation.cluster import Cluster, ComputeTimes, Outcome, Setup, Work
from dba3c.simulation.simulate import AgentCosts, CentralSetup, best, central_steps_per_s, compare, options
from launch.cli import simulate as command
from launch.cli.main import main
from tests.dba3c.metrics.made_up_run import CONFIG, Clock, made_up_run, step_values

TEN_GBIT = Cluster(bytes_per_s=1.25e9)


def run_with_times(path, monkeypatch, times_s, window_s=0.0, timed=True):
    """One worker whose n-th gradient of 160 data points took times_s[n]."""
    clock = Clock()
    with monkeypatch.context() as patched:
        clock.tells_writers(patched)
        run = RunFolder.create(path, CONFIG)
        with_window = MetricsWriter(run, "worker", 0, window_s=window_s)
        for step, seconds in enumerate(times_s, start=1):
            clock.now_s += seconds + 0.01
            with_window.record_step(step, step_values(), {"environment": seconds, "waiting": 0.01} if timed else {})
        with_window.close()
    run.release()
    return run


def test_steps_written_one_by_one_are_drawn_from_as_they_are(tmp_path, monkeypatch):
    times = np.random.default_rng(0).choice([0.1, 0.3], size=200)
    found = calibrate([run_with_times(tmp_path / "run", monkeypatch, times).path], model_bytes=1e6)
    assert set(np.round(found.work.compute.samples_s, 6)) == {0.1, 0.3}
    assert found.work.compute.mean_s == pytest.approx(times[2:].mean())
    assert found.work.data_points == 160
    assert found.costs.environment_s == pytest.approx(times[2:].mean() / 160)


def test_the_variation_of_a_step_is_found_behind_windows_and_stalls(tmp_path, monkeypatch):
    times = np.random.default_rng(1).normal(0.1, 0.02, size=8000).clip(0.01)
    times[1000::2000] = 3.0
    found = calibrate([run_with_times(tmp_path / "run", monkeypatch, times, window_s=1.0).path], model_bytes=1e6)
    compute = found.work.compute
    assert compute.samples_s == ()
    assert compute.mean_s == pytest.approx(0.1, rel=0.02)
    assert compute.variation == pytest.approx(0.2, rel=0.2)
    assert compute.straggler_probability == pytest.approx(4 / 8000, rel=0.01)
    assert compute.straggler_slowdown == pytest.approx(30, rel=0.1)


def test_what_servers_do_is_calibrated_too(tmp_path, monkeypatch):
    run = made_up_run(tmp_path / "run", monkeypatch, seconds=60)
    found = calibrate([run.path], model_bytes=1e6)
    assert found.work.compute.mean_s == pytest.approx(0.09)
    assert found.aggregate_bytes_per_s == pytest.approx((2 * 600 - 60) * 1e6 / (2 * 600 * 0.02), rel=0.01)


def test_the_lanes_of_a_worker_make_one_gradient_of_all_their_data_points(tmp_path, monkeypatch):
    clock = Clock()
    with monkeypatch.context() as patched, RunFolder.create(tmp_path / "run", CONFIG) as run:
        clock.tells_writers(patched)
        lanes = [MetricsWriter(run, "worker", 0, lane=lane) for lane in range(2)]
        server = MetricsWriter(run, "server", 0)
        counted = {name: step_values()[name] for name in ("accepted", "dropped")}
        values = [step_values(), {name: value for name, value in step_values().items() if name not in counted}]
        for step in range(1, 401):
            clock.now_s += 0.1
            for writer, each in zip(lanes, values, strict=True):
                writer.record_step(step, each, {"environment": 0.08, "waiting": 0.02})
            server.record_report({"step": step, "bytes_received": 1e6, "sections_s": {"aggregating": 0.01}})
        for writer in (*lanes, server):
            writer.close()
    found = calibrate([run.path])
    assert found.work.data_points == pytest.approx(320, rel=0.02) and found.work.compute.mean_s == pytest.approx(0.08)
    assert found.work.model_bytes == pytest.approx(1e6) and found.aggregate_bytes_per_s == pytest.approx(1e8)
    assert found.costs.environment_s == pytest.approx(0.08 / 160)


def test_a_run_that_cannot_calibrate_says_why(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"there is no folder"):
        calibrate([tmp_path / "nothing"])
    without_records = run_with_times(tmp_path / "none", monkeypatch, [])
    with pytest.raises(UserError, match="no records of workers"):
        calibrate([without_records.path])
    few = run_with_times(tmp_path / "few", monkeypatch, [0.1] * 5)
    with pytest.raises(UserError, match="3 gradients after .*, too few to calibrate"):
        calibrate([few.path])
    untold = run_with_times(tmp_path / "untold", monkeypatch, [0.1] * 50)
    with pytest.raises(UserError, match="no server told the model's bytes: give --megabytes"):
        calibrate([untold.path])
    for window_s in (0.0, 1.0):
        untimed = run_with_times(tmp_path / f"untimed-{window_s}", monkeypatch, [0.1] * 50, window_s, timed=False)
        with pytest.raises(UserError, match="the runs timed no sections"):
            calibrate([untimed.path], model_bytes=1e6)


def test_a_run_that_is_given_twice_does_not_count_twice(tmp_path, monkeypatch):
    run = run_with_times(tmp_path / "run", monkeypatch, [0.1] * 100)
    with pytest.raises(UserError, match="run is given 2 times: its gradients would count as many times"):
        calibrate([run.path, tmp_path / "." / "run"], model_bytes=1e6)


def test_the_command_prints_a_table_over_servers_and_backups_and_says_that_it_is_simulated(tmp_path, capsys):
    words = [
        "simulate",
        "--nodes",
        "8",
        "--servers",
        "1",
        "2",
        "--backup-workers",
        "0",
        "1",
        "--steps",
        "10",
        "--bandwidth-gbit",
        "1",
    ]
    assert main([*words, "--output", str(tmp_path / "table.csv")]) == 0
    out = capsys.readouterr().out
    assert "SIMULATED: 8 nodes, 1 Gbit/s" in out and "8 servers beside workers" in out and "best: " in out
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 1 + 2 * 4
    assert main(["simulate", "--bandwidth-gbit", "0"]) == 2
    assert "--bandwidth-gbit must be greater than 0" in capsys.readouterr().err


def test_how_late_stragglers_are_means_nothing_while_nobody_is(capsys):
    assert main(["simulate", "--straggler-slowdown", "5"]) == 2
    assert "say --straggler-probability, too" in capsys.readouterr().err


def test_more_servers_are_advised_only_where_they_help():
    work = Work(model_bytes=1.33e6, compute=ComputeTimes(mean_s=0.1), data_points=32)
    fast = best(options(Cluster(bytes_per_s=1.25e11), work, 64, [1, 2, 4, 8], [0], steps=5))
    assert fast.servers == 1
    slow = options(Cluster(bytes_per_s=1.25e7), work, 64, [1, 2, 4, 8], [0], steps=5)
    slow = {setup: outcome for setup, outcome in slow.items() if setup.workers < 64}
    assert best(slow).servers == 8


def test_a_sum_over_all_ranks_has_fewer_servers_than_one():
    commits_s = np.arange(1.0, 51.0)
    found = {
        Setup(exchange="allreduce", workers=64): Outcome(commits_s * 1.004, 64, 0, 32.0),
        Setup(exchange="servers", workers=63, servers=1): Outcome(commits_s, 63, 0, 32.0),
    }
    assert best(found).exchange == "allreduce"


def test_what_an_agent_step_of_a_run_costs_on_the_wire_is_its_own_observation(tmp_path, monkeypatch, capsys):
    asked = []

    def seen(cluster, costs, *rest):
        asked.append(costs.observation_bytes)
        return compare(cluster, costs, *rest)

    monkeypatch.setattr(command, "compare", seen)
    for env_id in ("CartPole-v1", "ALE/Breakout-v5"):
        run = run_with_times(tmp_path / env_id.partition("/")[0], monkeypatch, [0.1] * 30)
        config = TrainConfig(environment=EnvironmentConfig(env_id=env_id))
        (run.path / "config.json").write_text(json.dumps(dataclasses.asdict(config), default=str))
        words = ["simulate", "--central", "--run", str(run.path), "--megabytes", "1", "--nodes", "8"]
        assert main([*words, "--learner-speeds", "12"]) == 0
    assert asked == [16.0, 84.0 * 84.0]
    assert main([*words, "--servers", "3", "--seed", "1"]) == 2
    assert "--servers, --seed: of the table of servers and backup workers" in capsys.readouterr().err


def test_stragglers_that_a_run_had_not_are_as_slow_as_without_a_run(tmp_path, monkeypatch):
    run = run_with_times(tmp_path / "run", monkeypatch, [0.1] * 30)
    found = calibrate([run.path], model_bytes=1e6)
    assert found.work.compute.straggler_slowdown == 1.0
    work = command.work_of(command.SimulateArguments(straggler_probability=0.1), found)
    assert (work.compute.straggler_probability, work.compute.straggler_slowdown) == (0.1, 3.0)


def test_central_inference_is_bounded_by_its_actors_and_by_its_learner():
    costs = AgentCosts(environment_s=1e-3, inference_s=1e-4, learning_s=2e-4, observation_bytes=1.0)
    few_actors = CentralSetup(actors=4, learner_speed=1e6)
    assert central_steps_per_s(TEN_GBIT, costs, few_actors) == pytest.approx(4 / 1e-3, rel=0.02)
    slow_learner = CentralSetup(actors=400, learner_speed=2.0, batch_points=64)
    expected = 2.0 / (1e-4 + 1e-4 + 2e-4)  # inference, and the forward and backward pass of learning
    assert central_steps_per_s(TEN_GBIT, costs, slow_learner) == pytest.approx(expected, rel=0.05)
    narrow = AgentCosts(environment_s=1e-6, inference_s=1e-9, learning_s=1e-9, observation_bytes=1e4)
    linked = central_steps_per_s(TEN_GBIT, narrow, CentralSetup(actors=50, learner_speed=1e3))
    assert linked == pytest.approx(1.25e9 / 1e4, rel=0.05)


@pytest.mark.parametrize(("actors", "speed", "batch"), [(2, 2.0, 2048), (8, 4.0, 3072), (12, 12.0, 1920)])
def test_central_inference_is_as_fast_in_few_updates_as_in_many(actors, speed, batch):
    costs = AgentCosts(environment_s=2e-4, inference_s=3e-4, learning_s=6e-4)
    setup = CentralSetup(actors=actors, learner_speed=speed, batch_points=batch)
    few, many = (central_steps_per_s(TEN_GBIT, costs, setup, rounds=rounds) for rounds in (10, 2000))
    assert few == pytest.approx(many, rel=0.02)
    assert few <= speed / (costs.inference_s + costs.inference_s + costs.learning_s)


def test_on_equal_hardware_workers_win_and_with_an_accelerator_central_inference_does():
    costs = AgentCosts(environment_s=5e-4, inference_s=3e-4, learning_s=6e-4)
    equal = compare(TEN_GBIT, costs, 1.33e6, nodes=8, cores=12, learner_speed=12)
    accelerated = compare(TEN_GBIT, costs, 1.33e6, nodes=8, cores=12, learner_speed=1000)
    assert not equal.central_wins and accelerated.central_wins
    assert equal.workers_per_s == accelerated.workers_per_s
    with pytest.raises(UserError, match="at least 2 nodes"):
        compare(TEN_GBIT, costs, 1.33e6, nodes=1, cores=12, learner_speed=12)


def test_a_node_without_cores_and_a_learner_of_no_speed_are_refused():
    costs = AgentCosts(environment_s=5e-4, inference_s=3e-4, learning_s=6e-4)
    with pytest.raises(UserError, match="a node has at least 1 core, got 0"):
        compare(TEN_GBIT, costs, 1.33e6, nodes=8, cores=0, learner_speed=12)
    for speed in (0.0, float("nan")):
        with pytest.raises(UserError, match="central inference needs actors"):
            compare(TEN_GBIT, costs, 1.33e6, nodes=8, cores=12, learner_speed=speed)
