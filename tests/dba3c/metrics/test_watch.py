"""A run is followed while it lives, whatever its folder, its view or the terminal do."""

import errno
import io
import os
from pathlib import Path

import pytest

from dba3c.errors import UserError
from dba3c.metrics import watch as watching
from dba3c.metrics.views import PlainView
from dba3c.metrics.watch import Watcher, watch, watched
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from tests.dba3c.metrics.made_up_run import CONFIG, Clock


def test_what_cannot_be_read_of_a_watched_run_is_said_once(make_up_run, capsys):
    run = make_up_run(seconds=2)
    with run.metrics_file("worker", 0).open("ab") as file:
        file.write(b"garbage\n")
    watch(run.path, PlainView(out=io.StringIO()))
    assert capsys.readouterr().err.count("worker-0.jsonl has lines that are not records (1)") == 1


def test_watching_a_live_run_ends_with_it(tmp_path):
    run, out = RunFolder.create(tmp_path / "run", CONFIG), io.StringIO()
    writer = MetricsWriter(run, "worker", 0)

    class EndsTheRun(PlainView):
        def show(self, summary, now_s):
            super().show(summary, now_s)
            writer.record_event("left", "the last worker left")
            run.end_life("finished", "done")

    assert watch(run.path, EndsTheRun(out=out), poll_s=0.01) == "finished"
    assert "the last worker left" in out.getvalue()
    writer.close()
    run.release()


def test_a_launch_shows_its_run_while_it_works(tmp_path):
    out = io.StringIO()
    with RunFolder.create(tmp_path / "run", CONFIG) as run, watched(run, PlainView(out=out), poll_s=0.01):
        MetricsWriter(run, "server", 0).record_event("joined", "worker 0 joined")
    assert "server-0: worker 0 joined" in out.getvalue()


class Looks(PlainView):
    """Counts them."""

    shows = 0
    closed = False

    def show(self, summary, now_s):
        self.shows += 1

    def close(self, summary):
        self.closed = True


def no_disk(*_):
    raise UserError("cannot read meta.json: Input/output error")


def test_a_folder_that_cannot_be_read_for_a_while_is_said_once_and_looked_at_again(make_up_run, monkeypatch, capsys):
    view = Looks()
    watcher = Watcher(make_up_run(seconds=2), view)
    monkeypatch.setattr(RunFolder, "meta", no_disk)
    for _ in range(3):
        assert watcher.status() == "live"
        watcher.look()
    assert view.shows == 3 and capsys.readouterr().err.count("cannot read meta.json: Input/output error") == 1
    monkeypatch.undo()
    assert watcher.status() == "finished"


def test_records_that_cannot_be_read_are_no_run_without_records(make_up_run, monkeypatch):
    run, view, open_path = make_up_run(seconds=2), Looks(), Path.open

    def lost(path, *how, **named):
        if path.suffix == ".jsonl":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return open_path(path, *how, **named)

    monkeypatch.setattr(Path, "open", lost)
    with pytest.raises(UserError, match=r"worker-0\.jsonl cannot be read \(Input/output error\)"):
        watch(run.path, view)
    assert view.closed and view.shows == 1


def test_a_folder_that_cannot_be_read_for_a_minute_is_no_longer_watched(make_up_run, monkeypatch):
    clock, run, view = Clock(), make_up_run(seconds=2), Looks()
    watcher = Watcher(run, view)
    monkeypatch.setattr(watching, "time", clock)
    monkeypatch.setattr(RunFolder, "meta", no_disk)
    assert watcher.status() == "live"
    clock.now_s += 61
    with pytest.raises(UserError, match="cannot read meta.json"):
        watcher.status()


def test_trouble_with_the_view_ends_it_and_leaves_the_run_alone(tmp_path, capsys):
    class Broken(Looks):
        def show(self, summary, now_s):
            raise OSError("the terminal is gone")

    view = Broken()
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        with watched(run, view, poll_s=0.0):
            pass
        assert view.closed and "the view of the run ended: the terminal is gone" in capsys.readouterr().err
        view.closed = False
        with pytest.raises(OSError, match="the terminal is gone"):
            watch(run.path, view)
    assert view.closed


def test_a_character_that_a_program_s_output_lacks_ends_its_view_in_one_line(tmp_path, capsys):
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        MetricsWriter(run, "worker", 0).record_event("joined", "here – as worker 0")
        with watched(run, PlainView(out=latin), poll_s=0.0):
            pass
    assert "the view of the run ended: 'latin-1' codec can't encode" in capsys.readouterr().err


def test_watching_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        watch(tmp_path)
