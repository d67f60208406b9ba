"""Observations and actions of every kind: what the network gets, and what is refused with which line."""

import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Text, Tuple

from dba3c.environments import process_env
from dba3c.environments.spaces import ActionCodec, MixedSpace, ObservationCodec
from dba3c.errors import UserError


def image(*shape):
    return Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (image(84, 84), (1, 84, 84), np.uint8),
        (image(96, 96, 3), (3, 96, 96), np.uint8),
        (image(4, 84, 84), (4, 84, 84), np.uint8),
        (image(72, 96, 16), (16, 72, 96), np.uint8),
        (image(12, 8, 8), (12, 8, 8), np.uint8),
        (image(8, 8, 3), (3, 8, 8), np.uint8),
        (image(8, 8, 12), (12, 8, 8), np.uint8),
        (image(10, 10, 10), (10, 10, 10), np.uint8),
        (image(20, 10, 20), (20, 10, 20), np.uint8),
        (image(4, 96, 96, 3), (12, 96, 96), np.uint8),
        (image(2, 3, 72, 96), (6, 72, 96), np.uint8),
        (Box(-1, 1, (3, 2), np.float64), (6,), np.float32),
        (Box(0, 255, (128,), np.uint8), (128,), np.float32),
        (Discrete(16), (16,), np.float32),
        (MultiDiscrete([2, 3]), (5,), np.float32),
        (MultiBinary(4), (4,), np.float32),
        (Dict(goal=Box(-1, 1, (2,)), at=Discrete(3)), (5,), np.float32),
        (Tuple((Discrete(32), Discrete(11), Discrete(2))), (45,), np.float32),
    ],
)
def test_an_observation_space_becomes_what_networks_take(space, shape, dtype):
    codec = ObservationCodec("game", space)
    assert (codec.space.shape, codec.space.dtype) == (shape, dtype)
    row = np.zeros(shape, dtype)
    space.seed(0)
    codec.write(space.sample(), row)
    assert row.any()


def test_channels_come_first_and_pixels_stay():
    codec = ObservationCodec("game", image(5, 4, 3))
    observation = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    row = np.zeros((3, 5, 4), np.uint8)
    codec.write(observation, row)
    assert all(row[c, y, x] == observation[y, x, c] for c in range(3) for y in range(5) for x in range(4))


def test_stacked_frames_are_more_channels_in_their_order():
    codec = ObservationCodec("game", image(2, 5, 4, 3))
    observation = np.arange(120, dtype=np.uint8).reshape(2, 5, 4, 3)
    row = np.zeros((6, 5, 4), np.uint8)
    codec.write(observation, row)
    assert all(np.array_equal(row[3 * k + c], observation[k, :, :, c]) for k in range(2) for c in range(3))


@pytest.mark.parametrize("space", [image(4, 20, 10, 3), image(5, 4, 3), Box(0, 1, (8, 8, 12), np.uint8), Discrete(3)])
def test_what_a_process_has_written_is_taken_as_it_is(space):
    codec = ObservationCodec("game", space)
    again = ObservationCodec("game", process_env._space(process_env._described(codec.space)))
    assert again.space == codec.space
    space.seed(0)
    row, same = np.zeros(codec.space.shape, codec.space.dtype), np.zeros(codec.space.shape, codec.space.dtype)
    codec.write(space.sample(), row)
    again.write(row, same)
    assert np.array_equal(row, same)


def test_a_board_of_zeros_and_ones_is_as_bright_as_one_of_0_and_255():
    board = np.eye(6, dtype=np.uint8)
    for space, value in ((Box(0, 1, (6, 6), np.uint8), board), (Dict(board=Box(0, 1, (6, 6), np.uint8)), None)):
        codec = ObservationCodec("game", space)
        rows = np.zeros((1, *codec.space.shape), np.uint8)
        shown = {"board": board} if value is None else value
        assert not codec.write_all([shown], rows)
        codec.write(shown, rows[0])
        assert rows[0].reshape(6, 6).tolist() == (255 * board).tolist()
    codec, row = ObservationCodec("game", Box(0, 10, (6, 6), np.uint8)), np.zeros((1, 6, 6), np.uint8)
    codec.write(np.uint8(10) * board + np.uint8(7), row)  # 17 is beyond what its space allows
    assert sorted(set(row.reshape(-1).tolist())) == [175, 250]


def test_bytes_that_are_no_image_are_shown_by_their_bounds():
    codec, row = ObservationCodec("game", Box(0, np.array([255, 4, 1, 0]), dtype=np.uint8)), np.zeros(4, np.float32)
    codec.write(np.array([51, 1, 1, 0], np.uint8), row)
    assert row.tolist() == pytest.approx([0.2, 0.25, 1.0, 0.0])


@pytest.mark.parametrize(
    "space",
    [
        Dict({"b": Box(-9, 9, (2,)), "a": Discrete(3)}),
        Dict(goal=Box(-1, 1, (2, 3), np.float64), at=Dict(here=Discrete(3, start=-1), there=MultiBinary((2, 2)))),
        Tuple((Discrete(4), MultiDiscrete([2, 3], start=[5, -7]), Box(0, 255, (4,), np.int16))),
        MultiDiscrete([[2, 3], [4, 2]], np.int32),
        MultiBinary(4),
        Discrete(5, start=2),
    ],
)
def test_parts_follow_each_other_in_the_order_of_their_space(space):
    codec = ObservationCodec("game", space)
    space.seed(0)
    for _ in range(20):
        value, row = space.sample(), np.full(codec.space.shape, 7, np.float32)
        codec.write(value, row)
        assert row.tolist() == gymnasium.spaces.flatten(space, value).astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("space", "value", "row"),
    [
        (Discrete(2), np.True_, [0.0, 1.0]),
        (MultiDiscrete([2, 3], np.int32), np.array([1, 2]), [0.0, 1.0, 0.0, 0.0, 1.0]),
        (MultiDiscrete([2, 3], np.uint8), np.array([0, 1], np.uint16), [1.0, 0.0, 0.0, 1.0, 0.0]),
    ],
)
def test_a_number_of_another_dtype_that_is_in_its_space_is_taken(space, value, row):
    written = np.full(len(row), 7, np.float32)
    ObservationCodec("game", space).write(value, written)
    assert written.tolist() == row


BOX = Box(-9, 9, (5,), np.float32)


@pytest.mark.parametrize(
    ("space", "value", "line"),
    [
        (Dict(a=BOX), {"a": np.array([7.0], np.float32)}, r"observation['a'] of shape (1,) instead of (5,)"),
        (Dict(a=BOX), {"a": np.full(5, 1 + 2j)}, r"observation['a'] of dtype complex128 instead of float32"),
        (Dict(a=Box(0, 9, (2,), np.int64)), {"a": np.zeros(2)}, "of dtype float64 instead of int64"),
        (Dict(a=BOX), {"b": np.zeros(5)}, "observation without 'a'"),
        (Dict(a=BOX), np.zeros(5), "observation is a ndarray and no dictionary"),
        (Tuple((Dict(a=Discrete(2)),)), ({"a": 2},), r"observation[0]['a'] is 2, which is not in Discrete(2)"),
        (Tuple((BOX, BOX)), (np.zeros(5), np.zeros(5), np.zeros(5)), "observation of 3 parts instead of 2"),
        (Discrete(3), -1, "observation is -1, which is not in Discrete(3)"),
        (Discrete(3, start=5), 2, "observation is 2, which is not in Discrete(3, start=5)"),
        (image(8, 8, 3), np.full((8, 8, 3), 300, np.uint16), "observation with numbers that uint8 cannot hold"),
        (Discrete(3), 1.0, "observation of dtype float64 instead of int64"),
        (Discrete(3), np.array([1]), "observation of shape (1,) instead of ()"),
        (MultiDiscrete([2, 3]), np.array([1, 3]), "observation is [1, 3], which is not in MultiDiscrete([2 3])"),
        (MultiDiscrete([2, 3]), np.array([1]), "observation of shape (1,) instead of (2,)"),
        (MultiBinary(3), np.array([0, 2, 1]), "observation is [0, 2, 1], which is not in MultiBinary(3)"),
        (MultiBinary(3), np.array([1]), "observation of shape (1,) instead of (3,)"),
    ],
)
def test_a_part_that_does_not_fit_is_refused_by_its_name(space, value, line):
    codec = ObservationCodec("game", space)
    with pytest.raises(ValueError, match=re.escape(line)):
        codec.write(value, np.zeros(codec.space.shape, np.float32))


MIXED = Dict(
    arm=Tuple((Box(-1, 1, (2,)), Dict(eye=image(6, 5)))),
    goal=Discrete(3, start=1),
    rgb=image(8, 7, 3),
    side=image(2, 9, 9),
)


def test_images_inside_dicts_and_tuples_stay_images_and_all_else_is_one_vector():
    codec = ObservationCodec("game", MIXED)
    assert isinstance(codec.space, MixedSpace) and codec.space.dtype == np.uint8
    assert codec.space.images == ((1, 6, 5), (3, 8, 7), (2, 9, 9)) and codec.space.vector_size == 5
    MIXED.seed(1)
    value, row = MIXED.sample(), np.full(codec.space.shape, 7, np.uint8)
    codec.write(value, row)
    eye, rgb, side = codec.space.pictures(row)
    assert (eye[0] == value["arm"][1]["eye"]).all() and (side == value["side"]).all()
    assert (rgb == np.moveaxis(value["rgb"], 2, 0)).all()
    goal = np.eye(3, dtype=np.float32)[value["goal"] - 1]
    assert codec.space.numbers(row).tolist() == [*value["arm"][0].tolist(), *goal.tolist()]


def test_broken_numbers_beside_an_image_are_found_and_parts_are_named():
    codec = ObservationCodec("game", MIXED)
    batch = np.zeros((2, *codec.space.shape), np.uint8)
    value = MIXED.sample()
    codec.write(value, batch[0])
    assert not codec.may_be_broken(batch)
    value["arm"][0][1] = np.nan
    codec.write(value, batch[1])
    assert codec.may_be_broken(batch)
    codec.check_finite(batch[0])
    with pytest.raises(ValueError, match="NaN or infinite"):
        codec.check_finite(batch[1])
    value["arm"][1]["eye"] = np.zeros((5, 6), np.uint8)
    with pytest.raises(ValueError, match=re.escape("observation['arm'][1]['eye'] of shape (5, 6) instead of (6, 5)")):
        codec.write(value, batch[0])


@pytest.mark.parametrize(
    ("space", "line"),
    [
        (Text(5), "observation of type Text is not supported; Box, Discrete"),
        (Dict(web=Graph(Discrete(2), None)), r"observation\['web'\] of type Graph is not supported"),
    ],
)
def test_an_unsupported_observation_is_refused_with_what_is_supported(space, line):
    with pytest.raises(UserError, match=line) as caught:
        ObservationCodec("game", space)
    assert "\n" not in str(caught.value)


def test_integers_that_a_float_cannot_hold_are_rounded_as_floats_are():
    codec, row = ObservationCodec("game", Box(-np.inf, np.inf, (2,), np.float32)), np.zeros(2, np.float32)
    codec.write(np.array([20_000_001, 3]), row)
    assert row.tolist() == [20_000_000, 3]


def test_discrete_actions_start_where_the_environment_starts_them():
    codec = ActionCodec("game", Discrete(3, start=-1))
    assert codec.read_all(np.array([0, 1, 2])) == [-1, 0, 1]


def test_multi_discrete_actions_are_one_row_per_environment():
    codec = ActionCodec("game", MultiDiscrete([2, 3]))
    actions = codec.check(np.array([[1, 2], [0, 1]]), num_envs=2)
    assert [one.tolist() for one in codec.read_all(actions)] == [[1, 2], [0, 1]]


def test_box_actions_are_clipped_to_their_bounds():
    codec = ActionCodec("game", Box(-2, 2, (1,), np.float32))
    assert codec.read_all(codec.check(np.array([[5.0]], np.float32), 1))[0].tolist() == [2.0]


NO_ACTIONS = (MultiDiscrete([]), Box(0, 1, (0,)))


@pytest.mark.parametrize("space", [MultiBinary(3), Box(0, 1, (2, 2)), Dict(a=Discrete(2)), image(3), *NO_ACTIONS])
def test_an_unsupported_action_is_refused_with_what_is_supported(space):
    with pytest.raises(UserError, match=r"not supported; Discrete, MultiDiscrete \[K\] and float Box \[A\] are"):
        ActionCodec("game", space)


@pytest.mark.parametrize(
    ("space", "actions"),
    [(Discrete(3), np.zeros(3, np.int64)), (Discrete(3), np.zeros(2)), (Box(-1, 1, (2,)), np.zeros((2, 2), np.int64))],
)
def test_actions_of_a_wrong_shape_or_kind_are_refused(space, actions):
    with pytest.raises(UserError, match="actions must be"):
        ActionCodec("game", space).check(actions, num_envs=2)
