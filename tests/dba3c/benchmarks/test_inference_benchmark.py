"""The inference benchmarks run and write what they found; how fast anything is, no test asks."""

import pytest

from dba3c.benchmarks import batch_size, inference
from dba3c.errors import UserError


def test_the_service_is_measured_beside_the_same_environments():
    arguments = inference.Arguments(actors=(1,), environments=("blank",), envs_per_actor=4, seconds=2.0)
    (row,) = inference.run(arguments)
    assert row.steps_per_s > 0 and row.bare_steps_per_s > 0
    assert row.service_us > 0 and row.turns_per_message > 0


def test_observations_that_are_no_stacks_travel_whole():
    assert inference.shape_of("CartPole-v1", 2).frame_shape == (4,)
    assert inference.shape_of("blank", 2).frame_shape == (1, 84, 84)


def test_each_network_and_batch_size_is_measured_and_drawn_again_from_what_was_written(tmp_path):
    stem = tmp_path / "batch_size_cpu"
    arguments = batch_size.Arguments(networks=("small",), batches=(1, 3), seconds=0.01, repeats=2, output=stem)
    rows = batch_size.run(arguments)
    assert [(row.precision, row.batch) for row in rows] == [
        *(("float32", 1), ("float32", 3)),
        *(("bfloat16", 1), ("bfloat16", 3)),
    ]
    assert all(0 < row.lowest <= row.observations_per_s <= row.highest for row in rows)
    read = batch_size.read(stem.with_suffix(".csv"))
    assert [row[:4] for row in read] == [row[:4] for row in rows]
    for picture in batch_size.draw(read, tmp_path / "again"):
        assert picture.read_bytes() and stem.with_suffix(picture.suffix).exists()


def test_a_gpu_that_is_not_there_is_one_clear_line(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="--device cuda"):
        batch_size.run(batch_size.Arguments(device="cuda"))
