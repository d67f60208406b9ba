"""Following files that grow, appear late, are torn, or are away."""

import errno
import json
import os
from pathlib import Path

import pytest

from dba3c.errors import UserError
from dba3c.metrics import reader as reader_module
from dba3c.metrics.reader import RunReader, whole_run
from dba3c.runs.folder import RunFolder


def record(time_s, step=0, role="worker", rank=0, kind="event", **fields):
    return {"kind": kind, "time_s": time_s, "step": step, "role": role, "rank": rank, "incarnation": 0, **fields}


def line(time_s, **fields):
    return json.dumps(record(time_s, **fields)).encode() + b"\n"


def empty_run(tmp_path):
    (tmp_path / "metrics").mkdir()
    return RunReader(RunFolder(tmp_path)), tmp_path / "metrics"


def times(reader):
    return [found["time_s"] for found in reader.poll()]


def test_each_poll_gives_only_what_is_new(tmp_path):
    reader, metrics = empty_run(tmp_path)
    path = metrics / "worker-0.jsonl"
    path.write_bytes(line(1.0) + line(2.0))
    assert times(reader) == [1.0, 2.0]
    assert times(reader) == []
    with path.open("ab") as file:
        file.write(line(3.0))
    assert times(reader) == [3.0]


def test_files_are_merged_by_time_and_may_appear_late(tmp_path):
    reader, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").write_bytes(line(1.0) + line(4.0))
    (metrics / "server-0.jsonl").write_bytes(line(2.0) + line(3.0))
    assert times(reader) == [1.0, 2.0, 3.0, 4.0]
    (metrics / "worker-1.jsonl").write_bytes(line(2.5))
    assert times(reader) == [2.5]


def test_a_line_without_its_end_waits_for_it(tmp_path):
    reader, metrics = empty_run(tmp_path)
    path, whole = metrics / "worker-0.jsonl", line(2.0)
    path.write_bytes(line(1.0) + whole[:20])
    assert times(reader) == [1.0]
    with path.open("ab") as file:
        file.write(whole[20:])
    assert times(reader) == [2.0] and reader.bad_lines == {}


def test_lines_that_are_no_records_are_skipped_and_counted(tmp_path):
    reader, metrics = empty_run(tmp_path)
    garbage = [b'{"kind": "step", "time', b"\x00\x00\x00", b"[1, 2]", b"\xff\xfe", b'{"kind": "sum", "time_s": 1}']
    not_a_time = [json.dumps(record(1.0) | {"time_s": None}).encode(), b'{"kind":"event","time_s":NaN,"step":1}']
    lines = b"".join(bad + b"\n" for bad in (*garbage, *not_a_time))
    (metrics / "worker-0.jsonl").write_bytes(line(1.0) + lines + b"\n" + line(2.0))
    assert times(reader) == [1.0, 2.0]
    assert reader.bad_lines == {"worker-0.jsonl": 7}


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "step", "accepted": "x"},
        {"kind": "step", "loss_total": [1.0]},
        {"kind": "step", "window_s": None},
        {"kind": "step", "sections_s": {"waiting": "long"}},
        {"kind": "step", "sections_s": 3.0},
        {"kind": "server", "data_points_total": "many"},
        {"kind": "server", "not_finite": {"update_norm": None}},
        {"kind": "episode", "score": "x"},
        {"kind": "episode", "score": float("nan")},
        {"kind": "episode", "score": 10**400},
        {"kind": "evaluation", "checkpoint_step": "newest"},
        {"kind": "evaluation", "interval_95": 5.0},
        {"kind": "evaluation", "interval_95": [1.0, "x"]},
        {"kind": ["step"]},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_makes_a_bad_line(tmp_path, fields):
    reader, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").write_bytes(line(1.0, **fields) + line(2.0))
    assert times(reader) == [2.0] and reader.bad_lines == {"worker-0.jsonl": 1}


def test_null_for_what_was_not_finite_and_fields_of_a_later_version_make_no_bad_line(tmp_path):
    reader, metrics = empty_run(tmp_path)
    fields = {"loss_total": None, "not_finite": {"loss_total": 1}, "mood": "good", "sections_s": {"waiting": 1.0}}
    (metrics / "worker-0.jsonl").write_bytes(line(1.0, kind="step", **fields))
    assert times(reader) == [1.0] and reader.bad_lines == {}


def test_brackets_without_end_are_a_bad_line(tmp_path):
    reader, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").write_bytes(b"[" * 200_000 + b"\n" + line(2.0))
    assert times(reader) == [2.0] and reader.bad_lines == {"worker-0.jsonl": 1}


@pytest.mark.parametrize(("status", "lines"), [("broken", 1), ("live", 0)])
def test_a_torn_last_line_is_told_of_a_run_that_is_over(tmp_path, monkeypatch, status, lines):
    _, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").write_bytes(line(1.0) + line(2.0)[:20])
    run, told = RunFolder(tmp_path), []
    monkeypatch.setattr(run, "status", lambda: status)
    assert [found["time_s"] for found in whole_run(run, told.append)] == [1.0]
    assert told == [f"{tmp_path}: worker-0.jsonl has lines that are not records (1); they are skipped"][:lines]


def test_small_chunks_read_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "_CHUNK_BYTES", 150)
    reader, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").write_bytes(b"".join(line(float(i)) for i in range(20)))
    assert times(reader) == [float(i) for i in range(20)]


def test_a_line_longer_than_any_record_is_stepped_over(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "_CHUNK_BYTES", 150)
    reader, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").write_bytes(line(1.0) + b"x" * 1000 + b"\n" + line(2.0))
    assert times(reader) == [1.0, 2.0]
    assert reader.bad_lines["worker-0.jsonl"] >= 1


def test_a_file_that_looks_shorter_than_it_was_is_not_read_again(tmp_path):
    reader, metrics = empty_run(tmp_path)
    path = metrics / "worker-0.jsonl"
    path.write_bytes(line(1.0) + line(2.0))
    assert times(reader) == [1.0, 2.0]
    path.write_bytes(line(1.0))
    assert times(reader) == []
    path.write_bytes(line(1.0) + line(2.0) + line(3.0))
    assert times(reader) == [3.0]


def test_a_clock_set_back_keeps_the_order_of_the_file(tmp_path):
    reader, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").write_bytes(line(5.0, step=1) + line(4.0, step=2))
    (metrics / "worker-1.jsonl").write_bytes(line(4.5, step=3))
    assert [found["step"] for found in reader.poll()] == [3, 1, 2]


@pytest.mark.parametrize("away", ["metrics", "metrics/worker-1.jsonl"])
def test_a_run_that_is_read_as_a_whole_is_not_taken_for_less_than_it_is(tmp_path, monkeypatch, away):
    _, metrics = empty_run(tmp_path)
    for rank in (0, 1):
        (metrics / f"worker-{rank}.jsonl").write_bytes(line(1.0))

    def asked(real):
        def look(path, *given, **options):
            if path == tmp_path / away:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(path, *given, **options)

        return look

    for name in ("open", "iterdir"):
        monkeypatch.setattr(Path, name, asked(getattr(Path, name)))
    with pytest.raises(UserError, match=rf"{Path(away).name} cannot be read \(Input/output error\)"):
        list(whole_run(RunFolder(tmp_path)))


def test_a_run_without_metrics_yet_has_no_records(tmp_path):
    assert times(RunReader(RunFolder(tmp_path))) == []


def test_a_file_that_cannot_be_opened_is_named_and_tried_again(tmp_path):
    reader, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").mkdir()
    (metrics / "worker-1.jsonl").write_bytes(line(1.0))
    assert times(reader) == [1.0]
    assert list(reader.unreadable) == ["worker-0.jsonl"]
    (metrics / "worker-0.jsonl").rmdir()
    (metrics / "worker-0.jsonl").write_bytes(line(2.0))
    assert times(reader) == [2.0] and reader.unreadable == {}


def test_after_a_clock_was_set_back_records_keep_their_distances(tmp_path):
    reader, metrics = empty_run(tmp_path)
    (metrics / "worker-0.jsonl").write_bytes(b"".join(map(line, (100.0, 101.0, 102.0, 42.0, 43.0, 40.5, 44.0))))
    assert times(reader) == [100.0, 101.0, 102.0, 102.0, 103.0, 103.0, 104.0]
