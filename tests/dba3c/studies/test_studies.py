"""Declaring, reading and drawing studies; whatever is broken costs a line and nothing else."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from dba3c.errors import UserError
from dba3c.metrics.charts import Point
from dba3c.metrics.facts import reached_line
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from dba3c.studies.curve import Curve, _rows
from dba3c.studies.page import facts, made_by
from dba3c.studies.report import FIGURES, plot_study
from dba3c.studies.results import (
    PointResult,
    best_mean_score,
    commit_into,
    data_points_per_s,
    has_best_mean,
    mean_of,
    read_results,
)
from dba3c.studies.study import STUDIES, Shape, Study, StudyPoint, build, load, save_trial
from dba3c.studies.sweep import searched
from launch.cli.main import main
from launch.cli.options import parse_train
from tests.dba3c.metrics.made_up_run import made_up_run
from tests.dba3c.studies.conftest import config_of


@pytest.fixture
def study(make_up_study):
    """A scaling study of two points × two seeds, all runs there."""
    return make_up_study(workers=(1, 2), seeds=(0, 1), seconds=60)


@pytest.mark.parametrize("name", STUDIES)
def test_every_point_of_every_built_in_study_is_a_run_that_could_start(name):
    declared = build(name, Shape() if name == "scaling" else Shape(workers=4))
    assert declared.kind == name and name in FIGURES
    for point in declared.points:
        assert parse_train(list(point.words)).config(4) is not None
        assert point.cluster_words and "--workers" not in point.cluster_words and point.nodes >= 1


@pytest.mark.parametrize(
    ("name", "shape", "option"),
    [
        ("scaling", Shape(servers=8), "servers"),
        ("scaling", Shape(workers=3, values=(1, 2)), "workers"),
        ("learning_curves", Shape(values=(2, 4)), "values"),
        ("learning_curves", Shape(values=(3,)), "values"),
        ("games", Shape(env="CartPole-v1"), "env"),
        ("architectures", Shape(values=(2,)), "values"),
        ("parameter_servers", Shape(servers=3), "servers"),
    ],
)
def test_an_option_that_a_study_does_not_look_at_is_refused(name, shape, option):
    with pytest.raises(UserError, match=f"^--{option}: the study {name} does not look at it$"):
        build(name, shape)


@pytest.mark.parametrize("name", ["scaling", "parameter_servers", "stragglers"])
@pytest.mark.parametrize("values", [(3,), (1, 2, 4, 8, 16, 32, 64)])
def test_values_are_what_these_studies_vary(name, values):
    assert len(build(name, Shape(values=values, env="CartPole-v1")).points) == len(values)


@pytest.mark.parametrize("workers", range(1, 13))
def test_architectures_can_be_compared_with_any_number_of_workers(workers):
    assert build("architectures", Shape(workers=workers)).points


def test_an_unknown_study_names_those_that_are_close():
    with pytest.raises(UserError, match="no study is called 'scalng'; did you mean scaling"):
        build("scalng", Shape())


def test_a_study_comes_back_as_it_was_declared_and_grows_but_does_not_change(tmp_path):
    first = build("parameter_servers", Shape(values=(1, 4), seeds=2))
    first.save(tmp_path)
    assert load(tmp_path) == first
    build("parameter_servers", Shape(values=(2,), seeds=3)).save(tmp_path)
    assert [point.x for point in load(tmp_path).points] == [1, 2, 4] and load(tmp_path).seeds == (0, 1, 2)
    with pytest.raises(UserError, match="already holds point servers-1 with other options"):
        build("parameter_servers", Shape(values=(1,), workers=3)).save(tmp_path)
    with pytest.raises(UserError, match="already holds study parameter_servers"):
        build("stragglers", Shape()).save(tmp_path)


def test_a_search_that_is_declared_again_with_fewer_seeds_keeps_those_that_it_has(tmp_path):
    for seeds in (3, 1):
        searched(("breakout",), [("learning-rate", "1e-4..1e-2")], seeds, trials=5).save(tmp_path)
    assert load(tmp_path).seeds == (0, 1, 2)


def test_a_broken_declaration_is_one_line(tmp_path):
    with pytest.raises(UserError, match="is no study"):
        load(tmp_path)
    for text in ("{", "[]", '{"points": [{"nam": 1}], "seeds": [0], "kind": "scaling"}'):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(UserError, match="does not declare a study"):
            load(tmp_path)


def test_the_runs_of_a_point_become_an_estimate_with_an_interval(study):
    results = read_results(study)
    assert [result.point.name for result in results.points] == ["workers-1", "workers-2"] and not results.problems
    speed = results.points[0].estimate(data_points_per_s)
    assert speed.centre == pytest.approx(300 * 10, rel=0.02) and speed.low <= speed.centre <= speed.high
    assert results.points[0].estimate(best_mean_score).centre == pytest.approx(34.5, abs=0.1)
    # the mean of the last 50 of scores 0, 1, 2, … reaches 30 with the game of second 55, looked at every 5 s
    assert results.points[0].time_to_stop_score().median * 3600 == pytest.approx(57.5, abs=3)


def test_figures_and_a_report_that_needs_no_server_are_written(study):
    written = {path.name for path in plot_study(study)}
    assert {"speed.png", "speed.svg", "efficiency.svg", "time_to_score.png", "scores.png", "report.html"} == (
        written & {"speed.png", "speed.svg", "efficiency.svg", "time_to_score.png", "scores.png", "report.html"}
    )
    page = (study / "figures" / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 4 and "4 of 4 runs" in page
    assert "http://" not in page and "https://" not in page and "Left out" not in page


def test_a_page_says_the_cores_of_all_hosts_of_a_run_not_of_its_first():
    here = facts("dba3c train")
    assert ", 768 cores of " in made_by(here | {"cores": 768.0})
    assert f", {here['host']['usable_cores']} cores of " in made_by(here)


def test_seeds_that_never_reached_the_stop_score_are_counted_in_table_and_figures(tmp_path, monkeypatch):
    made = Study(
        kind="scaling", points=(StudyPoint(name="workers-1", words=("breakout",), x=1),), seeds=(0, 1, 2, 3, 4)
    )
    made.save(tmp_path)
    for run in made.runs(tmp_path):  # one seed's scores rise by 1 a second, the others' stay at 0
        score = float if run.seed == 2 else lambda second: 0.0
        made_up_run(run.folder, monkeypatch, seconds=60, workers=1, config=config_of(run.seed), score=score)
    plot_study(tmp_path)
    page = (tmp_path / "figures" / "report.html").read_text(encoding="utf-8")
    assert "&gt; 0.01667, 1 of 5 reached" in page  # hours: the minute that the others were seen
    for figure in ("time_to_score", "scores"):
        assert "1 of 5 reached" in (tmp_path / "figures" / f"{figure}.svg").read_text(encoding="utf-8"), figure


def test_seeds_that_died_before_their_first_game_or_update_count_among_those_that_did_not_reach_the_score(
    tmp_path, monkeypatch
):
    made = Study(
        kind="scaling", points=(StudyPoint(name="workers-1", words=("breakout",), x=1),), seeds=(0, 1, 2, 3, 4)
    )
    made.save(tmp_path)
    *seeds, without_game, _ = made.runs(tmp_path)  # the last has not even been started
    for run in seeds[:2]:
        made_up_run(run.folder, monkeypatch, seconds=60, workers=1, config=config_of(run.seed))
    with RunFolder.create(seeds[2].folder, config_of(2)) as died:
        MetricsWriter(died, "worker", 0).record_event("joined", "worker 0 joined")
    played = made_up_run(without_game.folder, monkeypatch, seconds=5, workers=1, config=config_of(3))
    lines = played.metrics_file("worker", 0).read_text().splitlines(keepends=True)
    played.metrics_file("worker", 0).write_text("".join(line for line in lines if '"score"' not in line))
    (result,) = read_results(tmp_path).points
    assert [curve.recorded("score/mean").size > 0 for curve in result.curves] == [True, True, False]
    time = result.time_to_stop_score()
    assert time.told == "2 of 5 reached" and math.isinf(time.median) and time.seen[3:] == (0.0, 0.0)
    plot_study(tmp_path)
    assert "2 of 5 reached 30" in (tmp_path / "figures" / "scores.svg").read_text(encoding="utf-8")
    assert "2 of 5 reached" in (tmp_path / "figures" / "time_to_score.svg").read_text(encoding="utf-8")


def test_a_run_that_diverged_counts_as_seen_without_the_score_as_long_as_any():
    def result(reason: str, hours: list[float]) -> PointResult:
        runs = {"run": {"stop_score": 30.0, "stop_games": 50}}
        curves = [
            Curve(
                "run",
                {"progress/hours": np.array([at]), "score/best_mean": np.array([30.0 if at > 0.5 else 9.0])},
                runs,
                {"lives": [{"ended": {"reason": reason if at < 0.5 else "enough"}}]},
            )
            for at in hours
        ]
        return PointResult(StudyPoint(name="p", words=("breakout",), x=1), tuple(curves), len(curves))

    times = [1.0, 2.0, 3.0, 0.1, 0.1]
    assert result("worker 0: … : it has diverged", times).time_to_stop_score().median == 3  # it never would have
    assert result("SIGINT", times).time_to_stop_score().median == 2  # it might have, like the others


def test_a_score_that_only_an_evaluation_reached_was_reached_if_all_its_games_ended():
    columns = {
        "progress/hours": np.array([1.0, 2.0, 3.0]),
        "evaluation/mean": np.array([np.nan, 31.0, 40.0]),
        "evaluation/games": np.array([np.nan, 50.0, 50.0]),
    }
    limits = {"stop_score": 30.0, "stop_games": 50}
    assert alone(columns, run=limits) == (2.0, True)
    assert alone({**columns, "evaluation/games": np.array([np.nan, 9.0, 49.0])}, run=limits) == (3.0, False)
    assert alone({**columns, "evaluation/unfinished": np.array([np.nan, 1.0, 0.0])}, run=limits) == (3.0, True)
    assert alone(columns) is None


def test_a_goal_that_ended_the_run_was_reached_when_training_ended_also_where_the_curve_stays_just_below_it():
    """The rule takes games as it hears of them, the curve by the time at which they ended."""
    columns = {
        "progress/hours": np.array([1.0, 2.0, 3.0, 4.0]),
        "progress/data_points": np.array([40.0, 20.0, 30.0, 30.0]),  # the first ones were lost with a life
        "score/best_mean": np.array([np.nan, 298.0, 299.9, 299.9]),
    }
    ended = {"outcome": "finished", "reason": reached_line(300.2, 50, 300.0)}
    curve = Curve("run", columns, {}, {"lives": [{}, {"ended": ended}]})
    assert (curve.reached(300.0), curve.reached(299.0), curve.reached(301.0)) == (2, 2, None)
    for other in ({**ended, "outcome": "failed"}, {**ended, "reason": "10,000 frames"}):
        assert Curve("run", columns, {}, {"lives": [{"ended": other}]}).reached(300.0) is None
    assert Curve("run", columns, {}, {"lives": [{"ended": ended}, {}]}).reached(300.0) is None


def alone(columns, **config):
    """(hours to the stop score or without it, whether it was reached) of a point with one run."""
    point = PointResult(StudyPoint(name="p", words=("breakout",), x=1), (Curve("run", columns, config, {}),), 1)
    found = point.time_to_stop_score()
    return found and (*found.seen, *found.reached)


def test_what_evaluators_play_after_the_training_counts_neither_for_its_speed_nor_for_the_time_without_the_score():
    hours = np.array([0.0, 0.05, 0.1, 0.2])
    columns = {"progress/hours": hours, "progress/data_points": np.array([0.0, 18_000, 36_000, 36_000])}
    assert data_points_per_s(Curve("run", columns, {}, {})) == pytest.approx(100.0)
    assert alone(columns, run={"stop_score": 30.0}) == (0.1, False)


def test_an_evaluation_after_the_training_stands_where_its_checkpoint_was_written():
    training = [Point({"progress/hours": hours}, step, 0.0) for hours, step in ((1.0, 50), (2.0, 100))]
    overtime = [Point({"progress/hours": 3.0}, 100, 0.0), Point({"progress/hours": 4.0}, 100, 0.0)]
    evaluated = Point({"evaluation/mean": 400.0}, 100, 0.0, of_evaluation=True)
    earlier = Point({"evaluation/mean": 7.0}, 60, 0.0, of_evaluation=True)
    rows = _rows([*training, *overtime, earlier, evaluated])
    assert [row.get("evaluation/mean") for row in rows] == [7.0, 400.0, None, None]


def test_evaluations_of_several_checkpoints_between_two_rows_are_all_there():
    training = [
        Point({"progress/hours": step / 400, "progress/data_points": float(step), "score/mean": 1.0}, step, 0.0)
        for step in (400, 800, 1200)
    ]
    means = {1000: 490.0, 1100: 480.0, 1199: 470.0}
    told = [Point({"evaluation/mean": mean}, step, 0.0, of_evaluation=True) for step, mean in means.items()]
    rows = _rows([*training, *told])
    assert [row.get("evaluation/mean") for row in rows] == [None, 490.0, 480.0, 470.0, None]
    assert [row["progress/hours"] for row in rows] == [1.0, 2.0, 2.0, 2.0, 3.0]
    assert [row.get("score/mean") for row in rows] == [1.0, 1.0, None, None, 1.0]
    first, second = (Point({"evaluation/mean": mean}, 1, 0.0, of_evaluation=True) for mean in (490.0, 470.0))
    rows = _rows([first, second, Point({"progress/hours": 1.0}, 400, 0.0)])
    assert [row["evaluation/mean"] for row in rows] == [490.0, 470.0]


def test_a_rate_is_the_mean_until_training_ended_and_counts_what_was_undone():
    columns = {
        "progress/hours": np.arange(6) / 3600,
        "progress/data_points": np.array([0.0, 100, 50, 150, 150, 150]),  # 50 were undone by a roll-back
        "speed/steps_per_s": np.array([1.0, 1, 1, 1, 0, 0]),
        "evaluation/mean": np.array([np.nan, np.nan, np.nan, 2.0, 4.0, 6.0]),
    }
    curve = Curve("run", columns, {}, {})
    assert data_points_per_s(curve) == pytest.approx(200 / 3)
    assert mean_of("speed/steps_per_s")(curve) == 1.0
    assert mean_of("evaluation/mean")(curve) == 4.0
    columns["progress/data_points"] = np.array([0.0, 100, np.nan, 20, 60, 60])  # it ended before it was there again
    assert mean_of("speed/steps_per_s")(Curve("run", columns, {}, {})) == 4 / 5


def test_too_few_games_for_a_best_mean_give_the_newest_mean():
    columns = {"score/mean": np.array([90.0, 20.0, np.nan]), "score/best_mean": np.full(3, np.nan)}
    assert best_mean_score(Curve("run", columns, {}, {})) == 20.0


def test_a_best_mean_below_the_newest_mean_is_of_too_few_games():
    columns = {"score/mean": np.array([40.0, 90.0, np.nan]), "score/best_mean": np.array([40.0, 40.0, 40.0])}
    grew = Curve("run", columns, {}, {})
    assert best_mean_score(grew) == 90.0 and not has_best_mean(grew)
    fell = Curve("run", columns | {"score/mean": np.array([40.0, 20.0, np.nan])}, {}, {})
    assert best_mean_score(fell) == 40.0 and has_best_mean(fell)


def test_a_broken_run_and_a_missing_seed_are_named_and_the_rest_is_drawn(study, capsys):
    (study / "workers-1" / "seed-1" / "config.json").write_text("not JSON")
    for path in sorted((study / "workers-2" / "seed-0").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (study / "workers-2" / "seed-0").rmdir()
    before = sorted(path for path in study.rglob("*.jsonl"))
    assert main(["plot", str(study)]) == 0
    told = capsys.readouterr().err
    assert "workers-1/seed-1: " in told and "is not valid JSON" in told
    assert "workers-2/seed-0: this seed has not been run" in told
    page = (study / "figures" / "report.html").read_text()
    assert "2 of 4 runs" in page and "this seed has not been run" in page
    assert sorted(path for path in study.rglob("*.jsonl")) == before


def test_a_run_that_is_configured_otherwise_is_left_out_of_its_point(study, capsys):
    path = study / "workers-2" / "seed-1" / "config.json"
    path.write_text(json.dumps(config_of(1, optimizer={"learning_rate": "1e-2"})))
    results = read_results(study)
    assert len(results.points[1].curves) == 1
    assert "workers-2/seed-1 left out: configured unlike the other 1" in results.problems
    assert "left out" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", ["stopped", "failed", None])
def test_a_seed_that_did_not_come_to_its_end_is_counted_and_named(study, outcome):
    path = study / "workers-2" / "seed-1" / "meta.json"
    meta = json.loads(path.read_text())
    meta["lives"][0]["ended"] = {**meta["lives"][0]["ended"], "outcome": outcome}
    if outcome is None:
        del meta["lives"][0]["ended"]
    path.write_text(json.dumps(meta))
    results = read_results(study)
    assert [len(result.curves) for result in results.points] == [2, 2]
    assert results.problems == [f"workers-2/seed-1: it is {outcome or 'broken'}: counted as far as it came"]
    commit_into(study, study.parent / "small")
    assert not read_results(study.parent / "small").problems


def test_nothing_to_draw_is_one_line_that_says_what_could_be(capsys):
    assert main(["plot"]) == 2
    assert "name a study's folder, or run folders" in capsys.readouterr().err


def test_what_is_committed_is_small_and_draws_the_same_figures(study, tmp_path):
    small = tmp_path / "small"
    assert commit_into(study, small) == 4
    assert not list(small.rglob("*.jsonl")) and not list(small.rglob("secret"))
    another = Path(shutil.copytree(study, tmp_path / "another"))
    for of_runs in (study / ".", another):
        with pytest.raises(UserError, match="is a run itself, which could not go on then"):
            commit_into(study, of_runs)
    assert (another / "study.json").stat().st_mtime_ns == (study / "study.json").stat().st_mtime_ns
    assert not list(study.rglob("curve.csv"))
    whole, copied = read_results(study), read_results(small)
    for one, other in zip(whole.points, copied.points, strict=True):
        assert other.estimate(data_points_per_s).centre == pytest.approx(
            one.estimate(data_points_per_s).centre, rel=1e-5
        )
    plot_study(small, tmp_path / "drawn")
    assert (tmp_path / "drawn" / "speed.svg").exists()


def test_a_study_is_not_committed_over_another_one(study, tmp_path):
    other = tmp_path / "other"
    build("stragglers", Shape(values=(0, 1), seeds=1)).save(other)
    before = (other / "study.json").read_bytes()
    with pytest.raises(UserError, match="other already holds study stragglers"):
        commit_into(study, other)
    assert (other / "study.json").read_bytes() == before and [path.name for path in other.iterdir()] == ["study.json"]


def test_a_study_is_drawn_wherever_its_options_stand_and_nothing_is_copied_before_they_are_read(study, tmp_path):
    words = ["plot", "--into", str(tmp_path / "drawn"), "--y", "score/mean", str(study)]
    assert main(words) == 0
    assert main(["plot", str(study), "--x", "frames", "--commit-into", str(tmp_path / "copy")]) == 2
    assert not (tmp_path / "copy").exists()


def test_a_search_that_is_committed_has_its_trials(tmp_path, monkeypatch):
    searched(("breakout",), [("learning-rate", "1e-4..1e-2")], 1, trials=5).save(tmp_path / "whole")
    save_trial(StudyPoint(name="trial-000", words=("breakout", "--learning-rate", "1e-3")), tmp_path / "whole")
    (run,) = load(tmp_path / "whole").runs(tmp_path / "whole")
    made_up_run(run.folder, monkeypatch, seconds=5, workers=1)
    assert commit_into(tmp_path / "whole", tmp_path / "small") == 1
    assert load(tmp_path / "small") == load(tmp_path / "whole")
    assert [len(result.curves) for result in read_results(tmp_path / "small").points] == [1]


def test_any_metric_of_a_study_is_drawn_against_its_axis_or_over_time(study, tmp_path, capsys):
    assert main(["plot", str(study), "--y", "optimizer/update_norm", "--into", str(tmp_path / "axis")]) == 0
    assert {path.name for path in (tmp_path / "axis").iterdir()} == {
        "optimizer_update_norm.png",
        "optimizer_update_norm.svg",
    }
    words = ["plot", str(study), "--y", "loss/total", "--x", "hours", "--into", str(tmp_path / "time")]
    assert main(words) == 0
    assert "workers-2" in (tmp_path / "time" / "loss_total.svg").read_text()
    capsys.readouterr()
    for drawn in (study, study / "workers-1" / "seed-0"):
        assert main(["plot", str(drawn), "--y", "loss/totl"]) == 2
        assert "unknown metric 'loss/totl'; did you mean loss/total" in capsys.readouterr().err
    assert main(["plot", str(study), "--y", "inference/batch"]) == 2
    assert "no run has recorded inference/batch" in capsys.readouterr().err


def test_what_is_drawn_refuses_an_option_of_the_other_kind_before_anything_is_written(study, tmp_path, capsys):
    run, into = str(study / "workers-1" / "seed-0"), str(tmp_path / "new")
    for words, line in (
        ([run, "--commit-into", into], "--commit-into: of a study"),
        ([str(study), "--into", into, "--title", "mine"], "--title: of learning curves"),
        ([str(study), run, "--into", into], "a study is drawn alone: dba3c plot STUDY"),
    ):
        assert main(["plot", *words]) == 2
        assert line in capsys.readouterr().err
    assert not list(tmp_path.glob("new*"))


def test_an_evaluation_is_of_the_life_that_made_its_checkpoint():
    told = [Point({"progress/hours": at}, step, float(at)) for at, step in enumerate((100, 200, 300, 150, 300, 300))]
    told.append(Point({"evaluation/mean": 700.0}, 300, 9.0, of_evaluation=True))
    rows = _rows(told)  # life 0 was killed at step 300, and life 1 went on from 100
    assert [at for at, row in enumerate(rows) if "evaluation/mean" in row] == [4]
