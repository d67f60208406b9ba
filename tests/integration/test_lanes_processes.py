"""Workers of several lanes in real processes: what they count, and what becomes of a run when a lane is gone."""

import signal
from pathlib import Path

import psutil
import pytest

from tests.integration.runs import Run, newest_checkpoint, records

pytestmark = pytest.mark.timeout(240)
LANES = "CartPole-v1 --workers 2 --servers 1 --lanes 2 --envs-per-worker 4 --metrics-window-s 0.1 --track"


def lanes_of(worker: psutil.Process) -> list[psutil.Process]:
    return worker.children()


def counted(folder: Path, name: str) -> int:
    """Of all lanes of both workers."""
    files = [f"{rank}{lane}" for rank in (0, 1) for lane in ("", ".1")]
    return sum(r.get(name, 0) for each in files for r in records(folder, "worker", each) if r["kind"] == "step")


def test_all_lanes_experience_is_counted_once_and_their_gradients_as_one(tmp_path: Path):
    folder = tmp_path / "run"
    words = f"train {LANES} --total-frames 4000 --run-dir {folder}".split()
    with Run(*words, folder=folder) as run:
        code, output = run.wait(120)
    assert code == 0, output
    server = [record for record in records(folder, "server", 0) if record["kind"] == "server"]
    commits = sum(record["commits"] for record in server)
    trained = server[-1]["data_points_total"]
    assert trained == counted(folder, "data_points") and trained >= 4000
    assert counted(folder, "accepted") == 2 * commits  # a gradient a worker, whatever its lanes
    assert sum(r["agent_steps"] for r in records(folder, "worker", "0.1") if "agent_steps" in r) > 800
    assert "2 gradients × 2 lanes × 2 environments × 8 steps = 64 samples an update" in output


def test_a_killed_lane_ends_its_workers_life_and_the_run_goes_on_with_the_next(tmp_path: Path):
    folder = tmp_path / "run"
    words = f"train {LANES} --total-frames 100000000 --stop-score 1000 --run-dir {folder}".split()
    with Run(*words, folder=folder) as run:
        run.wait_until(lambda: run.steps() > 5, "the first steps")
        worker = run.role("worker", 1)
        (lane,) = lanes_of(worker)
        lane.send_signal(signal.SIGKILL)
        run.gone([worker.pid])
        log = folder / "logs" / "worker-1.log"
        assert "worker 1: lane 1 died (exit code -9)" in log.read_text()
        run.wait_until(lambda: records(folder, "worker", "1.1")[-1]["incarnation"] == 1, "the next life's lane")
        step = run.steps()
        run.wait_until(lambda: run.steps() > step + 5, "further steps")
        (second,) = lanes_of(run.role("worker", 1))
        run.role("worker", 1).kill()  # its lane dies with it
        run.gone([second.pid])
        run.signal(signal.SIGINT)
        code, output = run.wait(120)
    assert code == 0, output
    assert newest_checkpoint(folder).name == f"step-{max(r['step'] for r in records(folder, 'server', 0))}"


def test_what_environments_start_in_servers_and_lanes_ends_as_they_say_and_ends_no_run(tmp_path: Path):
    folder = tmp_path / "run"
    words = (
        "train tests.integration.games:make_with_programs --workers 1 --servers 1 --lanes 2 --envs-per-worker 2 "
        f"--track --total-frames 400 --run-dir {folder}"
    ).split()
    with Run(*words, folder=folder) as run:
        code, output = run.wait(120)
    assert code == 0, output
    server = [record for record in records(folder, "server", 0) if record["kind"] == "server"]
    assert server[-1]["data_points_total"] >= 400, output
    assert "SIGTERM" not in output
