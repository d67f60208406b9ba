"""Whatever is broken in one run of a study costs one clear line; the rest is drawn."""

import errno
import json
import os
from pathlib import Path

import pytest

from dba3c.errors import UserError
from dba3c.metrics.monitor import export
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from dba3c.studies.report import FIGURES
from dba3c.studies.results import read_results
from dba3c.studies.study import STUDIES, SWEEP, load
from dba3c.studies.sweep import searched
from launch.cli.main import main
from tests.dba3c.metrics.made_up_run import CONFIG
from tests.dba3c.studies.conftest import config_of
from tests.refusals import refusing


@pytest.fixture
def study(make_up_study):
    """A scaling study of three points, one seed; the first point has not been run."""
    return make_up_study(workers=(1, 2, 4), seeds=(0,), seconds=20, not_run=1, stop_score=5.0, stop_games=10)


def plotted(study, capsys):
    """(lines on stderr, the report) of `dba3c plot STUDY`."""
    assert main(["plot", str(study)]) == 0
    return capsys.readouterr().err, (study / "figures" / "report.html").read_text(encoding="utf-8")


def test_a_run_that_died_before_its_first_update_is_named_and_the_rest_is_drawn(study, capsys):
    with RunFolder.create(study / "workers-1" / "seed-0", config_of(0)) as run:
        MetricsWriter(run, "worker", 0).record_event("joined", "worker 0 joined")
    told, page = plotted(study, capsys)
    assert told.count("workers-1/seed-0: it ended before its first update") == 1
    assert "it ended before its first update" in page and page.count("data:image/svg+xml") == 4


def test_a_point_at_zero_is_left_out_of_what_divides_by_it(study, capsys):
    path = study / "study.json"
    tree = json.loads(path.read_text())
    tree["points"][1]["x"] = 0
    path.write_text(json.dumps(tree))
    _, page = plotted(study, capsys)
    assert page.count("data:image/svg+xml") == 4


def test_every_kind_of_study_is_known_where_studies_are_read():
    assert {*STUDIES, SWEEP} == set(FIGURES)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "scalng"}, "declares a study of an unknown kind, 'scalng'; there are scaling"),
        ({"points": [{"name": "a", "words": [], "x": "one"}]}, "does not declare a study"),
        ({"points": [{"name": 3, "words": []}]}, "does not declare a study"),
        ({"points": [{"name": "../elsewhere", "words": []}]}, "is named like no folder of it"),
        ({"points": [{"name": "/elsewhere", "words": []}]}, "is named like no folder of it"),
    ],
)
def test_a_declaration_that_cannot_be_drawn_is_an_error_of_one_line(study, capsys, change, told):
    path = study / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert main(["plot", str(study)]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "tree", "told"),
    [
        ("config.json", {**CONFIG, "run": None}, "run should be an object"),
        ("config.json", {**CONFIG, "environment": []}, "environment should be an object"),
        ("meta.json", {"lives": [None]}, "lives should be a list of objects"),
    ],
)
def test_a_run_whose_configuration_is_broken_is_named_and_the_rest_is_drawn(study, capsys, file, tree, told):
    (study / "workers-2" / "seed-0" / file).write_text(json.dumps(tree))
    error, page = plotted(study, capsys)
    assert f"workers-2/seed-0: {study}/workers-2/seed-0/{file}: {told}" in error
    assert told in page and page.count("data:image/svg+xml") == 4


def test_a_stop_score_that_is_no_number_is_none(study, capsys):
    config = {**CONFIG, "run": {"stop_score": "high", "stop_games": 10}}
    (study / "workers-2" / "seed-0" / "config.json").write_text(json.dumps(config))
    _, page = plotted(study, capsys)
    assert page.count("data:image/svg+xml") == 4


def test_garbage_in_a_runs_records_is_told_by_report_plot_and_export_and_the_rest_is_drawn(study, tmp_path, capsys):
    run = RunFolder.open(study / "workers-2" / "seed-0")
    path = run.metrics_file("worker", 0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"garbage\n" + b"".join(lines) + b'{"kind": "st')
    line = f"{run.path}: worker-0.jsonl has lines that are not records (2); they are skipped"
    told, page = plotted(study, capsys)
    assert told.count(f"workers-2/seed-0: {line}") == 1
    assert line in page and page.count("data:image/svg+xml") == 4
    assert len(read_results(study).points) == 2
    capsys.readouterr()
    assert main(["plot", str(run.path), "--into", str(tmp_path / "curve")]) == 0
    assert line in capsys.readouterr().err and (tmp_path / "curve.png").exists()
    warnings = []
    assert export(run.path, "tensorboard", into=tmp_path / "out", warn=warnings.append) == 2
    assert warnings == [line]


def test_output_that_cannot_be_written_is_an_error_of_one_line(study, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    into, run = str(tmp_path / "file" / "x"), str(study / "workers-2" / "seed-0")
    for words in (
        ["plot", run, "--into", into],
        ["plot", str(study), "--commit-into", into],
        ["plot", str(study), "--y", "loss/total", "--into", into],
        ["export", run, "--to", "tensorboard", "--into", into],
    ):
        assert main(words) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("dba3c: cannot write") and error.lower().endswith("not a directory"), words


def test_a_study_of_nothing_but_broken_runs_is_an_error(study):
    for seed in study.glob("workers-*/seed-0"):
        (seed / "config.json").write_text("[]")
    with pytest.raises(UserError, match="nothing of the study"):
        read_results(study)


def test_a_run_that_may_not_be_looked_at_is_left_out_and_the_rest_is_drawn(study, tmp_path, capsys, monkeypatch):
    hidden, stat = study / "workers-2" / "seed-0", Path.stat

    def denied(path, **how):
        if path == hidden or hidden in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", denied)
    told, page = plotted(study, capsys)
    assert f"workers-2/seed-0: cannot read {hidden}: Permission denied" in told
    assert page.count("data:image/svg+xml") == 4
    runs = [str(hidden), str(study / "workers-4" / "seed-0")]
    assert main(["plot", *runs, "--into", str(tmp_path / "curve")]) == 0
    assert "left out: cannot read" in capsys.readouterr().err and (tmp_path / "curve.png").exists()


def test_a_figure_is_as_it_was_where_a_new_one_has_no_room(study, tmp_path, capsys, monkeypatch):
    words = ["plot", str(study / "workers-2" / "seed-0"), "--into", str(tmp_path / "curve")]
    table = ["simulate", "--nodes", "4", "--steps", "2", "--output", str(tmp_path / "table.csv")]
    assert main(words) == 0 and main(table) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert {path.name for path in before} == {"curve.png", "curve.svg", "table.csv"}

    full = refusing(errno.ENOSPC)

    monkeypatch.setattr(os, "fsync", full)
    for again in ([*words, "--title", "another"], [*table, "--seed", "1"]):
        capsys.readouterr()
        assert main(again) == 2
        assert capsys.readouterr().err.endswith("No space left on device\n")
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_the_folder_that_figures_go_to_is_not_taken_for_what_is_drawn(study, tmp_path):
    run = study / "workers-2" / "seed-0"
    assert main(["plot", "--into", str(study), "--title", str(study), str(run)]) == 0
    assert (tmp_path / "study.png").exists()


def test_names_that_are_no_text_are_drawn_reported_and_exported(study, tmp_path):
    named = study.rename(tmp_path / os.fsdecode(b"st\xfcdy"))
    for run in named.glob("workers-*/seed-0"):
        run.rename(run.with_name(os.fsdecode(b"seed-0")))
    assert main(["plot", str(named)]) == 0
    assert "st\\udcfcdy" in (named / "figures" / "report.html").read_text(encoding="utf-8")
    run = (named / "workers-2" / "seed-0").rename(tmp_path / os.fsdecode(b"r\xfcn"))
    assert main(["plot", str(run), str(named / "workers-4" / "seed-0"), "--into", str(tmp_path / "curve")]) == 0
    assert main(["export", str(run), "--to", "tensorboard", "--into", str(tmp_path / "exported")]) == 0


def test_a_trial_that_cannot_be_read_is_named(tmp_path):
    searched(("breakout",), [("learning-rate", "1e-4..1e-2")], 1, trials=5).save(tmp_path)
    (tmp_path / "trial-0").mkdir()
    (tmp_path / "trial-0" / "point.json").write_text("{")
    with pytest.raises(UserError, match=r"trial-0/point\.json does not declare a study"):
        load(tmp_path)


def test_a_study_is_not_declared_in_a_run_s_folder(study):
    run = study / "workers-2" / "seed-0"
    with pytest.raises(UserError, match="is a run's folder: choose another for the study"):
        load(study).save(run)
    assert not (run / "study.json").exists()
