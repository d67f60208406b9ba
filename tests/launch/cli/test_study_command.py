"""dba3c study: what is started, what is left alone, and the job array."""

import errno
import json
import signal
from types import SimpleNamespace

import pytest

from dba3c.runs.folder import RunFolder
from dba3c.studies.study import Shape, build, load
from launch.cli import study
from launch.cli.main import main
from launch.cli.study import array_text, run_all, run_task, train_command
from launch.slurm import job as slurm_job


@pytest.fixture
def runs(tmp_path):
    return list(build("parameter_servers", Shape(values=(1, 2), seeds=2)).runs(tmp_path))


def ended(run, outcome, reason="because"):
    if (run.folder / "config.json").exists():
        meta = json.loads((run.folder / "meta.json").read_text())
        meta["lives"][-1]["ended"] = {"outcome": outcome, "reason": reason, "time_s": 0.0}
        (run.folder / "meta.json").write_text(json.dumps(meta))
        return
    folder = RunFolder.create(run.folder, {"run": {}})
    if outcome:
        folder.end_life(outcome, reason)
    folder.release()


def training(runs, codes=(0,) * 9, outcome="finished", commands=None):
    """Stands in for `train`: notes the command, ends its run where the next of the codes is 0, and returns that."""
    left = iter(codes)

    def train(command):
        (run,) = [run for run in runs if str(run.folder) in command]
        if commands is not None:
            commands.append(command)
        code = next(left)
        if code == 0:
            ended(run, outcome)
        return code

    return train


def test_finished_runs_are_left_alone_broken_stopped_and_failed_ones_resumed_missing_ones_started(tmp_path, capsys):
    runs = list(build("parameter_servers", Shape(values=(1, 2, 3, 4, 5), seeds=1)).runs(tmp_path))
    for run, outcome in zip(runs, ("finished", "failed", "stopped", None), strict=False):
        ended(run, outcome)
    commands = []
    assert run_all(runs, training(runs, commands=commands)) == 0
    assert commands == [*[train_command(run, True) for run in runs[1:4]], train_command(runs[4], False)]
    out = capsys.readouterr().out
    assert "[1/5] servers-1/seed-0: finished, left alone" in out and "[5/5] servers-5/seed-0: starts" in out


def test_a_run_that_fails_costs_a_line_and_the_exit_code_but_not_the_others(runs, capsys):
    assert run_all(runs, training(runs, codes=(0, 1, 0, 0))) == 1
    told = capsys.readouterr()
    assert "not finished" not in told.err
    assert "servers-2/seed-0: failed with exit 1, going on" in told.out and "1 of 4 runs failed" in told.err


def test_a_run_for_which_there_is_no_process_costs_a_line_too(runs, capsys):
    def refused(command):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    assert run_all(runs[:2], refused) == 1
    told = capsys.readouterr()
    assert told.out.count("cannot be started (Resource temporarily unavailable), going on with the next") == 2
    assert "2 of 2 runs failed" in told.err


def test_the_time_that_is_left_is_of_runs_that_are_to_be_done(runs, capsys, monkeypatch):
    now_s = iter(range(0, 6000, 600))
    monkeypatch.setattr("launch.cli.study.time", SimpleNamespace(monotonic=lambda: next(now_s)))
    ended(runs[2], "finished")
    assert run_all(runs[:4], training(runs[:4])) == 0
    assert "starts, about 40 min left" in capsys.readouterr().out


def test_a_run_that_diverged_has_come_to_its_end_and_is_not_trained_again(runs, capsys):
    def diverges(command):
        ended(runs[0], "failed", "worker 0: none of the last 100 gradients was finite: it has diverged")
        return 3

    assert run_all(runs[:1], diverges) == 0 and runs[0].state() == "diverged"
    assert f"{runs[0].name}: diverged, going on with the next" in capsys.readouterr().out
    assert run_all(runs[:1], diverges) == run_task(runs[0]) == 0
    assert capsys.readouterr().out.count(f"{runs[0].name}: diverged, left alone") == 2


def test_a_run_that_was_asked_to_stop_leaves_the_study_unfinished(runs, capsys):
    assert run_all(runs[:2], training(runs, outcome="stopped")) == 1
    assert f"2 of 2 runs are not finished: {runs[0].name}, {runs[1].name}" in capsys.readouterr().err


def test_a_run_that_is_live_elsewhere_leaves_the_study_unfinished_unless_it_ends_meanwhile(runs, capsys):
    with RunFolder.create(runs[0].folder, {"run": {}}):
        assert run_all(runs[:2], training(runs)) == 1
        told = capsys.readouterr()
        assert f"{runs[0].name}: live, left alone" in told.out
        assert f"1 of 2 runs are not finished: {runs[0].name}" in told.err
        assert run_task(runs[0]) == 1
        train = training(runs)
        assert run_all([runs[0], runs[2]], lambda command: ended(runs[0], "finished") or train(command)) == 0
    assert run_task(runs[0]) == 0


def test_a_task_whose_run_was_asked_to_stop_is_not_done(runs, capsys, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(study, "train", training(runs, outcome="stopped"))
    assert run_task(runs[0]) == 1
    assert f"1 of 1 runs are not finished: {runs[0].name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "code"), [(slurm_job.WARNING, 0), (f"{slurm_job.WARNING}; server 0 cannot write", 0), ("dba3c stop", 1)]
)
def test_a_task_that_slurm_queues_again_is_no_failure_and_one_that_was_stopped_is(runs, monkeypatch, reason, code):
    def job(run_dir, train, nodes, heard):
        with RunFolder.create(runs[0].folder, {"run": {}}) as folder:
            folder.end_life("stopped", reason)
        return 0

    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(slurm_job, "run_job", job)
    assert run_task(runs[0]) == code


def test_a_task_whose_run_has_ended_by_itself_is_done_though_a_signal_came_meanwhile(tmp_path, monkeypatch):
    def job(run_dir, train, nodes, heard):
        with RunFolder.create(run_dir, {"run": {}}) as folder:
            folder.end_life("finished", "score reached")
        heard.append(signal.SIGUSR1)
        return 0

    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(slurm_job, "run_job", job)
    into = ["--into", str(tmp_path / "study")]
    assert main(["study", "scaling", "--values", "1", "--seeds", "1", "--slurm", *into]) == 0
    assert main(["study", "scaling", "--task", "workers-1/seed-0", *into]) == 0


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
    assert command[3:5] == ["train", *runs[2].point.words][:2]
    assert command[-4:] == ["--seed", "1", "--run-dir", str(runs[2].folder)]


def test_a_study_does_not_run_what_the_user_calls_launch_py(runs, tmp_path, monkeypatch, capfd):
    (tmp_path / "launch.py").write_text("print('mine')")
    monkeypatch.chdir(tmp_path)
    assert study.train(train_command(runs[0], resume=True)) == 2
    told = capfd.readouterr()
    assert told.err.startswith("dba3c: nothing to resume") and "mine" not in told.out


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
    assert "--task 6: there are workers-2/seed-0, workers-64/seed-0, " in capsys.readouterr().err


def test_evaluators_and_recorders_of_a_study_have_nodes_of_their_own(tmp_path, capsys):
    into = ["--seeds", "1", "--slurm", "--into"]
    assert main(["study", "scaling", "--values", "4", *into, str(tmp_path / "one"), "--", "--evaluators", "1"]) == 0
    assert "#SBATCH --nodes=9\n" in capsys.readouterr().out  # 4 workers, 4 servers
    assert main(["study", "stragglers", "--env", "dba3c_paper", *into, str(tmp_path / "two")]) == 0
    assert "#SBATCH --nodes=12\n" in capsys.readouterr().out  # 8 workers, 2 servers; the preset has one of each


def test_a_bad_option_is_refused_before_anything_is_started(tmp_path, capsys):
    assert main(["study", "scaling", "--into", str(tmp_path / "study"), "--", "--learning-rat", "1"]) == 2
    assert "did you mean --learning-rate?" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--list --values 2 --seeds 1", "--values, --seeds: what a study is declared with; --list and --task read one"),
        ("--task workers-2/seed-0 -- --max-hours 1", "-- --max-hours 1: what a study is declared with; --list and"),
        ("--time 1:00 --cpus-per-task 2", "--cpus-per-task, --time: of --slurm, which is not given"),
        ("--slurm --task workers-2/seed-0", "--slurm, --list and --task are one thing each: give one of them"),
        ("--slurm --cpus-per-task 0", "cpus_per_task must be at least 1, got 0"),
        ("--seeds -1", "seeds must be at least 0 and at most 10000, got -1"),
    ],
)
def test_words_that_mean_nothing_to_a_study_are_refused(tmp_path, capsys, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    build("scaling", Shape(values=(2,), seeds=1)).save(tmp_path / "studies" / "scaling")
    assert main(["study", "scaling", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"dba3c: {why}")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--workers 2", "--num-workers is what the study scaling varies: give --values"),
        ("--num-servers=3", "--num-servers is what the study scaling varies"),
        ("--seed 7", "--seed, --run-dir and --resume are of one run"),
        ("--run-dir elsewhere", "are of one run"),
        ("--resume", "are of one run"),
    ],
)
def test_words_for_every_run_change_nothing_that_its_points_differ_in(tmp_path, capsys, words, why):
    for values in ("1 2", "1"):
        asked = f"study scaling --values {values} --into".split()
        assert main([*asked, str(tmp_path / "study"), "--", *words.split()]) == 2
        assert why in capsys.readouterr().err and not (tmp_path / "study").exists()


def test_a_study_of_another_name_is_not_listed_for_it(tmp_path, capsys):
    build("scaling", Shape(values=(1, 2), seeds=1)).save(tmp_path)
    assert main(["study", "stragglers", "--into", str(tmp_path), "--list"]) == 2
    assert "holds the study scaling, not stragglers" in capsys.readouterr().err
