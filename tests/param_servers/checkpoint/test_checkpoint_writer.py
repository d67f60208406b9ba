"""A shard's way to the disk: nobody waits for it, and what a roll-back undoes does not come back from it."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from param_servers.checkpoint import files, writer
from param_servers.checkpoint.files import find_newest, load_checkpoint
from param_servers.checkpoint.writer import CheckpointFiles
from param_servers.errors import CheckpointError
from param_servers.layout import FlatLayout, plan_shards
from tests.param_servers.checkpoint.simulated_disk import SmallDisk
from tests.waiting import wait_until

PLAN = plan_shards(FlatLayout.of({"w": (4,)}), 1)


def begin(checkpoints: CheckpointFiles, step: int) -> None:
    """Version `step` is written, and its publication is with the thread, done or not."""
    published: list[dict[str, Any]] = []

    def written(entry: dict[str, Any]) -> None:
        checkpoints.publish(step, 1, 10 * step, [entry], 5, published.append)

    checkpoints.write(step, 1, torch.full((4,), float(step)), {}, written)
    [(write, _)] = checkpoints._pending
    write.result(60.0)
    checkpoints.poll()


def finish(checkpoints: CheckpointFiles) -> None:
    wait_until(lambda: checkpoints.poll() or not checkpoints.busy, "the disk")


def test_a_roll_back_also_sets_a_checkpoint_aside_that_is_just_being_published(tmp_path: Path) -> None:
    checkpoints = CheckpointFiles(tmp_path, PLAN, 0, torch.zeros(4))
    begin(checkpoints, 2)
    finish(checkpoints)
    begin(checkpoints, 4)
    done: list[Any] = []
    checkpoints.set_aside_after(
        2, lambda: checkpoints.load(2, lambda parameters, state: done.append(parameters.tolist()))
    )
    finish(checkpoints)
    assert checkpoints.newest(lambda line: None) == (2, 20, 1) and done == [[2.0] * 4]
    assert load_checkpoint(tmp_path / "step-4.aside-1").step == 4
    assert find_newest(tmp_path) == tmp_path / "step-2"
    checkpoints.close()


def test_a_checkpoint_of_which_one_slice_failed_makes_room_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_shards(FlatLayout.of({"w": (2000,)}), 2)
    shards = [CheckpointFiles(tmp_path, plan, index, torch.zeros(2000)) for index in (0, 1)]
    disk = SmallDisk(monkeypatch, tmp_path, room=6000)  # a slice has 4000, and a header

    def written(step: int) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        shards[0].make_room(step, 1)
        for checkpoints in shards:
            checkpoints.write(step, 1, torch.ones(1000), {}, answers.append)
            finish(checkpoints)
        return answers

    assert ["error" in answer for answer in written(2)] == [False, True]
    assert disk.used < 5000
    (tmp_path / "step-4.term-2.tmp").mkdir()  # of who took this term's place
    disk.room = 10_000
    files, answers = written(4), list[dict[str, Any]]()
    shards[0].publish(4, 1, 40, files, 5, answers.append)
    finish(shards[0])
    assert answers == [{"file": "step-4"}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-4.term-2.tmp"]
    for checkpoints in shards:
        checkpoints.close()


def test_a_server_that_was_given_no_directory_says_so_instead_of_ending() -> None:
    checkpoints, answers = CheckpointFiles(None, PLAN, 0, torch.zeros(4)), list[dict[str, Any]]()
    checkpoints.write(1, 1, torch.ones(4), {}, answers.append)
    assert answers == [{"error": "no directory for checkpoints"}]
    checkpoints.close()


def test_a_server_s_checkpoints_stay_in_their_folder_when_the_program_goes_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = CheckpointFiles("kept", PLAN, 0, torch.zeros(4))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    begin(checkpoints, 2)
    finish(checkpoints)
    assert find_newest(tmp_path / "kept") == tmp_path / "kept" / "step-2"
    checkpoints.close()


def test_a_disk_that_cannot_set_aside_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: Path, step: int) -> None:
        raise PermissionError(13, "Permission denied", str(directory / "step-4"))

    monkeypatch.setattr(writer, "set_aside_after", refuse)
    monkeypatch.setattr(files, "_PAUSES_S", (0.0,))
    checkpoints = CheckpointFiles(tmp_path, PLAN, 0, torch.zeros(4))
    checkpoints.set_aside_after(2, pytest.fail)
    with pytest.raises(CheckpointError, match=r"^the checkpoints after step 2 cannot be set aside: .*step-4"):
        finish(checkpoints)
    checkpoints.close()


def test_a_slow_load_leaves_the_loop_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, real = threading.Event(), writer.load_checkpoint
    checkpoints = CheckpointFiles(tmp_path, PLAN, 0, torch.zeros(4))
    begin(checkpoints, 2)
    finish(checkpoints)
    monkeypatch.setattr(writer, "load_checkpoint", lambda path: answers.wait(60) and real(path))
    loaded: list[Any] = []
    checkpoints.load(2, lambda parameters, state: loaded.append(parameters.tolist()))
    checkpoints.poll()  # does not wait
    assert checkpoints.busy and not loaded
    answers.set()
    finish(checkpoints)
    assert loaded == [[2.0] * 4]
    checkpoints.close()


def test_what_cannot_be_loaded_is_said_from_the_loop(tmp_path: Path) -> None:
    checkpoints = CheckpointFiles(tmp_path, PLAN, 0, torch.zeros(4))
    checkpoints.load(3, pytest.fail)
    with pytest.raises(CheckpointError, match="server 0 cannot find checkpoint step-3"):
        finish(checkpoints)
    checkpoints.close()


HANGING_DISK = """
import sys, threading
from pathlib import Path
from typing import Any
import torch
from param_servers.checkpoint import writer
from param_servers.layout import FlatLayout
from param_servers.layout import plan_shards
from param_servers.checkpoint.files import find_newest, load_checkpoint

writer.CLOSE_S = 0.05
writer.set_aside_after = writer.write_shard = lambda *arguments: threading.Event().wait()
plan = plan_shards(FlatLayout.of({"w": (4,)}), 1)
checkpoints = writer.CheckpointFiles(Path(sys.argv[1]), plan, 0, torch.zeros(4))
if sys.argv[2] == "set aside":
    checkpoints.set_aside_after(2, print)
else:
    checkpoints.write(2, 1, torch.zeros(4), {}, print)
checkpoints.close()
print("closed")
"""


@pytest.mark.parametrize("what", ["write", "set aside"])
def test_a_process_whose_disk_hangs_ends_all_the_same(tmp_path: Path, what: str) -> None:
    command = [sys.executable, "-c", HANGING_DISK, str(tmp_path), what]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout == "closed\n"
