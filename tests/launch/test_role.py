"""How a role's errors end its process: one line, and an exit code that its supervisor understands."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dba3c import roles
from dba3c.central import learner
from dba3c.config import NetworkConfig, TrainConfig, replace_options
from dba3c.environments.protocol import EnvironmentFailed
from dba3c.errors import RUN_BROKEN_EXIT, RUN_ENDED_BROKEN_EXIT, USER_ERROR_EXIT
from dba3c.roles import PER_START
from dba3c.runs.ending import FolderUnreadable
from dba3c.runs.folder import RunFolder
from launch import role
from launch.cli.options import parse_train
from param_servers.config import ExchangeConfig
from param_servers.errors import Diverged, RunBroken


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path / "run", TrainConfig().to_json(), launch_id="1")
    folder.release()
    return folder.path


@pytest.fixture
def code_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """code_of(error, run_dir, name="worker"): the exit code of a role that raises this."""
    monkeypatch.setattr(role, "exit_with_parent", lambda grace_s: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def main(error: BaseException, run_dir: Path, name: str = "worker") -> int:
        def play(*_: object) -> str:
            raise error

        monkeypatch.setattr(roles, "play", play)
        return role.main(["--run-dir", str(run_dir), "--role", name, "--launch-id", "1"])

    return main


def test_a_full_disk_ends_a_role_with_one_line_that_names_the_file(
    run_dir: Path, code_of: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run_dir / "checkpoints"))
    assert code_of(full, run_dir, "server") == RUN_BROKEN_EXIT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("server 0: ") and "No space left" in line
    assert "checkpoints" in line


@pytest.mark.parametrize(
    ("environ", "hears"), [({}, ["SIGTERM", "SIGINT"]), ({"DBA3C_REPLACES_RANK": "3"}, ["SIGINT"])]
)
def test_sigterm_to_a_role_ends_the_run_but_where_it_is_of_a_replacement(
    environ: dict[str, str], hears: list[str], run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[str] = []
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(signal, "signal", lambda signum, handler: handled.append(signum.name))
    role.stop_on_signal(RunFolder(run_dir), "worker 3")
    assert handled == [*hears, "SIGUSR1"]  # a warning to a whole step, which the rank obeys


LANE = """
import os, signal, sys
from pathlib import Path
from dba3c.runs.folder import RunFolder
from launch import role
from launch.local.child import PARENT_VARIABLE
os.environ[PARENT_VARIABLE] = str(os.getppid())
folder = RunFolder(Path(sys.argv[1]))
role.stop_on_signal(folder, "worker 3")
ask = signal.getsignal(signal.SIGTERM)
if not os.fork():
    signal.signal(signal.SIGTERM, ask)  # as lanes do
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
os.wait()
"""


def test_a_lane_that_hears_sigterm_does_not_take_the_death_of_a_launcher_for_its_reason(run_dir: Path) -> None:
    subprocess.run([sys.executable, "-c", LANE, str(run_dir)], check=True, timeout=120)
    assert json.loads((run_dir / "stop.json").read_text())["failed"] is False


@pytest.mark.parametrize("error", [ValueError("late\ntrouble"), SystemExit("late trouble")])
def test_a_role_that_crashes_says_last_what_it_was(
    run_dir: Path, code_of: Callable[..., int], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    assert code_of(error, run_dir) == RUN_BROKEN_EXIT
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("Traceback") and said[-1] == f"worker 0: {type(error).__name__}: late trouble"


def test_a_game_that_keeps_failing_is_a_fault_of_its_process_and_no_bad_input(
    run_dir: Path, code_of: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    failed = EnvironmentFailed("corridor environment 0 (seed 1, step 2): collapsed; given up after 3 restarts")
    assert code_of(failed, run_dir) == RUN_BROKEN_EXIT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("worker 0: corridor environment 0")


@pytest.mark.parametrize(
    ("exchange", "error", "code"),
    [
        ("local", Diverged, RUN_ENDED_BROKEN_EXIT),
        ("local", RunBroken, RUN_BROKEN_EXIT),
        ("majority", Diverged, RUN_BROKEN_EXIT),
        ("servers", RunBroken, RUN_ENDED_BROKEN_EXIT),
        ("servers", FolderUnreadable, RUN_BROKEN_EXIT),
    ],
)
def test_a_process_is_started_again_where_that_may_help(
    tmp_path: Path, code_of: Callable[..., int], exchange: str, error: type[RunBroken], code: int
) -> None:
    config = replace_options(TrainConfig(), exchange=exchange, num_workers=1)
    RunFolder.create(tmp_path / "run", config.to_json(), launch_id="1").release()
    assert code_of(error("none of the last 100 gradients was finite"), tmp_path / "run") == code


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("--actors 2 --learners 3 --exchange allreduce", "3 learners need as many actors or more, got 2 (--actors)"),
        ("--algorithm r2d2 --unroll-length 1", "r2d2 needs unrolls of 2 steps or more here, got 1 (--unroll-length)"),
        ("--algorithm r2d2 --replay-capacity 2000000000", "see --replay-capacity"),
        ("--algorithm r2d2 --replay-capacity 200000000000000", "see --replay-capacity"),
        ("--algorithm vtrace", ""),
    ],
)
def test_what_a_learner_cannot_be_is_said_before_the_run_has_a_folder(said: str, why: str, tmp_path: Path) -> None:
    config = parse_train(["CartPole-v1", "--mode", "central", *said.split()]).config(2)
    code = role.check([config.to_json(), str(tmp_path / "run"), "", str(tmp_path / "why")])
    assert code == (USER_ERROR_EXIT if why else 0)
    assert not why or (tmp_path / "why").read_text().endswith(why)


def test_an_id_that_only_the_caller_has_registered_is_one_line_that_says_how_to_name_it(tmp_path: Path) -> None:
    text = TrainConfig().to_json().replace("ALE/Breakout-v5", "Mine-v0")
    assert role.check([text, str(tmp_path / "run"), "", str(tmp_path / "why")]) == USER_ERROR_EXIT
    why = (tmp_path / "why").read_text()
    assert "unknown environment Mine-v0" in why and why.endswith("one that a module registers is MODULE:Mine-v0")


def test_what_cannot_be_filmed_is_said_before_the_run_has_a_folder(tmp_path: Path) -> None:
    why = "cannot be filmed: it was made without render_mode='rgb_array'"
    for recorders, code in ((1, 2), (0, 0)):
        config = replace_options(
            TrainConfig(), env_id="tests.integration.games:make_corridor", network="mlp", recorders=recorders
        )
        assert role.check([config.to_json(), str(tmp_path / "run"), "", str(tmp_path / "why")]) == code
    assert why in (tmp_path / "why").read_text() and not (tmp_path / "run").exists()


def test_a_role_that_is_started_by_hand_in_a_later_life_does_not_repeat_the_games_of_an_earlier_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incarnations: list[int] = []
    monkeypatch.setattr(role, "play", lambda name, process: incarnations.append(process.incarnation))
    monkeypatch.setattr(role, "exit_with_parent", lambda grace_s: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = ["--run-dir", str(run_dir), "--role", "actor", "--rank", "4"]
    role.main(words)
    RunFolder.launch(run_dir, TrainConfig().to_json(), resume=True).release()
    role.main(words)
    role.main([*words, "--incarnation", str(PER_START + 3)])
    assert incarnations == [0, PER_START, PER_START + 3]


def test_an_orphan_has_the_time_that_a_checkpoint_of_its_own_run_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graces_s: list[float] = []
    config = replace_options(TrainConfig(), checkpoint_timeout_s=600.0)
    RunFolder.create(tmp_path / "run", config.to_json()).release()
    monkeypatch.setattr(role, "play", lambda name, process: "")
    monkeypatch.setattr(role, "exit_with_parent", graces_s.append)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    role.main(["--run-dir", str(tmp_path / "run"), "--role", "actor"])
    assert graces_s == [config.exchange.timeouts.stop_s] and graces_s[0] > 600.0


def test_a_learner_of_a_deep_network_computes_with_its_share_of_all_cores_and_everybody_else_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(role, "given_cores", lambda environ: 7)
    two = ExchangeConfig(exchange="allreduce", num_workers=2)
    deep, small = (TrainConfig(network=NetworkConfig(network=name), exchange=two) for name in ("resnet_lstm", "small"))
    assert role.threads_without_launcher("learner", deep) == 3
    for name, config in (("learner", small), ("worker", deep), ("actor", deep)):
        assert role.threads_without_launcher(name, config) == 1


def test_a_replay_that_may_outgrow_the_memory_is_warned_of_and_a_short_run_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learner, "available_memory_bytes", lambda: 1e6)
    config = parse_train(
        ["CartPole-v1", "--mode", "central", "--algorithm", "r2d2", "--replay-capacity", "100000"]
    ).config(2)
    assert role.check([config.to_json(), str(tmp_path / "run"), "", str(tmp_path / "why")]) == 0
    assert "a replay of 100,000 agent steps takes 0.0 GB once it is full" in capsys.readouterr().err


def test_a_replay_that_cannot_be_smaller_says_so_where_its_memory_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learner, "available_memory_bytes", lambda: 1e6)
    words = "CartPole-v1 --mode central --algorithm r2d2 --replay-capacity 1000 --actors 2 --envs-per-actor 32"
    config = parse_train(words.split()).config(2)
    assert role.check([config.to_json(), str(tmp_path / "run"), "", str(tmp_path / "why")]) == 0
    said = capsys.readouterr().err  # of each environment 6 unrolls of 20 steps: 60 of a sequence, 40 more, and a frame
    assert f"a replay of {64 * 6 * 20:,} agent steps takes 0.0 GB" in said
    assert "see --envs-per-actor and --unroll-length, which need no fewer" in said
