"""Checkpoints: whole or skipped, never lost by reading, and loadable into any number of shards."""

import errno
import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from param_servers.checkpoint import files
from param_servers.checkpoint.files import (
    find_newest,
    load_checkpoint,
    publish,
    read_manifest,
    set_aside_after,
    write_shard,
)
from param_servers.config import OptimizerConfig
from param_servers.errors import CheckpointError, CheckpointUnreadable
from param_servers.layout import FlatLayout, ShardPlan, plan_shards
from param_servers.servers.shard import Shard
from tests.param_servers.checkpoint.simulated_disk import SmallDisk

LAYOUT = FlatLayout.of({"a": (3, 2), "b": (5,), "c": (1,)})
CONFIG = OptimizerConfig(optimizer="adam", learning_rate="0.1")


def trained(plan: ShardPlan, steps: int = 2) -> list[Shard]:
    """Shards of one model after some steps; the same model for every plan, tensor by tensor."""
    slices = [*map(plan.slice_of, range(plan.num_shards))]
    shards = [Shard(_flat(plan, 0)[part], CONFIG) for part in slices]
    for step in range(steps):
        for shard, part in zip(shards, slices, strict=True):
            shard.apply([_flat(plan, step + 1)[part]], 0.1)
    return shards


def _flat(plan: ShardPlan, seed: int) -> torch.Tensor:
    canonical = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed))
    views = LAYOUT.views(canonical)
    return torch.cat([views[name].reshape(-1) for name in plan.layout.names])


def save(directory: Path, plan: ShardPlan, step: int, keep: int = 5) -> Path:
    entries = [
        write_shard(directory, step, 1, index, plan.num_shards, shard.published(), shard.optimizer_state())
        for index, shard in enumerate(trained(plan))
    ]
    return publish(directory, step, data_points=10 * step, term=1, plan=plan, files=entries, keep=keep)


@pytest.mark.parametrize(("wrote", "reads"), [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_a_checkpoint_of_k_shards_loads_into_any_number(tmp_path: Path, wrote: int, reads: int) -> None:
    path = save(tmp_path, plan_shards(LAYOUT, wrote), 4)
    checkpoint = load_checkpoint(path)
    assert (checkpoint.step, checkpoint.data_points) == (4, 40)
    plan = plan_shards(LAYOUT, reads)
    for index, expected in enumerate(trained(plan)):
        fresh = Shard(torch.zeros(expected.numel), CONFIG)
        fresh.load(*checkpoint.slice_for(plan, index))
        assert torch.equal(fresh.parameters, expected.parameters)
        for name, tensor in expected.optimizer_state().items():
            assert torch.equal(fresh.optimizer_state()[name], tensor), name
        for shard in (fresh, expected):  # and both take the same next step
            shard.apply([torch.ones(shard.numel)], 0.1)
        assert torch.equal(fresh.parameters, expected.parameters)


def test_the_newest_valid_checkpoint_is_found_and_torn_ones_are_named(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 2)
    for step in (9, 10, 11, 12):
        save(tmp_path, plan, step)
    (tmp_path / "step-12" / "manifest.json").unlink()
    shard = tmp_path / "step-11" / "shard-1-of-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    (tmp_path / "step-99.term-1.tmp").mkdir()
    skipped: list[str] = []
    assert find_newest(tmp_path, skipped.append) == tmp_path / "step-10"
    assert ["step-12" in skipped[0], "step-11" in skipped[1], len(skipped)] == [True, True, 2]


def test_a_file_of_another_size_than_the_manifest_says_is_torn_and_not_read(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 1)
    for step in (2, 4):
        save(tmp_path, plan, step)
    os.truncate(tmp_path / "step-4" / "shard-0-of-1.safetensors", 1 << 42)  # takes no room on the disk
    assert find_newest(tmp_path) == tmp_path / "step-2"
    with pytest.raises(CheckpointError, match="torn"):
        load_checkpoint(tmp_path / "step-4")


def test_checking_a_checkpoint_holds_one_file_at_a_time(tmp_path: Path) -> None:
    plan = plan_shards(FlatLayout.of({"a": (1 << 20,)}), 8)
    entries = [
        write_shard(tmp_path, 2, 1, index, 8, torch.zeros(part.stop - part.start), {})
        for index, part in enumerate(map(plan.slice_of, range(plan.num_shards)))
    ]
    publish(tmp_path, 2, data_points=1, term=1, plan=plan, files=entries, keep=1)
    tracemalloc.start()
    try:
        assert find_newest(tmp_path) == tmp_path / "step-2"
        assert tracemalloc.get_traced_memory()[1] < 3 * (1 << 19)  # a file has 1 << 19 bytes
    finally:
        tracemalloc.stop()


def test_a_slow_writer_of_an_older_term_leaves_the_files_of_a_newer_one_alone(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 1)
    (shard,) = trained(plan)
    newer = [write_shard(tmp_path, 4, 2, 0, 1, shard.published(), shard.optimizer_state())]
    save(tmp_path, plan, 2)  # in term 1
    publish(tmp_path, 4, data_points=40, term=2, plan=plan, files=newer, keep=5)
    assert load_checkpoint(tmp_path / "step-4").term == 2


def test_a_checkpoint_whose_other_shards_wrote_elsewhere_is_not_published(tmp_path: Path) -> None:
    whole = save(tmp_path, (plan := plan_shards(LAYOUT, 2)), 10)
    first, second = trained(plan)
    entries = [
        write_shard(folder, 20, 1, index, 2, shard.published(), shard.optimizer_state())
        for index, (shard, folder) in enumerate([(first, tmp_path), (second, tmp_path / "another host's")])
    ]
    with pytest.raises(OSError, match=r"has no shard-1-of-2.safetensors: all servers have to write into the same"):
        publish(tmp_path, 20, data_points=200, term=1, plan=plan, files=entries, keep=5)
    assert find_newest(tmp_path) == whole


@pytest.mark.parametrize("too_much", ["a slice", "shard-0-of-1.safetensors", "manifest.json"])
def test_what_does_not_fit_on_the_disk_leaves_nothing_there(tmp_path: Path, monkeypatch: Any, too_much: str) -> None:
    plan, real = plan_shards(LAYOUT, 1), files._sync

    def full(path: Path) -> None:  # NFS says it as late as this
        if path.name == too_much:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))
        real(path)

    with monkeypatch.context() as broken:
        SmallDisk(broken, tmp_path, room=0 if too_much == "a slice" else 1 << 20)
        broken.setattr(files, "_sync", full)
        with pytest.raises(OSError, match="No space left|quota"):
            save(tmp_path, plan, 2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert save(tmp_path, plan, 2) == find_newest(tmp_path)


def test_all_that_a_checkpoint_holds_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: Any) -> None:
    done: list[str] = []
    sync, rename = files._sync, os.rename

    def synced(path: Path) -> None:
        sync(path)
        done.append(path.name)

    def renamed(old: Path, new: Path) -> None:
        rename(old, new)
        done.append(f"named {new.name}")

    monkeypatch.setattr(files, "_sync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    save(tmp_path, plan_shards(LAYOUT, 2), 4)
    shards = [files.shard_file(shard, 2) for shard in range(2)]
    folder = files._unfinished(tmp_path, 4, 1).name
    assert done == [*shards, "manifest.json", folder, "named step-4", tmp_path.name]


DAMAGED = ["", "{", '{"format": 3}', "[]", '{"format": "param_servers checkpoint 1"}', "[" * 100_000]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_manifest_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    path = save(tmp_path, plan_shards(LAYOUT, 1), 1)
    (path / "manifest.json").write_text(damage)
    with pytest.raises(CheckpointError, match="step-1") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ('"b"', '"d"'),
        ('"data_points": 60', '"data_points": 62'),
        ('"step": 6', '"step": 2'),
        ('"term": 1', '"term": 1e999'),
        ('"cuts"', '"cats"'),
        ("bytes", "bites"),
    ],
)
def test_a_manifest_with_one_letter_changed_is_torn_and_the_checkpoint_before_is_taken(
    tmp_path: Path, said: str, instead: str
) -> None:
    plan, skipped = plan_shards(LAYOUT, 2), list[str]()
    before, path = save(tmp_path, plan, 3), save(tmp_path, plan, 6)
    text = (path / "manifest.json").read_text()
    assert said in text
    (path / "manifest.json").write_text(text.replace(said, instead))
    assert find_newest(tmp_path, skipped.append) == before
    (line,) = skipped
    assert "checkpoint step-6 is torn" in line


def test_a_manifest_that_lies_about_the_layout_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, plan_shards(LAYOUT, 1), 1)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]  # as in those that were written before 2026-11-28
    manifest["layout"] = [["a", [3, 2]]]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="torn"):
        load_checkpoint(path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(save(tmp_path, plan_shards(LAYOUT, 1), 1))
    other = plan_shards(FlatLayout.of({"a": (3, 2), "b": (6,)}), 1)
    with pytest.raises(CheckpointError, match="step-1 is of another network: its b is"):
        checkpoint.slice_for(other, 0)


def test_only_the_last_few_are_kept_and_abandoned_ones_go(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 1)
    (tmp_path / "step-1.term-1.tmp").mkdir()
    for step in range(1, 6):
        save(tmp_path, plan, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-5"]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def tear(path: Path) -> None:
    shard = next(path.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")


def test_a_step_reached_again_replaces_its_checkpoint_which_is_kept(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 1)
    for _ in range(3):
        save(tmp_path, plan, 3)
    tear(tmp_path / "step-3")
    save(tmp_path, plan, 3)
    assert find_newest(tmp_path) == tmp_path / "step-3"
    assert names(tmp_path) == ["step-3", "step-3.aside-1", "step-3.aside-2", "step-3.aside-3"]


def test_a_roll_back_renames_what_did_not_happen_and_what_is_damaged(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 1)
    for step in (2, 4, 6, 8):
        save(tmp_path, plan, step)
    tear(tmp_path / "step-8")
    set_aside_after(tmp_path, 4)
    assert find_newest(tmp_path) == tmp_path / "step-4"
    assert names(tmp_path) == ["step-2", "step-4", "step-6.aside-1", "step-8.aside-1"]
    assert load_checkpoint(tmp_path / "step-6.aside-1").step == 6


def test_old_ones_are_deleted_also_where_they_are_torn(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 1)
    for step in (2, 4):
        save(tmp_path, plan, step)
    tear(tmp_path / "step-2")
    save(tmp_path, plan, 6, keep=1)
    assert names(tmp_path) == ["step-6"]


def test_a_checkpoint_that_is_there_is_published_though_older_ones_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_shards(LAYOUT, 1)
    save(tmp_path, plan, 2)

    def stale(directory: Path) -> list[tuple[int, Path]]:
        raise OSError(errno.ESTALE, "Stale file handle", str(directory))

    with monkeypatch.context() as broken:
        broken.setattr(files, "_found", stale)
        assert save(tmp_path, plan, 4, keep=1) == tmp_path / "step-4"
    assert names(tmp_path) == ["step-2", "step-4"]
    save(tmp_path, plan, 6, keep=1)
    assert names(tmp_path) == ["step-6"]


def test_a_copy_under_another_step_s_name_is_no_checkpoint_of_that_step(tmp_path: Path) -> None:
    saved, told = save(tmp_path, plan_shards(LAYOUT, 1), step=3), list[str]()
    shutil.copytree(saved, tmp_path / "step-7")
    assert find_newest(tmp_path, told.append) == saved
    assert told == ["skipped: checkpoint step-7 is torn: its manifest is of step 3"]


def test_a_damaged_later_one_does_not_cost_the_one_that_was_just_written(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 1)
    for step in (10, 12):
        save(tmp_path, plan, step)
    tear(tmp_path / "step-12")
    save(tmp_path, plan, 11, keep=1)
    assert names(tmp_path) == ["step-11", "step-12"] and find_newest(tmp_path) == tmp_path / "step-11"


def test_where_no_checkpoint_is_whole_the_run_does_not_begin_anew(tmp_path: Path) -> None:
    plan = plan_shards(LAYOUT, 1)
    for step in (2, 4):
        tear(save(tmp_path, plan, step))
    with pytest.raises(
        CheckpointError, match="none of its checkpoints is whole .*step-4 is torn.*step-2 is torn"
    ) as error:
        find_newest(tmp_path)
    assert "\n" not in str(error.value) and names(tmp_path) == ["step-2", "step-4"]


class Refusing:
    """A file system that does not let names with `what` in them be read, so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, what: str, times: int) -> None:
        self.times, self.asked = times, 0
        real_open = Path.open

        def opened(path: Path, *how: Any, **named: Any) -> Any:
            if what in str(path):
                self.asked += 1
                if self.asked <= self.times:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return real_open(path, *how, **named)

        monkeypatch.setattr(Path, "open", opened)
        monkeypatch.setattr(files, "_PAUSES_S", (0.0,) * 4)


@pytest.mark.parametrize("what", ["step-4/manifest", "step-4/shard-1"])
def test_a_stale_handle_is_no_damage_it_is_tried_again(tmp_path: Path, monkeypatch: Any, what: str) -> None:
    plan = plan_shards(LAYOUT, 2)
    for step in (2, 4):
        save(tmp_path, plan, step)
    Refusing(monkeypatch, what, times=4)
    assert find_newest(tmp_path, pytest.fail) == tmp_path / "step-4"
    Refusing(monkeypatch, what, times=4)
    assert load_checkpoint(tmp_path / "step-4").step == 4


def test_a_checkpoint_that_cannot_be_read_is_refused_and_no_older_one_taken_for_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_shards(LAYOUT, 2)
    for step in (2, 4):
        save(tmp_path, plan, step)
    refusing = Refusing(monkeypatch, "step-4", times=1000)
    for read in (lambda: find_newest(tmp_path), lambda: load_checkpoint(tmp_path / "step-4")):
        with pytest.raises(CheckpointUnreadable, match="step-4 cannot be read, tried 5 times .*[Ss]tale") as error:
            read()
        assert "\n" not in str(error.value)
    with pytest.raises(CheckpointUnreadable):
        read_manifest(tmp_path / "step-4")
    assert refusing.asked == 15 and names(tmp_path) == ["step-2", "step-4"]


def test_an_empty_or_missing_directory_has_no_checkpoint(tmp_path: Path) -> None:
    assert find_newest(tmp_path) is None
    assert find_newest(tmp_path / "nowhere") is None


@pytest.mark.parametrize("name", ["/dev/zero", "../../elsewhere", "shard-0-of-2.safetensors"])
def test_a_manifest_that_names_other_files_than_its_shards_is_refused_and_none_is_opened(
    tmp_path: Path, name: str
) -> None:
    path = save(tmp_path, plan_shards(LAYOUT, 1), 3)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["files"][0] |= {"file": name, "bytes": 0}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="its manifest names other files than its shards"):
        load_checkpoint(path)


@pytest.mark.parametrize("what", ["device", "pipe"])
def test_a_shard_that_is_no_file_is_torn_and_not_waited_for(tmp_path: Path, what: str) -> None:
    path = save(tmp_path, plan_shards(LAYOUT, 1), 3)
    (shard,) = path.glob("shard-*")
    shard.unlink()
    shard.symlink_to("/dev/zero") if what == "device" else os.mkfifo(shard)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["files"][0]["bytes"] = 0
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="does not fit the manifest"):
        load_checkpoint(path)
