import contextlib
import errno
import gc
import math
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

from param_servers import replica
from param_servers.checkpoint import files, writer
from param_servers.checkpoint.files import find_newest, read_manifest
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import CheckpointError, ConfigError, LastStepsLost, RunBroken, RunStopped
from param_servers.exchange import MOST_REJECTED, Receipt
from param_servers.layout import FlatLayout
from param_servers.replica import LocalExchange
from param_servers.servers import shard as shards
from param_servers.timeouts import AwakeClock
from tests.param_servers.checkpoint.simulated_disk import SmallDisk
from tests.refusals import refusing

LAYOUT = FlatLayout.of({"weight": (3, 4), "bias": (5,)})
CONFIG = OptimizerConfig(optimizer="adam", learning_rate="linear:0.1->0@100")
GRADIENTS = torch.randn(20, LAYOUT.numel, generator=torch.Generator().manual_seed(0))


def exchange(**options):
    initial = torch.linspace(-1, 1, LAYOUT.numel)
    return LocalExchange(layout=LAYOUT, initial_parameters=initial, optimizer_config=CONFIG, **options)


def train(local, steps):
    for _ in range(steps):
        pulled = local.pull()
        assert local.push(GRADIENTS[pulled.step], pulled.step, 5).accepted
    return local.pull()


def test_pulled_parameters_stay_constant_until_the_next_pull():
    local = exchange()
    pulled = local.pull()
    before = pulled.parameters.clone()
    local.push(GRADIENTS[0], 0, 5)
    assert torch.equal(pulled.parameters, before)
    assert not torch.equal(local.pull().parameters, before)


def test_checkpoints_cost_a_process_alone_no_further_copy_of_its_parameters(tmp_path):
    def copies(**options):
        layout = FlatLayout.of({"weight": (12347,)})  # a length that nothing else has
        local = LocalExchange(layout=layout, initial_parameters=torch.zeros(12347), optimizer_config=CONFIG, **options)
        held = sum(type(each) is torch.Tensor and each.shape == (12347,) for each in gc.get_objects())
        local.close()
        return held

    assert copies(checkpoint_dir=tmp_path) == copies() > 2


def test_gradients_that_are_stale_or_not_finite_or_of_another_length_are_answered():
    local = exchange()
    train(local, 1)
    bad = GRADIENTS[1].clone()
    bad[3] = math.inf
    assert local.push(GRADIENTS[0], 0, 5) == Receipt(False, 1, "stale")
    assert local.push(bad, 1, 5) == Receipt(False, 1, "non-finite")
    assert local.push(torch.full_like(bad, 3e38), 1, 5) == Receipt(False, 1, "non-finite")
    assert local.push(GRADIENTS[1][:4], 1, 5) == Receipt(False, 1, "wrong-length")
    assert local.pull().data_points == 5


def test_data_points_that_are_no_whole_number_are_refused_before_the_update_and_numpys_and_a_tensors_are_some(tmp_path):
    local = exchange(checkpoint_dir=tmp_path)
    pulled = local.pull()
    for wrong in (5.0, -1, "5", None):
        with pytest.raises(ConfigError, match="data_points must be a whole number from 0 on, got"):
            local.push(GRADIENTS[0], pulled.step, wrong)
    assert local.push(GRADIENTS[0], pulled.step, np.int64(5)).accepted
    assert local.push(GRADIENTS[1], local.pull().step, torch.tensor(5)).accepted
    local.close()
    assert read_manifest(find_newest(tmp_path))["data_points"] == 10


def test_a_run_whose_gradients_are_never_finite_ends():
    local = exchange()
    with pytest.raises(RunBroken, match="none of the last 100 gradients was finite, the newest of step 0: "):
        for _ in range(MOST_REJECTED):
            local.push(torch.full((LAYOUT.numel,), math.nan), local.pull().step, 1)


def test_a_resumed_run_ends_bit_equal_to_one_that_was_not_interrupted(tmp_path):
    def stop(step, data_points):
        return "7 steps" if step >= 7 else None

    events = []
    config = ExchangeConfig(checkpoint_every_steps=3, keep_checkpoints=2)
    options = {"exchange_config": config, "checkpoint_dir": tmp_path}
    first = exchange(should_stop=stop, on_event=events.append, **options)
    with pytest.raises(RunStopped, match="7 steps"):
        train(first, 20)
    first.close()
    assert events[-1]["event"] == "checkpoint" and (tmp_path / "step-7").is_dir()
    second = exchange(**options)
    assert second.pull().step == 7
    whole = exchange()
    assert torch.equal(train(second, 5).parameters, train(whole, 12).parameters)
    second.close()


def test_the_last_checkpoint_replaces_none_that_another_rank_wrote_of_the_same_step_or_a_later_one(tmp_path):
    others, silent = (exchange(checkpoint_dir=tmp_path) for _ in range(2))
    train(others, 3)
    others.replica.term = 1
    others.replica.finish()
    for steps, newest in ((2, (3, 1)), (1, (3, 1)), (1, (4, 0))):
        train(silent, steps)
        silent.replica.finish()
        manifest = read_manifest(find_newest(tmp_path))
        assert (manifest["step"], manifest["term"]) == newest


def test_what_a_writer_that_was_killed_has_left_costs_the_next_checkpoint_no_room(tmp_path, monkeypatch):
    left = tmp_path / "step-9.term-0.tmp" / "shard-0-of-1.safetensors"
    left.parent.mkdir()
    left.write_bytes(bytes(500))
    SmallDisk(monkeypatch, tmp_path, room=700)
    local = exchange(checkpoint_dir=tmp_path, exchange_config=ExchangeConfig(checkpoint_every_steps=2))
    train(local, 2)
    assert local.replica.finish() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]
    local.close()


def test_what_a_survivor_that_was_killed_has_left_goes_in_the_next_life(tmp_path):
    config = ExchangeConfig(exchange="allreduce", num_workers=4, checkpoint_every_steps=2)
    first = exchange(checkpoint_dir=tmp_path, exchange_config=config)
    train(first, 2)
    first.close()
    term = read_manifest(find_newest(tmp_path))["term"]
    (tmp_path / f"step-3.term-{term + 3}.tmp").mkdir()  # of rank 3, the first that was left
    second = exchange(checkpoint_dir=tmp_path, exchange_config=config)
    train(second, 2)
    assert second.replica.finish() == ""
    second.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-4"]


def test_a_process_that_fails_leaves_all_its_steps_to_the_next_one(tmp_path):
    local = exchange(checkpoint_dir=tmp_path)
    train(local, 3)
    local.close()
    assert exchange(checkpoint_dir=tmp_path).pull().step == 3


def test_a_damaged_checkpoint_that_cannot_be_renamed_is_one_line(monkeypatch, tmp_path):
    for _ in range(2):
        local = exchange(checkpoint_dir=tmp_path)
        train(local, 1)
        local.close()
    (tmp_path / "step-2" / "manifest.json").write_text("{")

    read_only = refusing(errno.EROFS)

    monkeypatch.setattr(os, "rename", read_only)
    with pytest.raises(CheckpointError, match="^a damaged checkpoint cannot be renamed: .*Read-only file system$"):
        exchange(checkpoint_dir=tmp_path)


@pytest.mark.parametrize("of_part", [0, 4, 16])
def test_ctrl_c_in_the_middle_of_an_update_comes_after_it(monkeypatch, tmp_path, of_part):
    monkeypatch.setattr(shards, "LARGEST_PART", 4)
    whole, interrupted = exchange(), exchange(checkpoint_dir=tmp_path)
    update_part = interrupted.replica.shard.update_part

    def pressed(part, *update):
        update_part(part, *update)
        if part.start == of_part:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(interrupted.replica.shard, "update_part", pressed)
    with pytest.raises(KeyboardInterrupt):
        train(interrupted, 1)
    interrupted.close()
    for local in (interrupted, exchange(checkpoint_dir=tmp_path)):
        pulled = local.pull()
        assert (pulled.step, pulled.data_points) == (1, 5)
        assert torch.equal(pulled.parameters, train(whole, 1 - whole.pull().step).parameters)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_checkpoints_stay_in_their_folder_when_the_program_goes_to_another(monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    local = exchange(checkpoint_dir="kept", exchange_config=ExchangeConfig(checkpoint_every_steps=1))
    train(local, 1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    train(local, 1)
    local.close()
    assert find_newest(tmp_path / "kept").name == "step-2" and not list((tmp_path / "elsewhere").iterdir())


def test_a_damaged_checkpoint_is_named_and_renamed_where_a_run_goes_on_from_the_one_before(tmp_path):
    told = []
    for steps in (2, 3):
        local = exchange(checkpoint_dir=tmp_path)
        train(local, steps)
        local.close()
    (tmp_path / "step-5" / "shard-0-of-1.safetensors").write_bytes(b"torn")
    assert exchange(checkpoint_dir=tmp_path, on_event=told.append).pull().step == 2
    assert [event["event"] for event in told] == ["checkpoint_skipped", "restored"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-5.aside-1"]


def test_a_checkpoint_that_another_rank_publishes_while_the_newest_is_loaded_is_not_set_aside(tmp_path, monkeypatch):
    survivor = exchange(checkpoint_dir=tmp_path)
    train(survivor, 2)
    survivor.replica.finish()
    (tmp_path / "step-3").mkdir()
    train(survivor, 2)

    def loads(path):
        survivor.close()
        return files.load_checkpoint(path)

    monkeypatch.setattr(replica, "load_checkpoint", loads)
    assert exchange(checkpoint_dir=tmp_path).pull().step == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3.aside-1", "step-4"]


def test_a_last_checkpoint_that_cannot_be_written_is_told_with_what_is_lost(tmp_path):
    folder = tmp_path / "checkpoints"
    local = exchange(checkpoint_dir=folder, should_stop=lambda step, data_points: "enough" if step == 3 else None)
    folder.touch()  # a file where the folder should be
    with pytest.raises(LastStepsLost, match=r"^enough; the last checkpoint .* all steps since 0 are lost$"):
        train(local, 3)
    folder.unlink()
    local.close()
    local.close()
    assert not folder.exists()  # what was told to be lost is not saved after all


def test_a_loop_that_is_over_is_told_when_its_steps_cannot_be_saved_unless_it_has_failed_itself(tmp_path):
    for failure in (None, ZeroDivisionError):
        folder = tmp_path / f"checkpoints of {failure}"
        local = exchange(checkpoint_dir=folder)
        train(local, 3)
        folder.touch()
        with pytest.raises(failure or LastStepsLost), contextlib.closing(local):
            if failure:
                raise failure
        local.close()


def test_a_process_that_was_stopped_while_it_wrote_its_last_checkpoint_has_not_lost_it(tmp_path, monkeypatch):
    local, write = exchange(checkpoint_dir=tmp_path), files.write_shard
    train(local, 3)
    begun, may_write = threading.Event(), threading.Event()

    def slow(*what):
        begun.set()
        assert may_write.wait(60)
        return write(*what)

    def suspended_for_an_hour():
        if begun.is_set():
            may_write.set()
            return time.monotonic() + 3600
        return time.monotonic()

    monkeypatch.setattr(writer, "write_shard", slow)
    monkeypatch.setattr(replica, "clock_of_a_loop", lambda: AwakeClock(1.0, suspended_for_an_hour))
    assert local.replica.finish() == "" and local.replica._safe == 3


def test_what_was_committed_is_reported_at_the_latest_when_it_closes():
    reports = []
    local = exchange(on_report=reports.append)
    train(local, 2)
    local.close()
    assert sum(report["commits"] for report in reports) == 2
    assert reports[-1]["data_points_total"] == 10 and reports[-1]["learning_rate"] == pytest.approx(0.09)


class OnTheGpu(torch.Tensor):
    """A gradient as on CUDA: to NumPy only over the CPU."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.numpy:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result.as_subclass(torch.Tensor) if function is torch.Tensor.to else result


@pytest.mark.parametrize("as_elsewhere", [lambda flat: flat.as_subclass(OnTheGpu), lambda flat: flat.bfloat16()])
def test_a_gradient_may_lie_on_another_device_or_have_another_float_type(as_elsewhere):
    flat = torch.linspace(-1, 1, LAYOUT.numel).bfloat16().float()
    here, elsewhere = exchange(), exchange()
    here.push(flat, here.pull().step, 5)
    assert elsewhere.push(as_elsewhere(flat), elsewhere.pull().step, 5).accepted
    assert torch.equal(here.pull().parameters, elsewhere.pull().parameters)
