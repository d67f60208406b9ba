"""Observations on the wire: what is packed is what is unpacked, and nothing else is believed."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from dba3c.central.wire import VALID, WHOLE, GroupShape, pack_step, unpack_older
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from param_servers.errors import BadMessage

IMAGES = GroupShape(
    num_envs=3, frame_stack=2, observation_shape=(2, 3, 3), dtype="uint8", action_shape=(), action_dtype="int64"
)
NOTHING = np.zeros(3, bool)


def packed(shape: GroupShape, whole: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    observation = (
        np.random.default_rng(0).integers(0, 255, (shape.num_envs, *shape.observation_shape)).astype(shape.dtype)
    )
    buffer = np.zeros(shape.most_bytes, np.uint8)
    ends = (NOTHING, NOTHING, ~NOTHING)
    length = pack_step(shape, buffer, observation, np.array([1, -2, 0.5], np.float32), ends, np.array(whole))
    return observation, buffer[:length]


def test_a_step_comes_out_as_it_went_in() -> None:
    observation, message = packed(IMAGES, [True, False, True])
    (fixed,) = message[: IMAGES.fixed_bytes].view(IMAGES.fixed)
    assert fixed["flags"].tolist() == [VALID | WHOLE, VALID, VALID | WHOLE]
    assert fixed["reward"].tolist() == [1.0, -2.0, 0.5]
    assert np.array_equal(fixed["frames"], observation[:, 1:])
    whole, older = unpack_older(IMAGES, message, fixed["flags"])
    assert whole.tolist() == [0, 2]
    assert np.array_equal(older[:, 0], observation[[0, 2], :1])


def test_a_step_in_which_nothing_began_sends_the_newest_frame_only() -> None:
    _, message = packed(IMAGES, [False] * 3)
    assert len(message) == IMAGES.fixed_bytes == 28 + 3 * 4 + 4  # 27 bytes of frames and 3 of flags, padded for float32


def test_lengths_that_cannot_be_are_refused_before_anything_is_taken() -> None:
    for length in (0, IMAGES.fixed_bytes - 1, IMAGES.most_bytes + 1, 1 << 40):
        with pytest.raises(BadMessage, match="observation of"):
            IMAGES.check_length(length)


@pytest.mark.parametrize("change", [-1, 1, 5])
def test_a_length_that_does_not_fit_its_flags_is_refused(change: int) -> None:
    _, message = packed(IMAGES, [True, False, False])
    longer = np.concatenate([message, np.zeros(8, np.uint8)])[: len(message) + change]
    with pytest.raises(BadMessage):
        unpack_older(IMAGES, longer, np.array([VALID | WHOLE, VALID, VALID], np.uint8))


def test_flags_that_promise_more_than_there_is_are_refused() -> None:
    _, message = packed(IMAGES, [False] * 3)
    with pytest.raises(BadMessage):
        unpack_older(IMAGES, message, np.full(3, VALID | WHOLE, np.uint8))


def test_the_fingerprint_tells_different_environments_apart() -> None:
    cartpole = GroupShape.of(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), 8, 1)
    pendulum = GroupShape.of(spaces.Box(-1, 1, (4,), np.float32), spaces.Box(-2, 2, (1,), np.float32), 8, 1)
    assert len({cartpole.fingerprint, pendulum.fingerprint, IMAGES.fingerprint}) == 3
    assert (cartpole.action_dtype, pendulum.action_dtype) == ("int64", "float32")


def test_observations_that_are_no_boxes_are_refused() -> None:
    with pytest.raises(UserError, match="cannot be sent"):
        GroupShape.of(spaces.Discrete(5), spaces.Discrete(2), 8, 1)


def test_of_football_s_map_the_newest_of_four_frames_travels() -> None:
    football = EnvironmentConfig(env_id="football/academy_empty_goal_close")
    assert football.frames_per_observation == 4
    assert replace(football, football_observation="simple115v2").frames_per_observation == 1
    shape = GroupShape.of(spaces.Box(0, 255, (16, 72, 96), np.uint8), spaces.Discrete(19), 2, 4)
    assert shape.fixed_bytes == 2 * (4 * 72 * 96 + 4 + 1) + 2  # padded for the next message
