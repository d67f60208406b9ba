"""From a launcher's rank to a configuration that fits, and to the processes that the rank runs."""

from __future__ import annotations

import importlib.util
import json
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from dba3c.config import NetworkConfig, TrainConfig
from dba3c.errors import UserError
from dba3c.runs.ending import REFUSED, failures, outcome, telling_refusals
from dba3c.runs.folder import RunFolder
from launch import rank as launch_rank
from launch import running
from launch.cli.configuration import fit_config
from launch.cli.options import parse_train
from launch.cli.runs import run_dir_of_launch, train_as_rank
from launch.cluster.launchers import LaunchPlace
from launch.local import resources
from param_servers.errors import ConfigError, RunBroken


def fitted(world_size: int, *words: str) -> str:
    place = LaunchPlace(launcher="srun", rank=1, world_size=world_size, tasks_per_node=(1,) * world_size)
    config, topology = fit_config(parse_train(words), place)
    if topology.learners:
        assert (config.exchange.num_workers, config.central.actors) == (topology.learners, topology.actors)
        return topology.arithmetic()
    assert config.exchange.num_workers == topology.workers
    assert config.exchange.gradients_per_step == (1 if config.exchange.exchange == "async" else topology.gradients)
    return topology.arithmetic()


@pytest.mark.parametrize(
    ("world_size", "words", "arithmetic"),
    [
        (71, "dba3c_paper", "71 = 4 servers + 1 evaluator + 1 recorder + 65 workers (60 gradients + 5 backup)"),
        (11, "dba3c_paper --gradients 3", "11 = 4 servers + 1 evaluator + 1 recorder + 5 workers (3 gradients + 2 backup)"),  # noqa: E501
        (64, "breakout --servers 4 --backup-workers 4", "64 = 4 servers + 60 workers (56 gradients + 4 backup)"),
        (64, "breakout --servers 4 --gradients 50", "64 = 4 servers + 60 workers (50 gradients + 10 backup)"),
        (5, "dba3c_paper", "5 = 1 server + 1 evaluator + 1 recorder + 2 workers (2 gradients + 0 backup)"),
        (8, "dba3c_paper", "8 = 4 servers + 1 evaluator + 1 recorder + 2 workers (2 gradients + 0 backup)"),
        (3, "ALE/Pong-v5 --servers 1 --workers 2", "3 = 1 server + 2 workers (2 gradients + 0 backup)"),
        (5, "breakout --mode central", "5 = 1 learner + 4 actors"),
        (8, "breakout --mode central --exchange servers --servers 2 --learners 3", "8 = 2 servers + 3 learners + 3 actors"),  # noqa: E501
        (4, "CartPole-v1 --exchange allreduce", "4 = 4 workers (4 gradients + 0 backup)"),
        (16, "breakout --exchange allreduce", "16 = 16 workers (16 gradients + 0 backup)"),
        (4, "CartPole-v1 --exchange async --servers 1", "4 = 1 server + 3 workers (each gradient is an update)"),
        (16, "breakout --exchange async --servers 1", "16 = 1 server + 15 workers (each gradient is an update)"),
    ],
)  # fmt: skip
def test_a_preset_gives_way_to_the_ranks_there_are(world_size: int, words: str, arithmetic: str) -> None:
    assert fitted(world_size, *words.split()) == arithmetic


@pytest.mark.parametrize(
    ("world_size", "words", "message"),
    [
        (
            3,
            "CartPole-v1 --exchange allreduce --collective-backend mpi --evaluators 1",
            "mpi sums over all 3 ranks, where an evaluator or a recorder has nothing to add",
        ),
        (3, "dba3c_paper", "srun started 3 ranks, but 1 server + 1 evaluator + 1 recorder leave none for a worker"),
        (2, "CartPole-v1 --exchange local", "exchange local is one worker"),
        (8, "breakout --mode central --backup-workers 4", "4 backup of 1 workers leave no gradient for an update"),
        (
            4,
            "CartPole-v1 --exchange allreduce --colocated-servers",
            "--colocated-servers: a run of exchange allreduce, mode worker has no servers beside workers",
        ),
        (
            5,
            "breakout --mode central --exchange servers --servers 1 --colocated-servers",
            "--colocated-servers: a run of exchange servers, mode central has no servers beside workers",
        ),
        (8, "breakout --actors 9", "actors: an option of mode central only, and this run's mode is worker"),
    ],
)
def test_what_the_user_gave_must_fit_exactly(world_size: int, words: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        fitted(world_size, *words.split())
    assert message in str(refused.value)


def test_where_ranks_listen_is_not_said_by_an_address_of_one_machine(tmp_path: Path) -> None:
    words = ["breakout", "--listen-host", "10.0.0.1", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(UserError, match="listen_host is an option of one machine; .* --interface"):
        train_as_rank(parse_train(words), rank_of_three(0), "dba3c")


def test_the_ranks_of_a_launch_agree_on_a_run_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_train(["breakout"]).config(2)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    place = LaunchPlace(launcher="mpirun", world_size=2, launch_id="prterun-host-77@1")
    assert str(run_dir_of_launch(config, place)) == "runs/breakout-prterun-host-77-1"
    monkeypatch.setenv("SLURM_JOB_ID", "17")  # a requeued job keeps its number, so its next life finds the folder
    assert str(run_dir_of_launch(config, place)) == "runs/breakout-17"
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UserError, match="say --run-dir"):
        run_dir_of_launch(config, LaunchPlace(launcher="MPICH's mpirun", world_size=2))


def test_a_contradiction_is_said_by_one_rank_only() -> None:
    words = ["breakout", "--servers", "2", "--workers", "4"]
    others = [LaunchPlace(launcher="srun", rank=rank, world_size=8, tasks_per_node=(1,) * 8) for rank in range(8)]
    assert [train_as_rank(parse_train(words), place, "dba3c") for place in others[1:]] == [2] * 7
    with pytest.raises(UserError, match="2 servers"):
        train_as_rank(parse_train(words), others[0], "dba3c")


def rank_of_three(rank: int, launcher: str = "srun") -> LaunchPlace:
    return LaunchPlace(
        launcher=launcher, rank=rank, world_size=3, tasks_per_node=(1,) * 3, launch_id="17-0-0", address="localhost"
    )


def refused(run_dir: Path, rank: int, *words: str, launcher: str = "srun") -> str:
    """What the rank of a launch into `run_dir` says before it starts anything; it would wait for minutes."""
    words = ("CartPole-v1", "--servers", "1", "--join-timeout-s", "200", "--run-dir", str(run_dir), *words)
    began_s = time.monotonic()
    with pytest.raises((UserError, ConfigError)) as refusal:
        train_as_rank(parse_train(words), rank_of_three(rank, launcher), "dba3c")
    assert time.monotonic() - began_s < 150.0
    return str(refusal.value)


def test_ranks_that_wait_hear_what_their_chief_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    missing = [refused(run_dir, rank, "--interface", "ib9") for rank in (0, 1)]
    assert missing[0].startswith("network interface ib9 has no IPv4 address")
    assert refused(run_dir, 2) == missing[0]  # a rank whose own network is well
    RunFolder.create(run_dir, {}, launch_id="an earlier one").release()
    (line,) = {refused(run_dir, rank) for rank in range(3)}
    assert line.startswith(f"{run_dir} already holds a run: resume it (--resume), or choose another folder")
    monkeypatch.setattr(RunFolder, "launch", crash)
    with pytest.raises(ZeroDivisionError):
        train_as_rank(
            parse_train(["CartPole-v1", "--servers", "1", "--run-dir", str(run_dir)]), rank_of_three(0), "dba3c"
        )
    assert refused(run_dir, 1) == "ZeroDivisionError: of this test"


def test_a_chief_tries_the_users_own_network_before_the_run_and_all_ranks_hear_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong_of_rank.py").write_text(
        "import atexit; atexit.register(print, 'a library says farewell')\n"
        "def net(observation_space, action_space):\n    return observation_space.width\n"
    )
    said = [refused(tmp_path / "run", rank, "--network", "wrong_of_rank:net") for rank in (0, 1)]
    assert said[0].startswith("wrong_of_rank:net raised AttributeError") and said[0].endswith("wrong_of_rank.py:3)")
    assert said[1] == said[0] and not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("says", ["", "print('a harmless warning', flush=True)"])
def test_a_check_that_is_killed_is_told_with_its_signal_whatever_it_had_said(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dies_of_rank.py").write_text(f"import os, signal\n{says}\nos.kill(os.getpid(), signal.SIGKILL)\n")
    words = ["CartPole-v1", "--servers", "1", "--network", "dies_of_rank:net", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(RunBroken, match="^the check of what is to run ended: killed by SIGKILL$"):
        train_as_rank(parse_train(words), rank_of_three(0), "dba3c")


@pytest.mark.parametrize(("ranks", "limit_s"), [(3, 95.0), (1, running.CHECK_TIMEOUT_S)])
def test_a_chief_gives_up_on_a_check_that_hangs_before_its_ranks_if_any_give_up_on_it(
    ranks: int, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[object] = []
    for_imports_s: list[float] = []
    ended_within_s: list[float] = []

    class Hangs:
        def __init__(self, *_: object) -> None: ...

        def signal(self, signum: object) -> None:
            killed.append(signum)

    class Never:
        set_result = None

        def result(self, timeout_s: float) -> int:
            ended_within_s.append(timeout_s)
            raise running.NotYet

    monkeypatch.setattr(
        launch_rank, "ForkServer", lambda import_timeout_s: for_imports_s.append(import_timeout_s) or nullcontext()
    )
    monkeypatch.setattr(running, "Child", Hangs)
    monkeypatch.setattr(running, "Future", Never)
    monkeypatch.setattr(launch_rank, "has_own_code", lambda config: True)
    run_dir = tmp_path / "run"
    shape = ["--servers", "1"] if ranks > 1 else ["--exchange", "local", "--workers", "1"]
    words = ["CartPole-v1", *shape, "--join-timeout-s", "100", "--run-dir", str(run_dir)]
    place = replace(rank_of_three(0), world_size=ranks, tasks_per_node=(1,) * ranks)
    with pytest.raises(RunBroken, match=f"the check of what is to run did not end within {limit_s:g} s"):
        train_as_rank(parse_train(words), place, "dba3c")
    assert len(killed) == 1 and for_imports_s == [limit_s] and 0.0 <= ended_within_s[0] <= limit_s
    if ranks > 1:
        assert refused(run_dir, 1).endswith("the check of what is to run did not end within 95 s")


@pytest.mark.parametrize(("ranks_here", "threads"), [(1, "1"), (2, "3")])
def test_how_many_threads_is_the_users_word_where_torchrun_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks_here: int, threads: str
) -> None:
    """It says 1 where it starts several ranks on a node."""
    told: list[str] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(launch_rank, "given_cores", lambda *_: 3)
    monkeypatch.setattr(launch_rank, "ForkServer", lambda environ: told.append(environ["OMP_NUM_THREADS"]) or crash())
    words = ["CartPole-v1", "--servers", "1", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(ZeroDivisionError):
        train_as_rank(parse_train(words), replace(rank_of_three(0, "torchrun"), local_world_size=ranks_here), "dba3c")
    assert told == [threads]


def test_a_rank_that_cannot_start_its_processes_ends_the_run_that_would_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    monkeypatch.setattr(launch_rank, "_folder_of_the_chief", lambda *_: RunFolder.open(folder.path))
    monkeypatch.setattr(launch_rank, "ForkServer", crash)
    words = ["CartPole-v1", "--servers", "1", "--run-dir", str(folder.path)]
    with pytest.raises(ZeroDivisionError):
        train_as_rank(parse_train(words), rank_of_three(1), "dba3c")
    assert folder.has_failed() and str(folder.stop_reason()).startswith("worker 0 on ")
    assert [(failure.role, failure.rank) for failure in failures(folder.path)] == [("worker", 0)]
    folder.release()


@pytest.mark.parametrize(
    ("said", "rank", "warned"), [("1", 0, True), ("4,1", 0, True), ("24", 0, False), ("", 0, False), ("1", 1, False)]
)
def test_a_learner_that_is_told_to_compute_with_few_of_its_cores_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: str,
    rank: int,
    warned: bool,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said) if said else monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(launch_rank, "given_cores", lambda *_: 24)
    monkeypatch.setattr(launch_rank, "bind_to_own_cores", lambda *_: [])
    monkeypatch.setattr(launch_rank, "ForkServer", crash)
    monkeypatch.setattr(launch_rank, "_folder_of_the_chief", lambda *_: RunFolder.create(tmp_path / "run", {}))
    words = ["CartPole-v1", "--mode", "central", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(ZeroDivisionError):
        train_as_rank(parse_train(words), rank_of_three(rank), "dba3c")
    number = said.partition(",")[0]
    line = f"dba3c: warning: OMP_NUM_THREADS={number}: the learner computes with {number} of its 24 cores"
    assert (line in capsys.readouterr().err.splitlines()) == warned


def test_a_node_that_is_slow_in_the_precision_of_its_chief_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_rank, "role_processes", crash)
    monkeypatch.setattr(resources, "is_quick_in_bfloat16", lambda: False)
    config = TrainConfig(network=NetworkConfig(precision="bfloat16"))
    words = ["CartPole-v1", "--servers", "1", "--run-dir", str(tmp_path / "run")]
    with RunFolder.create(tmp_path / "run", config.to_json(), launch_id="17-0-0") as folder:
        with pytest.raises(ZeroDivisionError):
            train_as_rank(parse_train(words), replace(rank_of_three(1), node_name="n7"), "dba3c")
        (record,) = map(json.loads, folder.metrics_file("launcher", 1).read_text().splitlines())
    assert record["event"] == "slow_precision"
    assert record["message"].startswith("worker 0 on n7: this processor is slower in bfloat16")


def test_a_chief_that_crashes_once_the_run_has_begun_has_noted_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_rank, "role_processes", crash)
    words = ["CartPole-v1", "--servers", "1", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(ZeroDivisionError):
        train_as_rank(parse_train(words), rank_of_three(0), "dba3c")
    ended = RunFolder(tmp_path / "run").life()["ended"]
    assert ended["outcome"] == "failed"
    assert ended["reason"].endswith("ZeroDivisionError: of this test")


def test_a_chief_says_why_the_run_that_goes_on_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch_rank, "role_processes", crash)
    words = ["CartPole-v1", "--servers", "1", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(ZeroDivisionError):
        train_as_rank(parse_train(words), rank_of_three(0), "dba3c")
    with RunFolder.launch(tmp_path / "run", None, resume=True) as folder:
        folder.end_life("finished", "score reached")
    assert "had finished" not in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        train_as_rank(parse_train([*words, "--resume"]), rank_of_three(0), "dba3c")
    assert "this run had finished: score reached; it trains on until it does so anew" in capsys.readouterr().err


def crash(*_: object, **__: object) -> None:
    raise ZeroDivisionError("of this test")


def test_where_the_chief_cannot_leave_word_each_rank_sees_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters").write_text("")
    for folder, why in ((tmp_path / "file" / "run", "Not a directory"), (tmp_path / "home", "not a run folder")):
        said = {refused(folder, rank) for rank in range(3)}
        assert len(said) == 1
        assert why in said.pop()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letters"]


def test_a_refusal_of_a_launch_that_had_the_same_name_is_not_believed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    RunFolder.create(run_dir, {}, launch_id="an earlier one").release()
    words = ["CartPole-v1", "--servers", "1", "--join-timeout-s", "1", "--run-dir", str(run_dir)]
    by_hand = "the environment"
    assert "already holds a run" in refused(run_dir, 0, launcher=by_hand)
    noted = json.loads((run_dir / REFUSED).read_text())
    (run_dir / REFUSED).write_text(json.dumps({**noted, "time_s": noted["time_s"] - 2 * launch_rank.REFUSAL_HOLDS_S}))
    with pytest.raises(UserError, match="not a run folder of launch 17-0-0 after 1 s"):
        train_as_rank(parse_train(words), rank_of_three(1, by_hand), "dba3c")
    assert "already holds a run" in refused(run_dir, 1)  # srun names no two launches alike
    with telling_refusals(run_dir, "17-0-0"):
        assert not (run_dir / REFUSED).exists()  # the chief is back


@pytest.mark.parametrize("launch_id", ["17-0-0", ""])  # MPICH gives its ranks no name in common
def test_a_rank_does_not_join_a_life_that_ended_long_before_it_under_the_same_name(
    launch_id: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    folder = RunFolder.create(run_dir, {}, launch_id=launch_id)
    folder.end_life("finished", "score reached")
    now_s = time.time()
    assert RunFolder.open(run_dir, launch_id=launch_id, since_s=now_s - 60).path == run_dir  # it came late
    with pytest.raises(UserError, match="is not a run folder"):
        RunFolder.open(run_dir, launch_id=launch_id, since_s=now_s + 1)
    meta = folder.meta()
    meta["lives"][-1]["started_s"] = now_s - 1000  # it has only just ended, when torchrun is started anew
    (run_dir / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match="is not a run folder"):
        RunFolder.open(run_dir, launch_id=launch_id, since_s=now_s - 60)
    folder.release()
    with RunFolder.launch(run_dir, {}, resume=True, launch_id=launch_id):
        assert RunFolder.open(run_dir, launch_id=launch_id, since_s=now_s + 1).path == run_dir


@pytest.mark.parametrize("launch_id", ["localhost-29500", ""])
def test_a_rank_joins_a_life_that_began_long_before_it_under_the_same_name_only_while_its_chief_lives(
    launch_id: str, tmp_path: Path
) -> None:
    folder, since_s = RunFolder.create(tmp_path / "run", {}, launch_id=launch_id), time.time() + 1000
    assert RunFolder.open(folder.path, launch_id=launch_id, since_s=since_s).path == folder.path
    folder.release()  # as if it had been killed
    with pytest.raises(UserError, match="is not a run folder"):
        RunFolder.open(folder.path, launch_id=launch_id, since_s=since_s)
    with RunFolder.launch(folder.path, None, resume=True, launch_id=launch_id):
        assert RunFolder.open(folder.path, launch_id=launch_id, since_s=since_s).path == folder.path


def test_the_chief_refuses_a_tracker_whose_client_is_missing_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    assert "pip install 'dba3c[wandb]'" in refused(tmp_path / "run", 0, "--track", "wandb")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_rank_that_can_listen_nowhere_ends_the_run_that_would_wait_for_it(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}, launch_id="17-0-0") as folder:
        assert refused(folder.path, 2, "--interface", "ib9").startswith("network interface ib9")
        assert (folder.stop_reason() or "").startswith("worker 1 on ")
        assert outcome(0, folder)[0] == "failed"
