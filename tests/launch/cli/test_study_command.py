"""dba3c study: what is started, what is left alone, and the job array."""

import signal

import pytest

from dba3c.runs.folder import RunFolder
from dba3c.studies.study import Shape, build, load
from launch.cli.main import main
from launch.cli.study import array_text, run_all, train_command


@pytest.fixture
def runs(tmp_path):
    return list(build("parameter_servers", Shape(values=(1, 2), seeds=2)).runs(tmp_path))


def ended(run, outcome):
    folder = RunFolder.create(run.folder, {"run": {}})
    if outcome:
        folder.end_life(outcome, "because")
    folder.release()


def test_finished_runs_are_left_alone_broken_stopped_and_failed_ones_resumed_missing_ones_started(tmp_path, capsys):
    runs = list(build("parameter_servers", Shape(values=(1, 2, 3, 4, 5), seeds=1)).runs(tmp_path))
    for run, outcome in zip(runs, ("finished", "failed", "stopped", None), strict=False):
        ended(run, outcome)
    commands = []
    assert run_all(runs, lambda command: commands.append(command) or 0) == 0
    assert commands == [*[train_command(run, True) for run in runs[1:4]], train_command(runs[4], False)]
    out = capsys.readouterr().out
    assert "[1/5] servers-1/seed-0: finished, left alone" in out and "[5/5] servers-5/seed-0: starts" in out


def test_a_run_that_fails_costs_a_line_and_the_exit_code_but_not_the_others(runs, capsys):
    codes = iter([0, 1, 0, 0])
    assert run_all(runs, lambda command: next(codes)) == 1
    told = capsys.readouterr()
    assert "servers-2/seed-0: failed with exit 1, going on" in told.out and "1 of 4 runs failed" in told.err


def test_a_run_folder_that_cannot_be_read_is_not_overwritten(runs, capsys):
    runs[0].folder.mkdir(parents=True)
    (runs[0].folder / "config.json").write_text("{}")
    (runs[0].folder / "meta.json").write_text("torn {")
    commands = []
    assert run_all(runs[:1], lambda command: commands.append(command) or 0) == 1
    assert not commands and "unreadable" in capsys.readouterr().out


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_study_stops_and_says_how_to_go_on(runs, capsys, signum):
    assert run_all(runs, lambda command: 128 + signum) == 128 + signum
    assert "the same command goes on from here" in capsys.readouterr().out


def test_the_command_of_a_run_names_its_seed_and_its_folder(runs):
    command = train_command(runs[2], resume=False)
    assert command[1:4] == ["-m", "launch", "train"]
    assert command[-4:] == ["--seed", "1", "--run-dir", str(runs[2].folder)]


def test_a_job_array_has_a_task_for_each_run_and_the_nodes_of_the_largest(tmp_path, capsys):
    into = str(tmp_path / "study")
    words = ["study", "scaling", "--values", "2", "64", "--seeds", "3", "--slurm", "--into", into]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text == array_text(load(into), tmp_path / "study", 12, "04:00:00", "dba3c study scaling")
    assert "#SBATCH --array=0-5\n" in text and "#SBATCH --nodes=68\n" in text and len(text.splitlines()) <= 50
    assert main(["study", "scaling", "--list", "--into", into]) == 0
    assert "0 of 6 runs are finished" in capsys.readouterr().out
    assert main(["study", "scaling", "--task", "6", "--into", into]) == 2
    assert "the study has runs 0 to 5" in capsys.readouterr().err


def test_a_bad_option_is_refused_before_anything_is_started(tmp_path, capsys):
    assert main(["study", "scaling", "--into", str(tmp_path / "study"), "--", "--learning-rat", "1"]) == 2
    assert "point workers-1" in (told := capsys.readouterr().err) and "learning-rate" in told
    assert not (tmp_path / "study").exists()
