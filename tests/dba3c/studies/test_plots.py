"""Figures and committed data, from run folders alone."""

import dataclasses
import json
import re
import xml.etree.ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from dba3c.config import TrainConfig
from dba3c.errors import UserError
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from dba3c.studies.curve import Curve, downsample, load_curve, load_curves
from dba3c.studies.figures import (
    _line,
    aggregate,
    draw_times,
    finish,
    group_by_configuration,
    new_figure,
    plot_learning_curves,
    plot_runs,
)
from dba3c.studies.statistics import time_to_goal
from tests.dba3c.metrics.made_up_run import CONFIG, START_S, made_up_run, set_lives


@pytest.fixture
def run(tmp_path, monkeypatch):
    return made_up_run(tmp_path / "run", monkeypatch, seconds=60)


def curve_of(scores, name="made up"):
    frames = np.arange(len(scores), dtype=np.float64) * 1000
    columns = {"progress/frames": frames, "score/mean": np.array(scores, dtype=np.float64)}
    return Curve(name, columns, {}, {})


def test_a_curve_has_every_chart_as_a_column_against_time(run):
    curve = load_curve(run.path, every_s=10.0)
    assert curve.column("progress/frames")[-1] == 2 * 600 * 160 * 4
    assert curve.column("score/mean")[-1] == pytest.approx(sum([s for s in range(60) for _ in (0, 1)][-50:]) / 50)
    hours = curve.column("progress/hours")
    assert (np.diff(hours) > 0).all() and hours[-1] == pytest.approx(60 / 3600)
    assert curve.column("progress/core_hours_held")[-1] == pytest.approx(2 * 60 / 3600)


def test_the_time_between_two_lives_is_not_counted(run):
    set_lives(run, (START_S, START_S + 30, 2), (START_S + 40, None, 2))
    hours = load_curve(run.path, every_s=5.0).column("progress/hours")
    assert (np.diff(hours) >= 0).all() and hours[-1] == pytest.approx((30 + 20) / 3600, rel=0.02)


def test_a_downsampled_run_is_small_draws_alike_and_holds_no_secret(run, tmp_path):
    table = downsample(run.path, tmp_path / "small", rows=5)
    assert len(table.read_text().splitlines()) == 1 + 5
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == ["config.json", "curve.csv", "meta.json"]
    whole, small = load_curve(run.path), load_curve(tmp_path / "small")
    assert set(small.columns) == set(whole.columns) and small.config == whole.config
    for chart in ("score/mean", "progress/frames", "loss/total"):
        assert small.column(chart)[-1] == pytest.approx(whole.column(chart)[-1], rel=1e-6)


def test_an_unknown_metric_names_the_nearest_and_an_unrecorded_one_says_so(run):
    curve = load_curve(run.path)
    with pytest.raises(UserError, match="unknown metric 'score/maen'; did you mean score/mean"):
        curve.column("score/maen")
    with pytest.raises(UserError, match="run never recorded policy/lag_mean"):
        curve.column("policy/lag_mean")


def test_broken_runs_cost_a_line_each_and_the_rest_is_drawn(run, tmp_path):
    for name, config in (("torn", '{"env'), ("empty", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    (tmp_path / "bad_table").mkdir()
    (tmp_path / "bad_table" / "config.json").write_text("{}")
    (tmp_path / "bad_table" / "curve.csv").write_text("score/mean\nhigh\n")
    (tmp_path / "other_table").mkdir()
    (tmp_path / "other_table" / "config.json").write_text("{}")
    (tmp_path / "other_table" / "curve.csv").write_text("price\n3\n")
    warnings = []
    paths = [tmp_path / name for name in ("missing", "torn", "empty", "other_table", "bad_table", "run")]
    assert [curve.name for curve in load_curves(paths, warnings.append)] == ["run"]
    for warning, expected in zip(
        warnings,
        ("there is no folder", "is not valid JSON", *["has recorded nothing"] * 2, "not a table of numbers"),
        strict=True,
    ):
        assert expected in warning and "\n" not in warning
    with pytest.raises(UserError, match="none of these runs"):
        load_curves(paths[:2], warnings.append)


def test_the_figure_is_a_png_and_an_svg_and_the_same_each_time(run, tmp_path):
    curve = load_curve(run.path)
    groups = {"four seeds": [dataclasses.replace(curve)] * 4, "one run": [curve]}
    first = plot_learning_curves(groups, tmp_path / "a", goal=300.0, title="made up")
    second = plot_learning_curves(groups, tmp_path / "b", goal=300.0, title="made up")
    assert [path.name for path in first] == ["a.png", "a.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert imread(first[0]).shape[:2] == (640, 1024)
    assert xml.etree.ElementTree.parse(first[1]).getroot().tag.endswith("svg")


@pytest.mark.parametrize("x", ["frames", "hours", "core-hours", "progress/data_points"])
def test_learning_is_drawn_against_each_axis(run, tmp_path, x):
    png, _ = plot_learning_curves({"run": [load_curve(run.path)]}, tmp_path / "figure", x=x)
    assert png.stat().st_size > 5000


def test_nothing_to_draw_is_said(tmp_path):
    with pytest.raises(UserError, match="none of these runs can be drawn"):
        plot_learning_curves({"none": []}, tmp_path / "figure")


def lines_of(*scores):
    return [np.stack([np.arange(len(each), dtype=float), np.array(each, dtype=float)]) for each in scores]


def test_the_iqm_leaves_the_best_and_the_worst_quarter_out():
    band = aggregate(lines_of(*([v, v] for v in (0.0, 10.0, 20.0, 1000.0))), "iqm")
    assert band.centre[0] == 15.0
    assert (band.low[0], band.high[0]) == (0.0, 1000.0)  # the spread of fewer than five: their range


def test_runs_are_compared_only_where_all_of_them_are():
    band = aggregate([np.array([[0.0, 10.0], [0.0, 10.0]]), np.array([[5.0, 30.0], [5.0, 30.0]])], "mean")
    assert (band.x[0], band.x[-1]) == (5.0, 10.0)


def test_runs_that_share_no_range_are_named_and_drawn_without_a_band(tmp_path, capsys):
    frames = {"short": [0.0, 1000.0], "late": [5000.0, 6000.0]}
    curves = [
        Curve(name, {"progress/frames": np.array(x), "score/mean": np.zeros(2)}, {}, {}) for name, x in frames.items()
    ]
    plot_learning_curves({"both": curves, "one": curves[:1]}, tmp_path / "figure")
    told = capsys.readouterr().err
    assert "no common range of progress/frames, and no band: short ends at 1,000, before late begins" in told
    assert {"both (2 runs without a common range)", "one"} <= svg_comments(tmp_path / "figure.svg")


def test_names_and_titles_are_drawn_as_they_stand(tmp_path):
    groups = {name: [curve_of([1.0, 2.0])] for name in ("_old", "$_$", "a$b")}
    plot_learning_curves(groups, tmp_path / "figure", title="costs $_$", goal=2.0)
    told = ", 0 of 1 reached 2"
    drawn = {text.replace("\\$", "$") for text in svg_comments(tmp_path / "figure.svg")}
    assert {f"\u200b_old{told}", f"$_${told}", f"a$b{told}", "costs $_$"} <= drawn


def test_gaps_in_a_curve_are_bridged(tmp_path, capsys):
    plot_learning_curves({"gap": [curve_of([1.0, np.nan, 3.0])]}, tmp_path / "figure")
    with pytest.raises(UserError, match="none of these runs"):
        plot_learning_curves({"none": [curve_of([np.nan])]}, tmp_path / "figure")
    assert "has no point with both" in capsys.readouterr().err


def test_runs_of_one_configuration_are_seeds_of_one_line_whatever_is_kept_of_them(run, tmp_path):
    def run_with(name, rate, seed):
        config = {
            "optimizer": {"learning_rate": str(rate)},
            "run": {"seed": seed, "run_dir": name, "recorders": seed - 1},
            "exchange": {"keep_checkpoints": 1 + seed, "port": 7000 + seed, "step_timeout_s": 60.0 + seed},
            "environment": {"env_threads": seed},
            "algorithm": {"entropy_cost": ("0.01", "1e-2")[seed - 1]},
        }
        return dataclasses.replace(curve_of([1.0, 2.0], name), config=config)

    curves = [run_with("a", 0.1, 1), run_with("b", 0.2, 1), run_with("c", 0.1, 2)]
    groups = group_by_configuration(curves)
    assert {name: [curve.name for curve in members] for name, members in groups.items()} == {
        "a … c": ["a", "c"],
        "b": ["b"],
    }


def test_seeds_are_of_one_line_though_some_were_run_when_options_were_others():
    config, older = (json.loads(TrainConfig().to_json()) for _ in range(2))
    older["exchange"]["when_workers_lost"] = "shrink"  # the only one of its values that was ever used
    del older["optimizer"]["decay"]
    curves = [dataclasses.replace(curve_of([1.0, 2.0], name), config=of) for name, of in (("a", older), ("b", config))]
    assert list(group_by_configuration(curves)) == ["a … b"]
    broken = [dataclasses.replace(c, config={"algorithm": {"entropy_cost": "by hand"}}) for c in curves]
    assert list(group_by_configuration(broken)) == ["a … b"]


def test_a_legend_of_many_lines_leaves_the_axes_their_room(tmp_path, recwarn):
    names = [f"learning-rate-1e-4,entropy-cost-{number} (mean of 3 runs, range of 3 seeds)" for number in range(40)]
    plot_learning_curves({name: [curve_of([1.0, 2.0], name)] for name in names}, tmp_path / "figure")
    assert not [str(each.message) for each in recwarn if "layout" in str(each.message)]


def test_only_the_places_of_progress_never_fall(tmp_path):
    falling = curve_of([1.0, 2.0, 3.0])
    columns = {**falling.columns, "schedule/learning_rate": np.array([3e-3, 2e-3, 1e-3])}
    curve = dataclasses.replace(falling, columns=columns)
    assert _line(curve, "schedule/learning_rate", "score/mean")[0].tolist() == [3e-3, 2e-3, 1e-3]
    plot_learning_curves({"two": [curve, curve]}, tmp_path / "figure", x="schedule/learning_rate")
    rolled_back = dataclasses.replace(falling, columns={**falling.columns, "progress/frames": np.array([4.0, 9, 5])})
    assert _line(rolled_back, "progress/frames", "score/mean")[0].tolist() == [4, 9, 9]


def test_runs_of_one_folder_name_are_told_apart_by_their_parents(tmp_path, monkeypatch, capsys):
    paths = []
    for workers in (1, 2):
        config = {**CONFIG, "workers": workers}
        path = tmp_path / f"workers-{workers}" / "seed-0"
        paths.append(made_up_run(path, monkeypatch, seconds=12, workers=workers, config=config).path)
    assert [curve.name for curve in load_curves(paths)] == ["workers-1/seed-0", "workers-2/seed-0"]
    plot_runs([*paths, paths[0]], tmp_path / "figure")
    assert "is given twice" in capsys.readouterr().err
    told = ", 0 of 1 reached 300"
    assert {f"workers-1/seed-0{told}", f"workers-2/seed-0{told}"} <= svg_comments(tmp_path / "figure.svg")


def svg_comments(path):
    """What is written in a figure: each text's glyphs follow a comment with it."""
    return set(re.findall(r"<!-- (.*) -->", path.read_text(encoding="utf-8")))


def test_a_run_without_the_chart_is_left_out_and_the_others_are_drawn(tmp_path, monkeypatch, capsys):
    played = made_up_run(tmp_path / "played", monkeypatch, seconds=12)
    with RunFolder.create(tmp_path / "died", {**CONFIG, "workers": 9}) as died:
        MetricsWriter(died, "worker", 0).record_event("joined", "worker 0 joined")
    plot_runs([died.path, played.path], tmp_path / "figure.png")
    assert "left out: died never recorded score/mean" in capsys.readouterr().err
    assert "played, 0 of 1 reached 300" in svg_comments(tmp_path / "figure.svg")
    with pytest.raises(UserError, match="none of these runs can be drawn: none has score/mean against frames"):
        plot_runs([died.path], tmp_path / "figure")


def test_an_evaluation_is_drawn_at_the_progress_of_its_checkpoint(run, tmp_path):
    curve = load_curve(run.path, every_s=5.0)
    (place,) = np.flatnonzero(np.isfinite(curve.column("evaluation/mean")))
    assert curve.column("evaluation/mean")[place] == 3.0
    frames, until = curve.column("progress/frames"), 550 * 2 * 160 * 4  # step 550, two workers, frame skip 4
    assert frames[place] <= until < frames[place + 1]
    small = load_curve(downsample(run.path, tmp_path / "small", rows=4).parent)
    assert np.isfinite(small.column("evaluation/mean")).any()
    plot_runs([run.path], tmp_path / "figure", y="evaluation/mean")
    assert "evaluation mean (game points)" in svg_comments(tmp_path / "figure.svg")


def test_a_chart_of_one_worker_is_said_to_be_for_trackers(run, tmp_path):
    with pytest.raises(UserError, match="worker-0/score is for trackers only"):
        plot_runs([run.path], tmp_path / "figure", y="worker-0/score")


def test_times_are_not_joined_over_a_point_that_is_not_known():
    _, axes = new_figure()
    times = [(1, time_to_goal([110.0], [True])), (2, time_to_goal([200.0], [False])), (4, time_to_goal([25.0], [True]))]
    draw_times(axes, times, "hours")
    line = next(line for line in axes.lines if str(line.get_label()).startswith("hours"))
    assert np.isnan(line.get_ydata()).tolist() == [False, True, False]


def test_a_figure_without_a_name_is_an_error_of_one_line(run):
    with pytest.raises(UserError, match="no figure's name"):
        plot_runs([run.path], ".")


def test_a_table_without_a_known_chart_is_copied_nowhere(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "curve.csv").write_text("price\n3\n")
    with pytest.raises(UserError, match="has recorded nothing that could be drawn"):
        downsample(tmp_path, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_a_downsampled_run_that_cannot_be_written_is_an_error_of_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write .*file/x.*/file is not a directory|Not a directory"):
        downsample(run.path, tmp_path / "file" / "x")


def test_a_goal_that_was_reached_between_two_points_was_reached(tmp_path, monkeypatch):
    """The mean of the last 50 games (25 s) is 1 at one moment only, between two points 5 s apart."""
    run = made_up_run(tmp_path / "run", monkeypatch, seconds=90, score=lambda second: float(27 <= second <= 51))
    curve = load_curve(run.path)
    means = curve.column("score/mean")
    assert np.nanmax(means) < 1.0
    row = curve.reached(1.0)
    assert row is not None and np.nanmax(means[: row + 1]) > 0.9


@pytest.mark.parametrize(("minutes", "told"), [((0.05, 0.06), "0.05"), ((1.0, 2000.0), "1k")])
def test_a_tick_below_one_is_a_number_not_a_thousandth_that_reads_as_minutes(tmp_path, minutes, told):
    figure, axes = new_figure()
    axes.plot((1, 2), minutes)
    finish(axes, "workers", "minutes to the stop score", (1, 2), log=True)
    figure.savefig(tmp_path / "figure.png")
    ticks = [tick.get_text() for tick in axes.get_yticklabels()]
    assert told in ticks and not any(tick.endswith("m") for tick in ticks)
