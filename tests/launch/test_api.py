"""`dba3c.train` is `dba3c train` from Python: the same options and folders; it ends well with whoever called it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import dba3c
from dba3c.config import TrainConfig, replace_options
from dba3c.errors import UserError
from dba3c.runs.folder import RunFolder
from dba3c.studies.curve import load_curve
from launch import running
from launch.cli.main import main
from launch.cli.options import parse_train
from launch.local.resources import given_cores
from param_servers.errors import CheckpointError, RunBroken
from tests.integration import games
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
QUICK: dict[str, Any] = {"workers": 1, "servers": 1, "lanes": 1, "envs_per_worker": 4, "track": ()}
SCRIPT = """
import dba3c
run = dba3c.train("CartPole-v1", run_dir="run", detach={detach}, metrics_window_s=0.1, **{quick})
{then}
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What was given to the run of one machine, which ends with `code` or raises `error`."""
    told: dict[str, Any] = {"code": 0}

    def train(config: TrainConfig, run_dir: Path, **options: Any) -> tuple[int, str]:
        told.update(options, config=config, run_dir=run_dir)
        if "error" in told:
            raise told["error"]
        with RunFolder.create(run_dir, config.to_json()) as folder:
            if not told["code"]:  # of a run that failed it is not noted why: the disk is full
                folder.end_life("finished", "worker 0: it is full")
        return told["code"], "worker 0: it is full"

    monkeypatch.setattr(running, "train", train)
    monkeypatch.chdir(tmp_path)
    return told


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["CartPole-v1", "--workers", "2", "--servers", "3"], {"workers": 2, "servers": 3}),
        (["CartPole-v1", "--lr", "0.001", "--track"], {"lr": 1e-3, "track": []}),
        (["breakout", "--preset", "ppo", "--frame-skip", "2", "4"], {"preset": "ppo", "frame_skip": (2, 4)}),
        (["breakout", "--protocol", "2017", "--backup-workers", "1", "--workers", "2"],
         {"protocol": "2017", "backup_workers": 1, "num_workers": 2}),
        ([], {}),
        (["--env", "CartPole-v1"], {"env": "CartPole-v1"}),
        (["breakout", "--env", "ALE/Pong-v5"], {"env": "ALE/Pong-v5"}),
        (["sac", "--max-hours", "2", "--run-dir", "here"], {"max_hours": 2, "run_dir": "here", "preset": None}),
    ],
)  # fmt: skip
def test_options_mean_what_they_mean_on_the_command_line(
    asked: dict[str, Any], words: list[str], options: dict[str, Any]
) -> None:
    run = dba3c.train(*[word for word in words[:1] if not word.startswith("--")], **options)
    assert asked["config"] == parse_train(words).config(given_cores({}))
    assert run.folder == asked["run_dir"].resolve() and run.status == "finished"


@pytest.mark.parametrize("detach", [False, True])
def test_an_ignored_sigchld_that_was_inherited_costs_no_exit_code(asked: dict[str, Any], detach: bool) -> None:
    asked["error"] = UserError("enough")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(UserError, match="enough"):
            dba3c.train("CartPole-v1", detach=detach, run_dir="here")
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_whole_configuration_is_trained_as_it_is_with_what_is_given_beside_it(asked: dict[str, Any]) -> None:
    config = parse_train(["CartPole-v1", "--workers", "2"]).config(2)
    dba3c.train(config, run_dir="here", seed=3)
    assert asked["config"].run.seed == 3 and asked["config"].exchange == config.exchange
    with pytest.raises(UserError, match="preset: a whole configuration was given"):
        dba3c.train(config, preset="ppo")


def test_a_whole_configuration_is_refused_where_the_same_options_are(asked: dict[str, Any]) -> None:
    config = replace_options(parse_train(["Pendulum-v1", "--preset", "sac"]).config(2), normalize_observations=True)
    with pytest.raises(UserError, match="normalize_observations is for what is learned from once"):
        dba3c.train(config, run_dir="run")
    asked["error"] = UserError("it goes on")  # what was trained so before may
    with pytest.raises(UserError, match="it goes on"):
        dba3c.train(config, run_dir="run", resume=True)


def test_code_of_one_s_own_is_given_itself_where_a_process_can_import_it(asked: dict[str, Any]) -> None:
    dba3c.train(games.make_corridor, network=games.Corridor)
    config = asked["config"]
    assert config.environment.env_id == "tests.integration.games:make_corridor"
    assert config.network.network == "tests.integration.games:Corridor"
    for nobody_s in (lambda: None, type("Cell", (), {"__module__": "__main__"})):
        with pytest.raises(UserError, match="cannot be imported by the run's processes"):
            dba3c.train("CartPole-v1", network=nobody_s)
    for another in (games.make_corridor(), functools.partial(games.make_corridor), torch.nn.Linear(2, 2)):
        with pytest.raises(UserError, match="is not what the run's processes would import|give a function or class"):
            dba3c.train(another)


def test_a_file_called_launch_beside_a_script_is_neither_run_nor_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text("raise SystemExit('it was run')")
    (tmp_path / "queue.py").write_text("raise SystemExit('it was run')")
    words = ["CartPole-v1", "--workers", "1", "--servers", "1", "--total-frames", "600", "--run-dir", "run", "--track"]
    dba3c_program = str(Path(sys.executable).with_name("dba3c"))
    done = subprocess.run([dba3c_program, "train", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "queue.py").unlink()
    (tmp_path / "script.py").write_text("import dba3c\ndba3c.train('CartPole-v1')")
    script = [sys.executable, "script.py"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "launch.py hides: rename it" in done.stderr and "it was run" not in done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"worker": 2}, "unknown option 'worker'; did you mean workers"),
        ({"workers": "two"}, "workers must be int, not 'two'"),
        ({"run_dir": ""}, "run_dir must be .*Path.*, not ''"),
        ({"network": None}, "network must be str, not None"),
        ({"workers": 0}, "num_workers must be at least 1, got 0"),
        ({"workers": 2, "num_workers": 2}, "num_workers is given by two of its names"),
        ({"precision": "half"}, "precision must be float32 or bfloat16, not 'half'"),
        ({"burn_in": 3}, "burn_in: an option of algorithm r2d2 only"),
        ({"total_frames": -1}, "total_frames must be at least 1"),
        ({"resume": True}, "nothing to resume"),
    ],
)
def test_what_cannot_be_is_a_user_error_of_one_line(asked: dict[str, Any], options: dict[str, Any], why: str) -> None:
    for detach in (False, True):
        with pytest.raises(UserError, match=why) as refused:
            dba3c.train("CartPole-v1", detach=detach, **options)
        assert "\n" not in str(refused.value)
    assert "config" not in asked


def test_a_run_that_fails_raises_why_also_where_that_could_not_be_noted(asked: dict[str, Any]) -> None:
    for code, error in ((1, RunBroken), (3, RunBroken), (2, UserError)):
        asked["code"] = code
        with pytest.raises(error, match="worker 0: it is full; folder: "):
            dba3c.train("CartPole-v1", run_dir=f"run-{code}")
    asked["code"] = 128 + signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        dba3c.train("CartPole-v1", run_dir="interrupted-twice")
    asked["error"] = CheckpointError("none is whole")
    with pytest.raises(UserError, match="none is whole"):
        dba3c.train("CartPole-v1", run_dir="torn")
    with pytest.raises(UserError, match="none is whole"):
        dba3c.train("CartPole-v1", run_dir="torn", detach=True)


@pytest.fixture
def held(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The end of a run that goes on until it is set, and then raises what `asked` has as `later`."""
    end, train = threading.Event(), running.train

    def until_the_end(config: TrainConfig, run_dir: Path, **options: Any) -> tuple[int, str]:
        ended = train(config, run_dir, **options)
        with options["beside"](RunFolder.open(run_dir)):
            assert end.wait(60)
        if "later" in asked:
            raise asked["later"]
        return ended

    monkeypatch.setattr(running, "train", until_the_end)
    return end


def test_a_detached_run_is_found_at_its_end_from_wherever_the_program_has_gone(
    held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = dba3c.train("CartPole-v1", run_dir="run", detach=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    held.set()
    assert training.wait().folder == tmp_path / "run"


def test_a_run_that_ended_in_a_timeout_is_not_taken_for_one_that_goes_on(
    asked: dict[str, Any], held: threading.Event
) -> None:
    asked["later"] = TimeoutError("the file system is away")
    training = dba3c.train("CartPole-v1", run_dir="run", detach=True)
    assert training.wait(0.0) is training
    held.set()
    with pytest.raises(TimeoutError, match="the file system is away"):
        training.wait()


def test_the_roles_are_given_the_words_of_the_search_path_whatever_else_is_in_it(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    dba3c.train("CartPole-v1", run_dir="run")
    assert asked["environ"]["PYTHONPATH"] == os.pathsep.join(map(str, sys.path[:-1]))


def test_a_module_beside_a_notebook_is_the_same_in_the_roles_and_is_not_taken_for_one_of_pythons(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    dba3c.train("CartPole-v1", run_dir="run")
    for name in ("yaml", "queue", "array"):
        (tmp_path / f"{name}.py").write_text("make_env = None")
    program = "import array, queue, yaml; print(array, queue, yaml.make_env)"
    (tmp_path / "elsewhere").mkdir()
    role = {"args": [sys.executable, "-c", program], "env": asked["environ"], "cwd": tmp_path / "elsewhere"}
    done = subprocess.run(**role, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith("None\n") and str(tmp_path) not in done.stdout


def test_a_rank_of_many_is_sent_to_the_command(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(UserError, match="mpirun started 4 ranks, which `dba3c train` makes one run of"):
        dba3c.train("CartPole-v1")


def test_resume_goes_on_with_what_the_run_was_configured_with(asked: dict[str, Any]) -> None:
    run = dba3c.train("CartPole-v1", workers=3, run_dir="run")
    asked["error"] = CheckpointError("none is whole")
    with pytest.raises(UserError, match="none is whole"):
        dba3c.resume(run)
    assert asked["resume"] and asked["config"] == run.config and asked["run_dir"] == run.folder
    with pytest.raises(UserError, match="none is whole"):
        dba3c.resume(run, total_frames=77)
    assert asked["config"].run.total_frames == 77
    with pytest.raises(UserError, match="servers"):
        dba3c.resume(run, servers=3)


def test_stopping_a_run_that_has_just_ended_by_itself_says_why_it_did_and_the_command_refuses(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = dba3c.train("CartPole-v1", run_dir="run")
    assert dba3c.stop(run) == f"{run.folder} has ended: {run.reason}" and run.reason
    assert not (run.folder / "stop.json").exists()
    assert main(["stop", str(run.folder)]) == 2
    assert f"{run.folder} is not live: it is finished" in capsys.readouterr().err


def test_a_detached_run_is_there_at_once_and_looked_at_when_it_has_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, end = tmp_path / "run", {"total_frames": 20_000}
    training = dba3c.train("CartPole-v1", run_dir=folder, detach=True, metrics_window_s=0.1, **QUICK, **end)
    assert training.folder == folder and training.status == "live" and training.wait(0.0) is training
    run = training.wait()
    assert run.status == training.status == "finished" and f"run ended: {run.reason}" in capfd.readouterr().out
    assert load_curve(folder).column("score/mean")[-1] > 5
    assert run.agent().act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


@contextmanager
def script(folder: Path, detach: bool, then: str) -> Iterator[subprocess.Popen[str]]:
    """A script that trains, and its processes, which the end of the test finds."""
    (folder / "script.py").write_text(SCRIPT.format(detach=detach, then=then, quick=QUICK))
    command = [sys.executable, "script.py"]
    pipe, environ = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environ, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_reader_that_has_left_does_not_end_a_script_s_training(tmp_path: Path) -> None:
    reader, pipe = os.pipe()
    os.close(reader)
    (tmp_path / "script.py").write_text(SCRIPT.format(detach=False, then="", quick={**QUICK, "total_frames": 2000}))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(pipe, "w") as nobody:
        subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, env=environ, stdout=nobody, stderr=nobody, timeout=120
        )
    run = dba3c.read(tmp_path / "run")
    assert run.status == "finished" and "frames trained on" in run.reason


def updated(run: Path) -> bool:
    """Whether it has taken a step."""
    log = run / "metrics" / "server-0.jsonl"
    return log.exists() and any(json.loads(line).get("step", 0) > 5 for line in log.read_text().split("\n")[:-1])


def wait_for_updates(process: subprocess.Popen[str], run: Path) -> list[psutil.Process]:
    """The roles of the run, when they have learned something."""
    wait_until(lambda: updated(run) or process.poll() is not None, "updates")
    assert process.poll() is None, process.communicate()[0]
    return psutil.Process(process.pid).children(recursive=True)


def test_ctrl_c_ends_a_script_s_training_with_a_checkpoint_and_the_script_goes_on(tmp_path: Path) -> None:
    with script(tmp_path, detach=False, then="print(run.status, run.agent().step > 0)") as process:
        roles = wait_for_updates(process, tmp_path / "run")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert output.splitlines()[-1] == "stopped True" and process.returncode == 0, output
    assert len(roles) >= 3 and not any(role.is_running() for role in roles)


def test_a_detached_training_ends_with_its_interpreter_and_a_checkpoint(tmp_path: Path) -> None:
    with script(tmp_path, detach=True, then="import signal; signal.pause()") as process:
        roles = wait_for_updates(process, tmp_path / "run")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in output and process.returncode != 0
    assert dba3c.read(tmp_path / "run").status == "stopped" and dba3c.load(tmp_path / "run").step > 0
    assert len(roles) >= 3 and not any(role.is_running() for role in roles)


def test_a_fork_of_the_program_ends_by_itself_and_leaves_the_run_alone(tmp_path: Path) -> None:
    then = """
import os, sys
if os.fork() == 0:
    sys.exit(7)
_, status = os.wait()
print("the fork ended with", os.waitstatus_to_exitcode(status), "and the run is", run.status)
"""
    with script(tmp_path, detach=True, then=then) as process:
        output, _ = process.communicate(timeout=120)
    assert "the fork ended with 7 and the run is live" in output and process.returncode == 0
