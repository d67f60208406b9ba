"""`dba3c train` as its users meet it: it learns, survives, stops, resumes, and says what is wrong in one line."""

import importlib.util
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from dba3c.roles import PER_START
from dba3c.runs.folder import RunFolder
from launch.cli.options import parse_train
from param_servers.checkpoint.files import find_newest, load_checkpoint
from param_servers.layout import plan_shards
from tests.integration.runs import Run, episodes, newest_checkpoint, refused
from tests.param_servers.checkpoint.test_checkpoint_files import LAYOUT, save

CARTPOLE = ("train", "CartPole-v1", "--workers", "2", "--servers", "2", "--track", "--seed", "1")
CORRIDOR = (
    "train", "tests.integration.games:make_corridor", "--workers", "1", "--servers", "1", "--track",
    "--envs-per-worker", "2", "--metrics-window-s", "0.1",
)  # fmt: skip


def started(folder: Path, *words: str, base: tuple[str, ...] = CORRIDOR) -> Run:
    return Run(*base, "--run-dir", str(folder), *words, folder=folder)


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_cartpole_is_learned_through_real_servers_and_workers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder, "--total-frames", "250000", "--stop-score", "1000", base=CARTPOLE) as run:
        code, output = run.wait(300)
    assert code == 0, output
    scores = [episode["score"] for episode in episodes(folder, workers=2)]
    assert np.mean(scores[:20]) < 60
    assert np.mean(scores[-50:]) >= 400


def test_the_evaluator_plays_with_the_only_checkpoint_of_a_run_after_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("--total-frames", "200", "--checkpoint-every-steps", "0", "--evaluators", "1", "--evaluation-games", "3")
    with started(folder, *words) as run:
        code, output = run.wait()
    assert code == 0, output
    (checkpoint,) = (folder / "checkpoints").glob("step-*")
    kept = json.loads((folder / "evaluations" / f"{checkpoint.name}-sampled.json").read_text())
    (told,) = (record for record in run.records("evaluator", 0) if record["kind"] == "evaluation")
    assert len(kept["scores"]) == told["games"] == 3 and told["unfinished"] == 0
    assert "playing 3 games with its last checkpoint, for at most 120 s; Ctrl-C ends that" in output


def test_one_ctrl_c_ends_the_games_after_the_end_and_they_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("--total-frames", "200", "--evaluators", "1", "--evaluation-games", "1000000",
        "--evaluation-budget-s", "3000")  # fmt: skip
    with started(folder, *words) as run:
        run.wait_until(lambda: any("Ctrl-C" in r.get("message", "") for r in run.records("evaluator", 0)), "the games")
        run.signal(signal.SIGINT)
        code, output = run.wait(150)  # far less than they had
    assert code == 0, output
    assert not any(record.get("event") == "killing" for record in run.records("launcher", 0))
    last = run.records("evaluator", 0)[-1]
    if last["kind"] == "evaluation":
        assert last["unfinished"] > 0 and "had not ended, which favours short games" in output
    else:
        assert "`dba3c evaluate" in last["message"]


def test_a_live_run_is_its_own_ends_with_a_checkpoint_at_ctrl_c_and_resume_goes_on_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with started(folder) as run:
        run.wait_until(lambda: run.steps() > 30, "step 30")
        check_that_only_loopback_listens_and_the_secret_is_its_owner_s(run)
        assert str(run.process.pid) in refused(capsys, *CORRIDOR, "--run-dir", str(folder), "--resume")
        before = run.steps()
        run.wait_until(lambda: run.steps() > before, "a further step")
        run.signal(signal.SIGINT)
        code, output = run.wait()
    assert code == 0, output
    first = json.loads((newest_checkpoint(folder) / "manifest.json").read_text())
    assert first["step"] > before
    config = (folder / "config.json").read_text()
    other = refused(capsys, *CORRIDOR, "--run-dir", str(folder), "--resume", "--learning-rate", "0.5", "--seed", "9")
    assert "(not constant:0.5), --seed 0 (not 9): give the options that it began with" in other
    assert (folder / "config.json").read_text() == config
    total_frames = first["data_points"] + 2000
    with started(folder, "--resume", "--total-frames", str(total_frames)) as run:
        code, of_second_life = run.wait()
    assert code == 0 and "had finished" not in of_second_life, of_second_life
    second = json.loads((newest_checkpoint(folder) / "manifest.json").read_text())
    assert second["step"] > first["step"]
    assert total_frames <= second["data_points"] < total_frames + 200
    assert len(RunFolder.open(folder).meta()["lives"]) == 2
    for role in ("server", "worker"):  # nobody passes for who played the role in the life before
        assert {record["incarnation"] for record in run.records(role, 0)} == {0, PER_START}
    check_that_the_secret_is_in_its_own_file_only(folder, output + of_second_life)


def check_that_only_loopback_listens_and_the_secret_is_its_owner_s(run: Run) -> None:
    listening = [
        c.laddr.ip for child in run.children() for c in child.net_connections(kind="tcp") if c.status == "LISTEN"
    ]
    assert listening and set(listening) == {"127.0.0.1"}
    assert (run.folder / "secret").stat().st_mode & 0o077 == 0
    secret = (run.folder / "secret").read_text().strip()
    assert not any(secret in " ".join(child.cmdline()) for child in run.children())


def check_that_the_secret_is_in_its_own_file_only(folder: Path, output: str) -> None:
    secret = (folder / "secret").read_text().strip()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == ["secret"]
    assert {"worker-0.log", "worker-0.jsonl", "meta.json", "config.json"} <= {path.name for path in files}
    assert secret not in output


def test_ctrl_c_twice_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    with started(tmp_path / "run") as run:
        run.wait_until(lambda: run.steps() > 5, "step 5")
        run.role("server", 0).suspend()  # so that the clean end cannot happen in between
        run.signal(signal.SIGINT)
        run.wait_until(lambda: (tmp_path / "run" / "stop.json").exists(), "the request to stop")
        run.signal(signal.SIGINT)
        code, output = run.wait(60)
    assert code == 128 + signal.SIGINT, output


def test_a_server_killed_with_kill_9_comes_back_from_the_last_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder, "--servers", "2", "--checkpoint-every-steps", "20") as run:
        saved = load_checkpoint(run.wait_until(lambda: find_newest(folder / "checkpoints"), "a checkpoint")).step
        run.role("server", 1).kill()
        run.wait_until(lambda: any(r["incarnation"] == 1 for r in run.records("server", 1)), "the server's return")
        back_to = [record["step"] for record in audited(folder) if record["kind"] == "rollback"][-1]
        assert back_to >= saved > 0
        run.wait_until(lambda: audited(folder)[-1].get("step", 0) > back_to + 20, "further steps")
        run.signal(signal.SIGINT)
        code, output = run.wait()
    assert code == 0, output
    assert "server 1: killed by SIGKILL; starting it again" in output


def audited(folder: Path) -> list[dict]:
    """What server 0 has decided, without a line that it is writing."""
    lines = (folder / "audit" / "commits.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_a_launch_that_has_lost_its_folder_ends_at_once_names_the_successor_and_writes_nothing_more(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    with started(folder, "--checkpoint-every-steps", "0") as run:
        run.wait_until(lambda: run.steps() > 5, "step 5")
        everybody = [run.process.pid, *(child.pid for child in run.children())]
        successor = {"host": "node17", "pid": 42, "process_started": "1", "pid_space": "another boot", "token": "abc"}
        (folder / "stolen").write_text(json.dumps(successor))
        (folder / "stolen").rename(folder / "lock.json")
        code, output = run.wait(60)
        run.gone(everybody)
    assert code == 4 and f"{folder} was taken over by process 42 on node17" in output
    assert not (folder / "stop.json").exists()  # it would end the successor's run
    assert "ended" not in RunFolder.open(folder).life()
    assert json.loads((folder / "lock.json").read_text())["token"] == "abc"
    assert not list((folder / "checkpoints").iterdir())  # a run that ends otherwise leaves one


def test_a_torn_newest_checkpoint_is_renamed_and_the_one_before_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder, "--checkpoint-every-steps", "10", "--total-frames", "1000") as run:
        assert run.wait()[0] == 0
    newest = newest_checkpoint(folder)
    shard = next(newest.glob("shard-0*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-8])
    with started(folder, "--resume", "--total-frames", "1500") as run:
        code, output = run.wait()
    assert code == 0, output
    assert "this run had finished: " in output and "; it trains on until it does so anew" in output
    told = [r["message"] for r in run.records("server", 0) if r["kind"] == "event"]
    assert any(newest.name in message for message in told)
    assert (folder / "checkpoints" / f"{newest.name}.aside-1").is_dir()


def test_checkpoints_that_no_resume_could_use_are_refused_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    RunFolder.create(folder, parse_train(CORRIDOR[1:]).config(2).to_json()).release()
    checkpoint = save(folder / "checkpoints", plan_shards(LAYOUT, 1), 4)  # of another network
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert "is of another network" in refused(capsys, "resume", str(folder))
    (checkpoint / "manifest.json").write_text("{")
    assert "none of its checkpoints is whole" in refused(capsys, "resume", str(folder))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == left


@pytest.mark.timeout(240)
def test_a_game_that_fails_in_every_worker_again_and_again_ends_the_run_with_one_line_that_names_it(
    tmp_path: Path,
) -> None:
    base = ("train", "tests.integration.games:make_raising", *CORRIDOR[2:])
    with started(tmp_path / "run", "--environment-restarts", "1", base=base) as run:
        code, output = run.wait(220)
    assert code != 0
    last = output.splitlines()[-1]
    assert "the corridor has collapsed" in last and "environment" in last
    assert "Traceback" not in output
    restarts = [r["message"] for r in run.records("worker", 0) if r.get("event") == "environment_restarted"]
    assert restarts and all("environment" in message for message in restarts)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("train", "CartPole-v1", "--workers", "4", "--gradients", "5"), "5 gradients"),
        (("train", "no_such_package.games:make"), "no_such_package"),
        (("resume", "/nonexistent/run"), "/nonexistent/run"),
    ],
)
def test_bad_input_is_one_line_and_a_non_zero_exit(
    words: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in refused(capsys, *words)


@pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="no MPI")
def test_workers_that_no_mpirun_started_are_refused_instead_of_training_a_model_each(tmp_path: Path) -> None:
    over_mpi = ("train", "CartPole-v1", "--exchange", "allreduce", "--collective-backend", "mpi", "--workers", "2")
    with started(tmp_path / "run", base=over_mpi) as run:
        code, output = run.wait()
    assert code == 2
    assert "sums over 1 rank, but 2 workers were given: start it with mpirun -n 2" in output
    assert "Traceback" not in output
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("exchange", [("--servers", "2"), ("--exchange", "allreduce")], ids=["servers", "allreduce"])
def test_the_same_seed_gives_bit_equal_parameters_with_two_workers(tmp_path: Path, exchange: tuple[str, str]) -> None:
    parameters = []
    for name in ("one", "two"):
        words = ("--workers", "2", *exchange, "--total-frames", "1500", "--seed", "7", "--track")
        with started(tmp_path / name, *words, base=("train", CORRIDOR[1], "--envs-per-worker", "2")) as run:
            code, output = run.wait()
        assert code == 0, output
        parameters.append(load_checkpoint(newest_checkpoint(tmp_path / name)).parameters)
    assert torch.equal(*parameters)
