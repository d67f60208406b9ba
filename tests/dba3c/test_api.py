"""`import dba3c`: quick, and all that its page names; runs are read, played with and filmed by their folders."""

import errno
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from run_queue import keep_policy

import dba3c
from dba3c import games
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from dba3c.evaluation import evaluator
from dba3c.runs.folder import RunFolder
from tests.refusals import refusing

RESULTS = Path(__file__).parents[2] / "results"
CARTPOLE = TrainConfig(environment=EnvironmentConfig(env_id="CartPole-v1"), network=NetworkConfig(network="mlp"))


def test_importing_it_loads_nothing_and_every_name_is_there_when_asked_for():
    asked = "import sys, dba3c; before = set(sys.modules); [getattr(dba3c, name) for name in dba3c.__all__]"
    told = (
        "assert not {'torch', 'numpy', 'launch', 'rich'} & before, before; assert set(dba3c.__all__) <= set(dir(dba3c))"
    )
    subprocess.run([sys.executable, "-c", f"{asked}; {told}"], check=True, timeout=60)


def test_where_what_starts_processes_is_not_installed_that_is_said(monkeypatch):
    monkeypatch.delitem(sys.modules, "launch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="dba3c.train needs the package launch, which is not installed"):
        _ = dba3c.train


def test_every_public_name_is_documented():
    for name in set(dba3c.__all__) - {"__version__"}:
        assert getattr(dba3c, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = dba3c.trian


def test_a_curve_is_a_series_over_frames_and_arrays_without_pandas(monkeypatch):
    pytest.importorskip("pandas")
    run = dba3c.read(RESULTS / "breakout_2cores")
    series = run.curve("score_mean_50")
    assert series.index.name == "frames" and np.all(np.diff(series.index) >= 0)
    assert series.iloc[-1] > 250 and not series.isna().any()
    monkeypatch.setitem(sys.modules, "pandas", None)
    frames, scores = run.curve("score/mean")
    assert np.array_equal(frames, series.index) and np.array_equal(scores, series)
    hours, _ = run.curve("score_mean", against="hours")
    assert hours[-1] < 24
    with pytest.raises(UserError, match="unknown metric 'score_meen'; did you mean score/mean"):
        run.curve("score_meen")


def test_a_run_is_taken_wherever_its_folder_is(make_run, write_checkpoint):
    folder = make_run(CARTPOLE)
    write_checkpoint(folder, CARTPOLE, step=10)
    run = dba3c.read(folder.path)
    assert (run.folder, run.config, run.status, run.reason) == (folder.path, CARTPOLE, "live", "")
    evaluation = dba3c.evaluate(run, games=3)
    assert len(evaluation.scores) == 3
    assert evaluation.summary.mean == np.mean(evaluation.scores) and evaluation.path(folder).exists()
    assert run.agent().step == dba3c.load(run).step == 10
    assert dba3c.evaluate(folder.checkpoints / "step-10", games=3).scores == evaluation.scores
    folder.end_life("stopped", "SIGINT")
    assert (dba3c.read(run).status, run.reason) == ("stopped", "SIGINT")
    assert repr(run) == f"Run('{folder.path}', stopped)"


def test_numpy_s_numbers_are_numbers_and_what_is_none_is_said_before_a_game_is_played(make_run, write_checkpoint):
    pytest.importorskip("pygame")
    run = make_run(CARTPOLE)
    write_checkpoint(run, CARTPOLE, step=10)
    one, ten = np.int64(1), np.int64(10)
    assert len(dba3c.evaluate(run.path, one, step=ten, seed_index=one, env_threads=one).scores) == 1
    _, game = dba3c.record(run.path, step=ten, seed_index=one)
    assert game.seed_index == 1
    assert dba3c.load(run.path, step=ten, seed=one).act(np.zeros(4, np.float32)) in (0, 1)
    for use, name in ((dba3c.evaluate, "games"), (dba3c.evaluate, "seed_index"), (dba3c.evaluate, "env_threads"),
                      (dba3c.evaluate, "step"), (dba3c.record, "seed_index"), (dba3c.record, "step"),
                      (dba3c.load, "seed"), (dba3c.load, "step")):  # fmt: skip
        with pytest.raises(UserError, match=f"{name} must be a whole number, not '3'"):
            use(run.path, **{name: "3"})


def test_a_bar_is_shown_where_there_is_one_to_see(monkeypatch):
    monkeypatch.setattr(games, "Console", functools.partial(Console, force_jupyter=True))
    for widgets in (None, object()):
        monkeypatch.setattr(games, "find_spec", lambda name, widgets=widgets: widgets)
        assert games._progress("game").disable == (widgets is None)


def test_games_are_not_played_whose_scores_could_not_be_kept(make_run, write_checkpoint, monkeypatch):
    folder = make_run(CARTPOLE)
    write_checkpoint(folder, CARTPOLE, step=10)
    (folder.path / "evaluations").write_text("in the way")
    monkeypatch.setattr("dba3c.evaluation.evaluator.evaluate", lambda *_, **__: pytest.fail("games were played"))
    with pytest.raises(UserError, match=r"cannot write .*evaluations"):
        dba3c.evaluate(folder.path, games=3)


def test_what_was_played_is_said_where_it_cannot_be_kept(make_run, write_checkpoint, monkeypatch):
    run = make_run(CARTPOLE)
    write_checkpoint(run, CARTPOLE, step=1)

    full = refusing(errno.ENOSPC)

    def played(*_, **__):
        monkeypatch.setattr(os, "fsync", full)
        return play(*_, **__)

    play = evaluator.evaluate
    monkeypatch.setattr(evaluator, "evaluate", played)
    with pytest.raises(UserError, match=r"No space left on device; what was played: mean"):
        games.evaluate(run.path, games=2)


def test_a_committed_run_is_played_filmed_and_read_and_nothing_is_written_into_it(
    make_run, write_checkpoint, tmp_path, monkeypatch
):
    pytest.importorskip("pygame")
    run = make_run(CARTPOLE)
    write_checkpoint(run, CARTPOLE, step=10)
    results = tmp_path / "results" / "cartpole" / "nstep" / "seed-0"
    kept = keep_policy(run, results, lambda line: None)
    for name in ("config.json", "meta.json"):
        (results / name).write_text((run.path / name).read_text())
    (results / "curve.csv").write_text("progress/frames,score/mean\n1,2\n")
    assert kept == results / "checkpoints" / "step-10"
    assert (
        sum(file.stat().st_size for file in kept.iterdir()) < 4 * 9_155 + 4_096
    )  # parameters, and nothing beside them
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*")}
    for path in results.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.chdir(tmp_path)
    evaluation = dba3c.evaluate(results, games=2)
    assert evaluation.scores == dba3c.evaluate(run.path, games=2).scores
    into = tmp_path / "runs" / "cartpole-nstep-seed-0"
    assert [path.name for path in (into / "evaluations").iterdir()] == ["step-10-sampled.json"]
    assert dba3c.load(kept).step == dba3c.load(results).step == 10
    film, _ = dba3c.record(results)
    assert film.resolve() == into / "videos" / "step-10.mp4" and film.exists()
    for use, line in ((dba3c.resume, "to be looked at and played with"), (dba3c.watch, "dba3c plot draws it")):
        with pytest.raises(UserError, match=line):
            use(results)
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*")} == before


def test_a_film_replaces_no_other_one_and_leaves_no_gif_of_other_parameters_beside_it(make_run, write_checkpoint):
    pytest.importorskip("pygame")
    run = make_run(CARTPOLE)
    write_checkpoint(run, CARTPOLE, step=10)
    of_the_recorder, gif = run.videos / "step-10.mp4", run.videos / "step-10.gif"
    assert dba3c.record(run.path, actions="sampled")[0] == of_the_recorder
    gif.touch()
    assert dba3c.record(run.path, actions="greedy")[0] == run.videos / "step-10-greedy.mp4"
    assert dba3c.record(run.path, actions="greedy", seed_index=2)[0] == run.videos / "step-10-greedy-2.mp4"
    assert dba3c.record(run.path)[0] == of_the_recorder and gif.exists()
    parameters = games.open_parameters(run.path, None, print)[1].parameters
    shutil.rmtree(run.checkpoints)  # a damaged one: the run went back, and made its step anew
    run.checkpoints.mkdir()
    write_checkpoint(run, CARTPOLE, step=10, parameters=torch.zeros_like(parameters))
    assert dba3c.record(run.path)[0] == of_the_recorder and not gif.exists()


def test_a_film_goes_where_home_is(make_run, write_checkpoint, monkeypatch, tmp_path):
    pytest.importorskip("pygame")
    run = make_run(CARTPOLE)
    write_checkpoint(run, CARTPOLE, step=10)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    film, _ = dba3c.record(run.path, "~/film.mp4", gif="~/film.gif")
    assert film == tmp_path / "home" / "film.mp4" and film.with_suffix(".gif").exists()


def test_what_is_made_of_runs_that_are_only_read_lies_in_a_folder_for_each(make_run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    mine = make_run(CARTPOLE)
    assert games.folder_for_outputs(mine) is mine
    for seeds in ("kept/Pong", "kept/Breakout", "results/Pong"):
        (tmp_path / seeds / "seed-0").mkdir(parents=True)
        (tmp_path / seeds / "seed-0" / "curve.csv").touch()
    kept = [RunFolder(tmp_path / seeds / "seed-0") for seeds in ("kept/Pong", "kept/Breakout", "results/Pong")]
    names = ["kept-Pong-seed-0", "kept-Breakout-seed-0", "Pong-seed-0"]
    assert [games.folder_for_outputs(run).path for run in kept] == [Path("runs", name) for name in names]
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert games.folder_for_outputs(mine).path == Path("runs/run")
    monkeypatch.chdir(tmp_path / "kept")
    elsewhere = "-".join(mine.path.parts[1:])
    assert games.folder_for_outputs(mine).path == Path("runs") / elsewhere


def test_what_is_no_run_is_refused_in_one_line(tmp_path, make_run):
    for use in (dba3c.read, dba3c.load, dba3c.evaluate, dba3c.record, dba3c.resume, dba3c.stop, dba3c.watch):
        with pytest.raises(UserError, match="is not a run folder"):
            use(tmp_path)
    with pytest.raises(UserError, match="has no checkpoint yet"):
        dba3c.load(make_run(CARTPOLE).path)
