"""A shard's way to the disk: what a roll-back undoes does not come back from it."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from param_servers import storage as storage_module
from param_servers.errors import SnapshotError
from param_servers.layout import FlatLayout
from param_servers.sharding import plan_shards
from param_servers.storage import Checkpoints

PLAN = plan_shards(FlatLayout.of({"w": (4,)}), 1)


def begin(storage: Checkpoints, step: int) -> None:
    """Version `step` is written, and its publication is with the thread, done or not."""
    published: list[bytes] = []

    def written(payload: bytes) -> None:
        storage.publish(step, 1, 10 * step, [json.loads(payload)], {}, 5, published.append)

    storage.write(step, 1, torch.full((4,), float(step)), {}, written)
    [(write, _)] = storage._pending
    write.result(10.0)
    storage.poll()


def finish(storage: Checkpoints) -> None:
    deadline_s = time.monotonic() + 10.0
    while storage.busy and time.monotonic() < deadline_s:
        storage.poll()


def test_a_roll_back_also_discards_a_checkpoint_that_is_just_being_published(tmp_path: Path) -> None:
    storage = Checkpoints(tmp_path, PLAN, 0, torch.zeros(4))
    begin(storage, 2)
    finish(storage)
    begin(storage, 4)
    storage.discard_after(2)
    finish(storage)
    assert storage.newest(lambda line: None) == (2, 20, 1)
    parameters, _ = storage.load(2)
    assert parameters.tolist() == [2.0] * 4
    storage.close()


def test_a_disk_that_cannot_discard_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: Path, step: int) -> None:
        raise PermissionError(13, "Permission denied", str(directory / "step-4"))

    monkeypatch.setattr(storage_module, "discard_after", refuse)
    storage = Checkpoints(tmp_path, PLAN, 0, torch.zeros(4))
    with pytest.raises(SnapshotError, match=r"^the checkpoints after step 2 cannot be deleted: .*step-4"):
        storage.discard_after(2)
    storage.close()


def test_a_disk_that_does_not_answer_is_waited_for_as_long_as_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(storage_module, "discard_after", lambda directory, step: answers.wait(60))
    monkeypatch.setattr(storage_module, "_DISCARD_TIMEOUT_S", 0.05)
    storage = Checkpoints(tmp_path, PLAN, 0, torch.zeros(4))
    with pytest.raises(SnapshotError, match=r"did not delete the checkpoints after step 2 within 0\.05 s"):
        storage.discard_after(2)
    storage.close()  # does not wait for it either
    assert not answers.is_set()
    answers.set()


HANGING_DISK = """
import sys, threading
from pathlib import Path
import torch
from param_servers import storage
from param_servers.layout import FlatLayout
from param_servers.sharding import plan_shards

storage._CLOSE_TIMEOUT_S = storage._DISCARD_TIMEOUT_S = 0.05
storage.discard_after = storage.write_shard = lambda *arguments: threading.Event().wait()
checkpoints = storage.Checkpoints(Path(sys.argv[1]), plan_shards(FlatLayout.of({"w": (4,)}), 1), 0, torch.zeros(4))
if sys.argv[2] == "discard":
    checkpoints.discard_after(2)
checkpoints.write(2, 1, torch.zeros(4), {}, print)
checkpoints.close()
print("closed")
"""


@pytest.mark.parametrize(("what", "code"), [("write", 0), ("discard", 1)])
def test_a_process_whose_disk_hangs_ends_all_the_same(tmp_path: Path, what: str, code: int) -> None:
    command = [sys.executable, "-c", HANGING_DISK, str(tmp_path), what]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert (ended.stdout == "closed\n") if code == 0 else ("SnapshotError: the disk did not delete" in ended.stderr)
