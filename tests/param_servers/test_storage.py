"""A shard's way to the disk: what a roll-back undoes does not come back from it."""

import json
import time
from pathlib import Path

import torch

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
