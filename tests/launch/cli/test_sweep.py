"""dba3c sweep: which options vary, what is refused, what is drawn, and short real sweeps."""

import errno
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dba3c.errors import UserError
from dba3c.studies import sweep as studies_sweep
from dba3c.studies.report import plot_study
from dba3c.studies.results import read_results
from dba3c.studies.study import Search, StudyPoint, StudyRun, load
from dba3c.studies.sweep import JOURNAL_FILE, OptunaSearch, _drawn, grid, range_of, ranked, searched, told, words_of
from launch.cli import sweep
from launch.cli.main import main
from launch.cli.sweep import SweepArguments, extended, split
from tests.dba3c.metrics.made_up_run import CONFIG, made_up_run
from tests.integration.runs import refused

ROOT = Path(__file__).parents[3]
SHORT = ("--exchange", "local", "--workers", "1", "--lanes", "1", "--total-frames", "1500")
FOUND = "undecided: the best mean is of too few games"
"""What so short runs find."""


def test_options_with_several_values_vary_and_lists_do_not():
    words = (
        "CartPole-v1 --learning-rate=1e-3 3e-4 --seeds=2 --track tensorboard mlflow --frame-skip 2 4 --entropy_cost 0 1"
    )
    own, common, axes = split(words.split())
    assert own == ["--seeds", "2"]
    assert common == ["CartPole-v1", "--track", "tensorboard", "mlflow", "--frame-skip", "2", "4"]
    assert axes == [("learning-rate", "1e-3", "3e-4"), ("entropy-cost", "0", "1")]


@pytest.mark.parametrize(
    ("common", "name"),
    [
        ("CartPole-v1", "cartpole-lr"),
        ("--env CartPole-v1", "cartpole-lr"),
        ("breakout_cluster --workers 2", "breakout_cluster-lr"),
        ("--preset sac", "sac-lr"),
        ("--workers 2", "breakout-lr"),
    ],
)
def test_a_sweep_s_folder_is_named_after_what_it_trains(common, name):
    assert sweep.name_of(common.split(), [("lr", "1", "2")]) == name


def test_a_grid_has_every_value_with_every_other():
    study = grid(["CartPole-v1"], [("learning-rate", "1e-3", "linear:7e-4->7e-5@4e6"), ("servers", "1", "2")], 3)
    assert study.points[2].words == ("CartPole-v1", "--learning-rate", "linear:7e-4->7e-5@4e6", "--servers", "1")
    names = [point.name for point in study.points]
    assert names[:2] == ["learning-rate-1e-3,servers-1", "learning-rate-1e-3,servers-2"]
    assert len(study.points) == 4 and study.seeds == (0, 1, 2)
    assert all("/" not in name and ">" not in name for name in names)


def test_a_range_that_is_none_is_refused(tmp_path, capsys, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    assert "is no range" in refused(capsys, "sweep", "--workers", "4..2", "--search", "optuna")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_swept_is_one_line_and_nothing_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two = ("--learning-rate", "1e-3", "1e-4")
    assert "nothing varies" in refused(capsys, "sweep", "CartPole-v1", "--workers", "2")
    assert "--seed is of one run: a sweep has --seeds N" in refused(capsys, "sweep", *two, "--seed", "1")
    assert "only a search can draw from" in refused(capsys, "sweep", "--learning-rate", "1e-4..1e-2")
    assert "did you mean --learning-rate" in refused(capsys, "sweep", "--learning-rat", "1e-4", "1e-3")
    assert "unknown option --trails; did you mean --trials?" in refused(capsys, "sweep", *two, "--trails", "3")
    assert "--trials is of a search" in refused(capsys, "sweep", "CartPole-v1", *two, "--trials", "3")
    assert "seeds must be at least 1" in refused(capsys, "sweep", *two, "--seeds", "0")
    assert "--learning-rate is given twice" in refused(capsys, "sweep", *two, *two)
    twice = ("CartPole-v1", "--learning-rate", "1e-3", "0.001")
    assert "a value of --learning-rate is given twice" in refused(capsys, "sweep", *twice)
    assert "--lr is given twice, as --learning-rate too" in refused(capsys, "sweep", *two, "--lr", "1e-2")
    fixed_too = ("--num-workers", "4", "--workers", "1", "2")
    assert "--workers is given twice, as --num-workers too" in refused(capsys, "sweep", *fixed_too)
    assert "--search cannot be 'opuna'" in refused(capsys, "sweep", *two, "--search", "opuna")
    late = refused(capsys, "sweep", "--into", "here", "CartPole-v1", *two)
    assert "CartPole-v1 belongs to no option; ENV comes first: dba3c sweep ENV --into" in late
    assert not [*tmp_path.iterdir()]


def test_a_range_of_whole_numbers_stays_whole():
    assert range_of("workers", "2..8") == (2, 8) and isinstance(range_of("workers", "2..8")[0], int)
    assert range_of("total-frames", "1e4..1e6") == (10**4, 10**6)
    assert isinstance(range_of("total-frames", "1e4..1e6")[0], int)
    assert isinstance(range_of("stop-score", "1e1..1e2")[0], float)
    assert isinstance(range_of("entropy-cost", "0..1")[0], float)  # else only 0 and 1 would be drawn
    assert range_of("learning-rate", "1e-5..1e-2") == (1e-5, 1e-2)
    with pytest.raises(UserError, match="give two numbers"):
        range_of("learning-rate", "1e-5..high")


def test_what_a_search_draws_is_trained_with_its_digits_and_within_its_range():
    class Trial:
        def __init__(self, value):
            self.value = value

        def suggest_float(self, option, low, high, log):
            return self.value

    assert _drawn(Trial(0.99953), "discount", ["0.99..0.9999"]) == "0.99953"
    assert _drawn(Trial(0.00012345678901234), "learning-rate", ["1e-4..1e-2"]) == "0.000123456789"
    below_one = 0.9999999999949
    assert _drawn(Trial(below_one), "discount", ["0.99..0.999999999995"]) == repr(below_one)


def test_the_best_point_is_the_one_that_reached_the_stop_score_soonest_then_the_best_score(tmp_path, monkeypatch):
    study = grid(["CartPole-v1"], [("learning-rate", "1", "2", "3", "4")], 1)
    study.save(tmp_path)
    of_point = {"1": lambda second: 5.0, "2": float, "3": lambda second: 7.0, "4": lambda second: 6.0}
    for run in study.runs(tmp_path):
        config = {**CONFIG, "run": {"stop_score": 30.0, "stop_games": 50, "seed": 0}}
        point = run.point.words[-1]
        seconds = 5 if point == "4" else 60
        made_up_run(run.folder, monkeypatch, seconds=seconds, workers=1, config=config, score=of_point[point])
    results = read_results(tmp_path)
    assert [result.point.words[-1] for result in ranked(results)] == ["2", "3", "4", "1"]
    lines = told(results)
    assert "6 (too few games)" in lines[3] and lines[-2] == "best: learning-rate 2"
    assert lines[1].startswith("learning-rate 2 ") and lines[-1].strip() == "dba3c train CartPole-v1 --learning-rate 2"
    written = {path.name for path in plot_study(tmp_path)}
    assert written == {"points.png", "points.svg", "report.html"}
    page = (tmp_path / "figures" / "report.html").read_text()
    assert "<td>6 (too few games)</td>" in page and "<td>7</td>" in page
    assert page.index("<td>learning-rate-2") < page.index("<td>learning-rate-3") < page.index("<td>learning-rate-1")


def test_a_best_mean_of_too_few_games_is_undecided_beside_the_best_point_of_enough(tmp_path, monkeypatch):
    study = grid(["CartPole-v1"], [("learning-rate", "1", "2", "3")], 1)
    study.save(tmp_path)
    for run, (seconds, score) in zip(study.runs(tmp_path), [(60, 5.0), (60, 7.0), (5, 70.0)], strict=True):
        config = {**CONFIG, "run": {"stop_score": 475.0, "stop_games": 50, "seed": 0}}
        made_up_run(run.folder, monkeypatch, seconds=seconds, workers=1, config=config, score=lambda _, s=score: s)
    results = read_results(tmp_path)
    assert [result.point.words[-1] for result in ranked(results)] == ["3", "2", "1"]
    assert told(results)[-3:] == [
        "undecided: the best mean is of too few games; raise --total-frames (with another --into)",
        "best of enough games: learning-rate 2",
        "    dba3c train CartPole-v1 --learning-rate 2",
    ]
    results.points = [result for result in results.points if result.point.words[-1] == "3"]
    assert told(results)[-1].startswith("undecided: ")


def test_an_option_s_value_with_dollars_is_drawn_as_it_stands(tmp_path, monkeypatch):
    study = grid(["CartPole-v1"], [("network", "$_$", "small")], 1)
    study.save(tmp_path)
    for run in study.runs(tmp_path):
        made_up_run(run.folder, monkeypatch, seconds=60, workers=1)
    plot_study(tmp_path)
    drawn = (tmp_path / "figures" / "points.svg").read_text(encoding="utf-8").replace("\\$", "$")
    assert "<!-- network $_$ -->" in drawn


def test_a_sweep_on_slurm_has_a_task_for_each_run_and_a_search_for_each_trial(tmp_path, capsys):
    into = str(tmp_path / "grid")
    assert main(["sweep", "CartPole-v1", "--learning-rate", "1e-3", "1e-4", "--slurm", "--into", into]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --array=0-5\n" in text
    assert f'exec dba3c sweep --into {into} --task "${{runs[SLURM_ARRAY_TASK_ID]}}"' in text
    names = [run.name for run in load(into).runs(into)]
    assert f"runs=({' '.join(names)})" in text and len(names) == 6
    pytest.importorskip("optuna")
    into = str(tmp_path / "search")
    words = ["sweep", "CartPole-v1", "--learning-rate", "1e-4..1e-2", "--search", "optuna", "--trials", "40"]
    assert main([*words, "--slurm", "--into", into]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --array=0-39\n" in text and '--task "$SLURM_ARRAY_TASK_ID"' in text
    assert main(["sweep", "--into", into, "--task", "40"]) == 2


def test_a_search_without_optuna_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    words = ("sweep", "CartPole-v1", "--learning-rate", "1e-4..1e-2", "--search", "optuna")
    assert "pip install 'dba3c[sweep]'" in refused(capsys, *words)


def test_a_short_grid_is_trained_told_and_drawn_and_again_nothing_is_trained(tmp_path, capfd):
    words = ["sweep", "CartPole-v1", "--learning-rate", "1e-3", "1e-2", "--seeds", "1", *SHORT, "--into", str(tmp_path)]
    assert main(words) == 0
    out = capfd.readouterr().out
    assert FOUND in out
    assert (tmp_path / "figures" / "points.png").exists()
    for again in (words, ["sweep", "--into", str(tmp_path)]):
        assert main(again) == 0
        out = capfd.readouterr().out
        assert out.count("finished, left alone") == 2 and FOUND in out


def test_a_sweep_takes_more_values_in_any_place_and_more_seeds(tmp_path):
    into = ["--into", str(tmp_path), "--list"]
    two = grid(["CartPole-v1"], [("learning-rate", "1e-3", "3e-4"), ("entropy-cost", "0.01", "0.001")], 1)
    two.save(tmp_path)
    axes = [("learning-rate", "1e-3", "3e-4"), ("entropy-cost", "0.1", "0.01", "0.001")]
    grid(["CartPole-v1"], axes, 2).save(tmp_path)
    found = load(tmp_path)
    assert found.points[:4] == two.points and len(found.points) == 6 and found.seeds == (0, 1)
    assert [point.x for point in found.points] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="point learning-rate-1e-3,entropy-cost-0.01 with other options"):
        grid(["Acrobot-v1"], [("learning-rate", "1e-3"), ("entropy-cost", "0.01")], 1).save(tmp_path)
    before = (tmp_path / "study.json").read_bytes()
    assert main(["sweep", *into, "--seeds", "5"]) == 0
    assert (tmp_path / "study.json").read_bytes() == before
    said = SweepArguments(into=tmp_path, seeds=5, trials=9)
    assert extended(found, tmp_path, ["--seeds", "5"], said).seeds == (0, 1, 2, 3, 4) == load(tmp_path).seeds
    with pytest.raises(UserError, match="holds a grid, which draws no trials"):
        extended(found, tmp_path, ["--trials", "9"], said)
    searched(["CartPole-v1"], [("learning-rate", "1e-4..1e-2")], 1, trials=5).save(tmp_path / "search")
    more = extended(load(tmp_path / "search"), tmp_path / "search", ["--trials", "9"], said)
    assert more.search is not None and more.search.trials == 9
    searched(["CartPole-v1"], [("learning-rate", "1e-4..1e-2")], 1, trials=5).save(tmp_path / "search")
    assert load(tmp_path / "search").search == more.search


@pytest.mark.parametrize("late", [False, True], ids=["before", "meanwhile"])
def test_what_another_process_of_the_search_has_drawn_is_not_drawn_again(tmp_path, monkeypatch, late):
    optuna = pytest.importorskip("optuna")
    search = Search(trials=20, words=("CartPole-v1",), axes=(("learning-rate", "1e-4..1e-2"),))
    mine, theirs = (OptunaSearch(search, tmp_path) for _ in range(2))
    for number in range(11):  # beyond Optuna's random ones, which would be the same
        mine.point(number)
        mine._end(number, float(number))
    drawn = theirs.point(11)
    if late:
        real, asked = studies_sweep.saved_trial, []  # the first look comes before the other's draw
        monkeypatch.setattr(studies_sweep, "saved_trial", lambda *of: real(*of) if asked else asked.append(of))
    assert mine.point(11) == drawn
    trials = theirs._trials(seed=0).get_trials()
    assert [trial.state for trial in trials[11:]] == [
        optuna.trial.TrialState.RUNNING,
        *[optuna.trial.TrialState.FAIL] * late,
    ]


def test_a_point_s_own_words_are_told_also_where_an_option_has_no_value():
    words = ("breakout", "--no-episodic-life", "--learning-rate", "1e-3")
    assert words_of(StudyPoint(name="p", words=words), ("breakout",)) == "no-episodic-life, learning-rate 1e-3"


def searching(tmp_path, seeds, trials, task=None):
    """(exit code, states of Optuna's trials) of a search that is begun, or goes on."""
    optuna = pytest.importorskip("optuna")
    searched(["CartPole-v1"], [("learning-rate", "1e-4..1e-2")], seeds, trials=trials).save(tmp_path)
    declared = load(tmp_path)
    assert declared.search is not None
    code = sweep.search(declared, declared.search, tmp_path, task)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / JOURNAL_FILE)))
    return code, [trial.state.name for trial in optuna.load_study(study_name="sweep", storage=storage).trials]


def test_a_trial_that_failed_or_is_stopped_is_not_judged_and_the_same_command_goes_on_with_it(
    tmp_path, monkeypatch, capsys
):
    states = {"trial-001": "stopped"}
    monkeypatch.setattr(StudyRun, "state", lambda run: states.get(run.point.name, "finished"))
    monkeypatch.setattr(sweep, "run_all", lambda runs: int(runs[0].state() != "finished"))
    monkeypatch.setattr(studies_sweep, "best_mean_score", lambda curve: 7.0)
    monkeypatch.setattr(studies_sweep, "load_curve", lambda folder: SimpleNamespace(diverged=False))
    assert searching(tmp_path, 1, 3) == (1, ["COMPLETE", "RUNNING", "COMPLETE"])
    said = capsys.readouterr().out
    assert "trial 2 of 3: a run failed, was stopped or is live elsewhere; the same command goes on with it" in said
    assert "trial 3 of 3: best mean score 7" in said
    states.clear()
    assert searching(tmp_path, 1, 3) == (0, ["COMPLETE"] * 3)


def test_a_trial_that_diverged_has_failed_and_the_search_goes_on_without_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(StudyRun, "state", lambda run: "diverged" if run.point.name == "trial-001" else "finished")
    monkeypatch.setattr(studies_sweep, "best_mean_score", lambda curve: 7.0)
    monkeypatch.setattr(
        studies_sweep, "load_curve", lambda folder: SimpleNamespace(diverged="trial-001" in str(folder))
    )
    for _ in range(2):  # nor is it trained again
        assert searching(tmp_path, 1, 3) == (0, ["COMPLETE", "FAIL", "COMPLETE"])
        said = capsys.readouterr().out
        assert "trial-001/seed-0: diverged, left alone" in said and "trial 2 of 3: diverged" in said


def test_a_score_that_cannot_be_read_whole_is_no_score_and_the_same_command_reads_it_again(
    tmp_path, monkeypatch, capsys
):
    def runs_to_its_end(runs):
        for run in runs:
            if run.state() != "finished":
                made_up_run(run.folder, monkeypatch, seconds=20)
        return 0

    def one_worker_is_away(path, *given, **options):
        if path.name == "worker-1.jsonl" and "trial-001" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open_(path, *given, **options)

    monkeypatch.setattr(sweep, "run_all", runs_to_its_end)
    open_ = Path.open
    with monkeypatch.context() as away:
        away.setattr(Path, "open", one_worker_is_away)
        assert searching(tmp_path, 1, 3) == (1, ["COMPLETE", "RUNNING", "COMPLETE"])
    said = capsys.readouterr().out
    assert "worker-1.jsonl cannot be read (Input/output error); the same command goes on with it" in said
    assert searching(tmp_path, 1, 3) == (0, ["COMPLETE"] * 3)
    assert "trial 2 of 3: best mean score 9.5" in capsys.readouterr().out


def test_a_finished_run_that_recorded_nothing_has_no_score_and_is_not_asked_again(tmp_path, monkeypatch, capsys):
    def records_nothing(runs):
        for run in runs:
            made_up_run(run.folder, monkeypatch, seconds=20)
            for file in (run.folder / "metrics").iterdir():
                file.unlink()
        return 0

    monkeypatch.setattr(sweep, "run_all", records_nothing)
    assert searching(tmp_path, 1, 1) == (0, ["FAIL"])
    assert "trial 1 of 1: no score" in capsys.readouterr().out


def test_a_task_of_a_search_starts_all_seeds_of_its_trial_also_after_one_that_failed(tmp_path, monkeypatch):
    tried, codes = [], {1: 3}
    monkeypatch.setattr(sweep, "run_task", lambda run: tried.append(run.seed) or codes.get(run.seed, 0))
    monkeypatch.setattr(StudyRun, "state", lambda run: "failed" if codes.get(run.seed) else "finished")
    assert searching(tmp_path, 3, 1, task=0) == (1, ["RUNNING"]) and tried == [0, 1, 2]
    tried.clear()
    codes[1] = 128 + signal.SIGTERM
    assert searching(tmp_path, 3, 1, task=0) == (128 + signal.SIGTERM, ["RUNNING"]) and tried == [0, 1]


def test_a_task_of_a_search_that_slurm_queues_again_starts_no_further_seed(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(sweep, "run_task", lambda run: tried.append(run.seed) or 0)
    monkeypatch.setattr(StudyRun, "state", lambda run: "stopped")
    assert searching(tmp_path, 3, 1, task=0) == (0, ["RUNNING"]) and tried == [0]


RANKS = """#!{python}
import os, signal, sys, time
from dba3c.runs.folder import RunFolder
with RunFolder.create(sys.argv[-1], {{"run": {{}}}}, launch_id="7-0") as folder:
    os.kill(os.getppid(), signal.{signal})
    while not (folder.path / "stop.json").exists():
        time.sleep(0.02)
    folder.end_life("{how}", "score reached" if "{how}" == "finished" else folder.stop_reason())
"""
"""In srun's place: the job gets a signal, which its run either ends by or not."""


@pytest.mark.parametrize(
    ("signum", "how", "code", "requeued"),
    [
        (signal.SIGTERM, "stopped", 128 + signal.SIGTERM, False),
        (signal.SIGTERM, "finished", 128 + signal.SIGTERM, False),
        (signal.SIGUSR1, "stopped", 0, True),
        (signal.SIGUSR1, "finished", 0, True),
    ],
)
def test_after_a_signal_at_its_slurm_job_a_task_of_a_search_starts_no_further_seed(
    tmp_path, monkeypatch, signum, how, code, requeued
):
    (programs := tmp_path / "bin").mkdir()
    ranks = RANKS.format(python=sys.executable, signal=signum.name, how=how)
    for name, text in (("srun", ranks), ("scontrol", f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n')):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert searching(tmp_path / "search", 3, 1, task=0) == (code, ["RUNNING"])
    assert [path.name for path in (tmp_path / "search" / "trial-000").glob("seed-*")] == ["seed-0"]
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    preempted = "show job --oneliner 7\n" if (signum, how) == (signal.SIGTERM, "stopped") else ""  # it was not
    assert asked == ("requeue 7\n" if requeued else preempted)


@pytest.mark.slow
def test_a_search_draws_its_trials_is_told_their_scores_and_goes_on_where_it_was(tmp_path, capfd):
    optuna = pytest.importorskip("optuna")
    words = ["sweep", "CartPole-v1", "--learning-rate", "1e-4..1e-2", "--entropy-cost", "0.0", "0.01", "--seeds", "1"]
    words += [*SHORT, "--search", "optuna", "--into", str(tmp_path), "--trials"]
    assert main([*words, "1"]) == 0
    assert main([*words, "2"]) == 0
    out = capfd.readouterr().out
    assert "trial 2 of 2: learning-rate 0.0" in out and "trial-000/seed-0: finished" in out
    assert "best: trial-00" in out or FOUND in out
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.journal"))
    trials = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend)).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE"]
    points = load(tmp_path).points
    for point, trial in zip(points, trials, strict=True):
        config = json.loads((tmp_path / point.name / "seed-0" / "config.json").read_text())
        assert config["optimizer"]["learning_rate"] == f"constant:{trial.params['learning-rate']:.10g}"
        assert config["algorithm"]["entropy_cost"] == f"constant:{float(trial.params['entropy-cost']):g}"
    assert main(["sweep", "--into", str(tmp_path), "--list"]) == 0
    assert "2 of 2 trials were begun" in capfd.readouterr().out
    assert main(["sweep", "CartPole-v1", "--learning-rate", "1e-3", "1e-2", "--into", str(tmp_path)]) == 2
    assert "another search, or none" in capfd.readouterr().err
