"""The queue of long runs loses none of them."""

from dataclasses import replace

import pytest
import queued_runs
import run_queue

from dba3c.errors import UserError
from dba3c.runs.folder import RunFolder
from dba3c.studies.study import StudyRun


@pytest.fixture
def entries(tmp_path, monkeypatch):
    """Two runs of a queue in a folder of its own."""
    made = tuple(
        run_queue.Entry(topic="t", name="n", seed=seed, core_hours=1.0, words=("breakout",)) for seed in (0, 1)
    )
    for name, value in (("RUNS", "runs"), ("UNDER_WAY", "under_way"), ("HERE", "results")):
        monkeypatch.setattr(queued_runs, name, tmp_path / value)
    monkeypatch.setattr(run_queue, "UNDER_WAY", queued_runs.UNDER_WAY)
    monkeypatch.setattr(run_queue, "QUEUE", made)
    return made


def begin(entry):
    with RunFolder.create(entry.run.folder, {"run": {"seed": entry.seed}}) as run:
        (run.checkpoints / "step-7").mkdir(parents=True)


def test_what_is_packed_and_not_yet_unpacked_here_stays_packed_when_another_run_is(entries):
    for entry in entries:
        begin(entry)
    assert run_queue.save(run_queue.QUEUE) == 0
    run_queue.shutil.rmtree(entries[0].run.folder)
    assert run_queue.save(run_queue.QUEUE) == 0
    assert [run_queue.state(entry) for entry in entries] == ["packed", "broken"]
    run_queue.unpack(entries[0])
    assert (entries[0].run.folder / "checkpoints" / "step-7").is_dir()
    assert not (entries[0].run.folder / "secret").exists()  # what is committed is nobody's secret


def test_an_unpacking_that_was_interrupted_is_done_again(entries, monkeypatch):
    begin(entries[0])
    run_queue.save(run_queue.QUEUE)
    run_queue.shutil.rmtree(entries[0].run.folder)
    whole = run_queue.tarfile.TarFile.extractall

    def interrupted(archive, path, **how):
        whole(archive, path, members=[archive.getmember("config.json")], **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(run_queue.tarfile.TarFile, "extractall", interrupted)
        run_queue.unpack(entries[0])
    assert run_queue.state(entries[0]) == "packed"  # else it would begin anew, and its archive be deleted at its end
    run_queue.unpack(entries[0])
    assert (entries[0].run.folder / "checkpoints" / "step-7").is_dir()


def test_runs_are_chosen_by_name_and_their_commands_are_told(entries, capsys):
    assert run_queue.chosen([]) == run_queue.chosen(["t"]) == run_queue.chosen(["t/n/"]) == entries
    assert run_queue.chosen(["t/n/seed-1", "t/n/seed-1"]) == entries[1:]
    with pytest.raises(UserError, match="nothing in the queue is called t/n/seed; did you mean t/n/seed-"):
        run_queue.chosen(["t/n/seed"])
    run_queue.show(entries[1:], commands=True)
    assert "dba3c train breakout --max-core-hours 1 " in (said := capsys.readouterr().out) and "--seed 1\n" in said


def test_a_run_that_diverged_does_not_hold_up_the_queue(entries, monkeypatch, capsys):
    states = {entries[0].run.folder: "diverged", entries[1].run.folder: "missing"}
    trained = []

    def train(command):
        trained.append(command)
        states[entries[1].run.folder] = "diverged"
        return 3

    monkeypatch.setattr(run_queue, "state", lambda entry: states[entry.run.folder])
    monkeypatch.setattr(StudyRun, "state", lambda run: states[run.folder])
    monkeypatch.setattr(run_queue, "train", train)
    monkeypatch.setattr(run_queue.os, "nice", lambda _: 0)
    for _ in range(2):
        assert run_queue.go_on(entries) == 0
    assert len(trained) == 1 and capsys.readouterr().out.count("diverged, left alone") == 3


def test_only_the_agent_of_an_entry_that_says_so_is_kept(entries, monkeypatch):
    kept = []
    monkeypatch.setattr(run_queue, "keep_policy", lambda run, into, warn: kept.append(into))
    for entry in (entries[0], replace(entries[1], is_kept=True)):
        begin(entry)
        run_queue.keep_agent(entry)
    assert kept == [entries[1].results]


def test_every_agent_that_is_committed_is_one_that_the_queue_keeps():
    topics = {entry.topic for entry in run_queue.QUEUE}
    there = {path.parent for topic in topics for path in (queued_runs.HERE / topic).glob("*/*/checkpoints")}
    kept = {entry.results for entry in run_queue.QUEUE if entry.is_kept}
    assert there <= kept
