"""Append-only files, whatever the disk does; and the log from which a run, with all its lives, can be repeated."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from param_servers import line_file
from param_servers.config import OptimizerConfig
from param_servers.errors import ParamServersError
from param_servers.line_file import LineFile, cut_torn_tail
from param_servers.servers.audit import AuditLog, history, read_audit
from param_servers.servers.shard import Shard
from tests.param_servers.servers.replay import replay
from tests.refusals import refusing

SGD = OptimizerConfig(optimizer="sgd")


def randn(seed: int, numel: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


refused = refusing(errno.ENOSPC)


@pytest.mark.parametrize("torn", [b'{"kind": "com', b"\0" * 70_000, b""])
def test_what_a_crash_tore_is_passed_over_by_who_reads_and_cut_off_by_who_appends(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "commits.jsonl"
    first = AuditLog(path)
    first.write("rollback", term=1, step=0)
    first.close()
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(torn)
    assert [line["kind"] for line in read_audit(path)] == ["rollback"]
    second = AuditLog(path, life=1)
    second.write("stopped", reason="asked to")
    second.close()
    assert [(line["kind"], line["life"]) for line in read_audit(path)] == [("rollback", 0), ("stopped", 1)]
    assert path.read_bytes().startswith(whole + b'{"kind": "stopped"')


def test_a_file_without_any_newline_is_torn_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"{")
    descriptor = os.open(tmp_path / "file", os.O_RDWR)
    cut_torn_tail(descriptor)
    os.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b""


def test_a_write_cut_short_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real_write = tmp_path / "lines.jsonl", os.write
    sizes = iter([12, 3, 1 << 20])
    monkeypatch.setattr(line_file.os, "write", lambda descriptor, text: real_write(descriptor, text[: next(sizes)]))
    file = LineFile(path, pytest.fail)
    file.write([{"a": 1}, {"a": 2}, {"a": 3}])
    file.close()
    assert path.read_bytes() == b'{"a": 1}\n{"a": 2}\n{"a": 3}\n' and file.lost == 0


def test_a_disk_that_fills_within_a_line_leaves_whole_lines_and_gets_the_rest_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real_write, told = tmp_path / "lines.jsonl", os.write, list[str]()
    file = LineFile(path, told.append)
    room = iter([12, 3])

    def write(descriptor: int, text: bytes) -> int:
        size = next(room, 0)
        return real_write(descriptor, text[:size]) if size else refused()

    with monkeypatch.context() as full:
        full.setattr(line_file.os, "write", write)
        file.write([{"a": 1}, {"a": 2}, {"a": 3}])
        assert path.read_bytes() == b'{"a": 1}\n'
        file.write([{"a": 4}])
    assert len(told) == 1 and "No space left on device" in told[0]
    file.write([{"a": 5}])
    file.close()
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1, 2, 3, 4, 5]
    assert file.lost == 0 and len(told) == 1


def test_what_the_disk_refuses_for_too_long_is_counted_and_what_is_left_is_no_history_to_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "BACKLOG_LINES", 2)
    path, told = tmp_path / "commits.jsonl", list[str]()
    log = AuditLog(path, warn=told.append)
    with monkeypatch.context() as full:
        full.setattr(line_file.os, "write", refused)
        for step in range(5):
            log.write("commit", step=step, members=[[0, 0, step]], learning_rate=1.0)
    log.write("commit", step=5, members=[[0, 0, 5]], learning_rate=1.0)
    log.close()
    lines = list(read_audit(path))
    assert [line["step"] for line in lines] == [3, 4, 5]
    assert "No space left on device" in told[0] and "3 records could not be written" in told[1] and len(told) == 2
    with pytest.raises(ParamServersError, match="goes on with step 3 where step 0 should be"):
        replay(torch.zeros(2), SGD, lines, lambda *key: torch.zeros(2))


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"kind": "stopped"}\n[1, 2\n')
    with pytest.raises(ParamServersError, match=r"log, line 2 is no record: b'\[1, 2'"):
        list(read_audit(tmp_path / "log"))


def test_a_run_with_lives_is_repeated_though_workers_count_from_one_again_in_each(tmp_path: Path) -> None:
    gradients = {
        (life, worker, 0, n): randn(100 * life + 10 * worker + n, 20)
        for life in (0, 1)
        for worker in (0, 1)
        for n in (1, 2, 3)
    }
    path, expected = tmp_path / "commits.jsonl", Shard(torch.zeros(20), SGD)

    def live(life: int, first: int, steps: int, undone_after: int) -> None:
        """`steps` steps from the `first`; those from `undone_after` on are of no checkpoint when it dies."""
        log = AuditLog(path, life)
        log.write("rollback", term=life + 1, step=first, data_points=0)
        for number in range(1, steps + 1):
            step = first + number - 1
            log.write("commit", step=step, members=[[1, 0, number], [0, 0, number]], learning_rate=0.5)
            if step < undone_after:
                expected.apply([gradients[life, worker, 0, number] for worker in (0, 1)], 0.5)
        log.close()

    live(0, first=0, steps=3, undone_after=2)
    live(1, first=2, steps=2, undone_after=10)
    assert torch.equal(replay(torch.zeros(20), SGD, read_audit(path), lambda *key: gradients[key]), expected.parameters)


def test_a_rolled_back_history_leaves_the_commits_that_count() -> None:
    lines = [
        {"kind": "rollback", "term": 1, "step": 0},
        *({"kind": "commit", "term": 1, "step": step} for step in range(4)),
        {"kind": "expelled", "worker": 3},
        {"kind": "rollback", "term": 2, "step": 2},
        {"kind": "commit", "term": 2, "step": 2},
    ]
    assert [(line["term"], line["step"]) for line in history(lines)] == [(1, 0), (1, 1), (2, 2)]
