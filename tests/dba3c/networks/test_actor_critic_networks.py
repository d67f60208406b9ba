"""The feed-forward networks: shapes, counts, dtypes, initialisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from dba3c.environments.spaces import MixedSpace, NormalizedImage
from dba3c.errors import UserError
from dba3c.networks import ActorCriticNetwork, build_network
from dba3c.networks.q_networks import build_q_network
from dba3c.networks.registry import fitting_network
from dba3c.networks.sac_networks import SacNetwork
from dba3c.networks.torsos import (
    NATURE_SMALLEST_SIDE,
    SMALLEST_SIDE,
    ConvolutionalTorso,
    ResidualTorso,
    pixels,
    split,
)

GRAY = spaces.Box(0, 255, (4, 84, 84), np.uint8)
RGB = spaces.Box(0, 255, (12, 84, 84), np.uint8)
VECTOR = spaces.Box(-1, 1, (4,), np.float32)


MIXED = MixedSpace([(4, 84, 84), (1, 36, 36)], 3)


IMAGES_ALONE = MixedSpace([(3, 36, 36), (1, 36, 36)], 0)
"""A Dict of them, without a number beside."""


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def frames(space: spaces.Box, batch: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, *space.shape), dtype=torch.uint8, generator=generator)


def test_parameter_counts_are_those_of_the_docstrings() -> None:
    four = spaces.Discrete(4)
    expected = [
        ("dba3c", GRAY, 321_792, 322_437),
        ("dba3c", RGB, 331_392, 332_037),
        ("nature", GRAY, 1_684_128, 1_686_693),
        ("small", GRAY, 676_144, 677_429),
    ]
    for name, space, torso, whole in expected:
        network = build_network(name, space, four)
        assert (count(network.torso), count(network)) == (torso, whole)
    perceptron = build_network("mlp", VECTOR, spaces.Discrete(2))
    assert (count(perceptron.torso), count(perceptron)) == (8_960, 9_155)


def test_the_2017_network_on_rgb_is_the_1_33_megabytes_of_its_paper() -> None:
    assert round(count(build_network("dba3c", RGB, spaces.Discrete(4))) * 4 / 1e6, 2) == 1.33


@pytest.mark.parametrize("name", ["dba3c", "nature", "small"])
@pytest.mark.parametrize("space", [GRAY, RGB], ids=["gray", "rgb"])
def test_image_networks_give_float32_logits_and_values(name: str, space: spaces.Box) -> None:
    output = build_network(name, space, spaces.Discrete(6))(frames(space, 2))
    assert output.policy_logits.shape == (2, 6) and output.policy_logits.dtype == torch.float32
    assert output.value.shape == (2,) and output.value.dtype == torch.float32
    assert output.state == ()


def nature_by_hand(network: ActorCriticNetwork, observation: torch.Tensor) -> torch.Tensor:
    """The Nature network on [B, 4, 84, 84], as the paper's table reads."""
    torso = network.torso
    x = observation.float() / 255
    for layer, stride in zip(torso.convolutions, (4, 2, 1), strict=True):
        x = functional.relu(functional.conv2d(x, layer.weight, layer.bias, stride))
    x = functional.relu(torso.connected(x.permute(0, 2, 3, 1).reshape(len(x), -1)))
    return network.heads.policy(x)


def test_pixels_are_scaled_to_0_1_and_frames_are_channels_in_order() -> None:
    network, observation = build_network("nature", GRAY, spaces.Discrete(4)), frames(GRAY, 3)
    torch.testing.assert_close(network(observation).policy_logits, nature_by_hand(network, observation))


@pytest.mark.parametrize("name", ["small", "nature", "dba3c", "resnet", "football", "mlp"])
@pytest.mark.parametrize("channels", [4, 12])
def test_bytes_of_normalised_pixels_are_the_numbers_that_they_stand_for(name: str, channels: int) -> None:
    """Zeros and ones, once as bytes of normalised pixels, once of ordinary ones."""
    space, plain = NormalizedImage((channels, 84, 84)), spaces.Box(0, 255, (channels, 84, 84), np.uint8)
    normalized, other = (build_network(name, each, spaces.Discrete(4), seed=1) for each in (space, plain))
    ones = frames(plain, 2) > 127
    as_normalized = torch.where(ones, space.ZERO + space.LEVELS, space.ZERO).to(torch.uint8)
    expected = other(ones.to(torch.uint8) * 255)
    torch.testing.assert_close(normalized(as_normalized).policy_logits, expected.policy_logits)
    torch.testing.assert_close(normalized(as_normalized).value, expected.value)


@pytest.mark.parametrize(("channels", "padding"), [(1, 0), (3, 0), (4, 0), (4, 2), (12, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_become_numbers_in_channels_last_one_by_one(channels: int, padding: int, dtype: torch.dtype) -> None:
    images = frames(spaces.Box(0, 255, (channels, 6, 10), np.uint8), 3)
    images[0, :, 0, 0], images[0, :, 0, 1] = 255, 0
    seen = pixels(images[:, :, :, 1:], dtype, padding)  # also of a view
    assert seen.dtype == dtype and seen.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(seen[:, :channels].float(), images[:, :, :, 1:])
    assert not seen[:, channels:].any() and seen.shape[1] == channels + padding


def test_a_single_gray_image_and_one_of_more_channels_than_columns_are_seen_too() -> None:
    for shape in ((1, 84, 84), (64, 40, 40)):
        space = spaces.Box(0, 255, shape, np.uint8)
        assert build_network("small", space, spaces.Discrete(2))(frames(space, 2)).value.shape == (2,)


@pytest.mark.parametrize("name", ["dba3c", "nature", "small"])
def test_a_bfloat16_channels_last_torso_agrees_with_the_float32_one(name: str) -> None:
    full = build_network(name, GRAY, spaces.Discrete(4), seed=3)
    half = build_network(name, GRAY, spaces.Discrete(4), seed=3)
    half.torso.to(torch.bfloat16)
    half.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    observation = frames(GRAY, 4)
    features, rounded = full.torso(observation), half.torso(observation)
    assert rounded.dtype == torch.bfloat16
    assert half(observation).value.dtype == torch.float32
    torch.testing.assert_close(rounded.float(), features, atol=0.03 * features.abs().max().item(), rtol=0.02)


def test_the_same_seed_gives_the_same_parameters_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, second = (build_network("small", GRAY, spaces.Discrete(4), seed=7) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    other = build_network("small", GRAY, spaces.Discrete(4), seed=8)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name))
    assert not torch.equal(first.heads.policy.weight, other.heads.policy.weight)


def test_the_first_policy_is_nearly_uniform() -> None:
    logits = build_network("nature", GRAY, spaces.Discrete(4))(frames(GRAY, 8)).policy_logits
    assert (torch.softmax(logits, -1) - 0.25).abs().max() < 0.02


def test_weights_are_orthogonal() -> None:
    weight = build_network("nature", GRAY, spaces.Discrete(4)).torso.convolutions[0].weight.flatten(1)
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(32), atol=1e-5, rtol=0)


def test_every_parameter_receives_a_gradient() -> None:
    for name, space in (("dba3c", RGB), ("small", GRAY)):
        network = build_network(name, space, spaces.Discrete(4))
        output = network(frames(space, 2))
        (output.policy_logits.square().sum() + output.value.sum()).backward()
        assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_separate_value_torso_does_not_move_the_policy() -> None:
    network = build_network("mlp", VECTOR, spaces.Discrete(2))
    network(torch.randn(5, 4)).value.sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in network.torso.policy.parameters())


def test_a_continuous_action_has_a_mean_and_a_shared_deviation_per_dimension() -> None:
    network = build_network("mlp", VECTOR, spaces.Box(-1, 1, (3,)))
    logits = network(torch.randn(5, 4)).policy_logits
    assert logits.shape == (5, 6)
    assert torch.equal(logits[:, 3:], torch.zeros(5, 3))


def test_a_multi_discrete_action_has_logits_for_each_part() -> None:
    assert build_network("mlp", VECTOR, spaces.MultiDiscrete([3, 2]))(torch.randn(5, 4)).policy_logits.shape == (5, 5)


def test_the_default_network_follows_the_observations() -> None:
    for space, name in ((GRAY, "small"), (VECTOR, "mlp")):
        built, named = (build_network(each, space, spaces.Discrete(2)) for each in ("auto", name))
        assert built.state_dict().keys() == named.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "space", "message"),
    [
        ("natur", GRAY, "did you mean nature"),
        ("nature", VECTOR, "mlp"),
        ("nature", spaces.Box(0, 255, (4, 20, 20), np.uint8), "too small"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(name: str, space: spaces.Space, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build_network(name, space, spaces.Discrete(2))
    assert "\n" not in str(caught.value)


def test_actions_without_a_distribution_are_refused() -> None:
    with pytest.raises(UserError, match="MultiBinary"):
        build_network("mlp", VECTOR, spaces.MultiBinary(4))


def mixed(batch: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (batch, *MIXED.shape), np.uint8)
    for row in rows:
        MIXED.numbers(row)[:] = rng.normal(size=MIXED.vector_size)
    return rows


def test_a_mixed_observation_is_split_into_its_images_and_its_vector_even_where_it_is_not_aligned() -> None:
    rows = mixed(3)
    shifted = torch.from_numpy(np.concatenate([np.zeros(1, np.uint8), rows.reshape(-1)]))[1:].view(rows.shape)
    (first, second), vector = split(shifted, MIXED)
    for row, one, two, numbers in zip(rows, first, second, vector, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(MIXED.pictures(row), (one.numpy(), two.numpy()), strict=True))
        assert np.array_equal(MIXED.numbers(row), numbers.numpy())


@pytest.mark.parametrize("name", ["auto", "nature", "resnet_lstm"])
def test_networks_for_images_take_observations_with_images_and_a_vector(name: str) -> None:
    network = build_network(name, MIXED, spaces.Discrete(4), seed=1)
    network.torso.to(torch.bfloat16)
    observation = torch.from_numpy(mixed(2))
    logits = network(observation, network.initial_state(2)).policy_logits
    assert logits.shape == (2, 4) and logits.dtype == torch.float32
    for byte in (0, 4 * 84 * 84, MIXED.vector_at + 3):  # of each image, and the exponent of a number
        changed = observation.clone()
        changed[:, byte : byte + (1 if byte > MIXED.vector_at else 1296)] ^= 128
        assert not torch.equal(network(changed, network.initial_state(2)).policy_logits, logits), byte


def test_what_sees_vectors_refuses_images_in_one_line_and_r2d2_takes_them() -> None:
    with pytest.raises(UserError, match="is no vector: use a network for images"):
        build_network("mlp", MIXED, spaces.Discrete(4))
    assert build_q_network(MIXED, spaces.Discrete(4)).torso(torch.from_numpy(mixed(2))).shape == (2, 256)


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("name", ["auto", "nature", "resnet_lstm"])
def test_networks_for_images_take_several_without_a_number_beside_them(name: str, batch: int) -> None:
    network = build_network(name, IMAGES_ALONE, spaces.Discrete(4))
    observation = frames(IMAGES_ALONE, batch)
    assert network(observation, network.initial_state(batch)).policy_logits.shape == (batch, 4)
    images, vector = split(observation, IMAGES_ALONE)
    assert [image.shape[1:] for image in images] == [(3, 36, 36), (1, 36, 36)]
    assert (vector.shape, vector.dtype) == ((batch, 0), torch.float32)


@pytest.mark.parametrize("space", [spaces.Box(0, 255, (3, 7, 7), np.uint8), MixedSpace([(4, 84, 84), (3, 7, 7)], 2)])
def test_images_that_are_too_small_for_its_convolutions_get_residual_blocks_by_themselves(space: spaces.Box) -> None:
    with pytest.raises(UserError, match=r"images of 7×7 are too small for this network \(resnet takes them"):
        build_network("small", space, spaces.Discrete(4))
    observation = torch.zeros((2, *space.shape), dtype=torch.uint8)
    assert build_network("auto", space, spaces.Discrete(4))(observation).policy_logits.shape == (2, 4)
    assert build_q_network(space, spaces.Discrete(4)).torso(observation).shape == (2, 256)
    smallest = spaces.Box(0, 255, (1, SMALLEST_SIDE, SMALLEST_SIDE), np.uint8)
    assert fitting_network(smallest) == "small" and count(build_network("small", smallest, spaces.Discrete(4)))


@pytest.mark.parametrize("sides", [(35, 84), (36, 36)])
def test_r2d2_sees_images_through_nature_s_torso_unless_they_are_too_small_for_it(sides: tuple[int, int]) -> None:
    space = spaces.Box(0, 255, (1, *sides), np.uint8)
    torso = build_q_network(space, spaces.Discrete(4)).torso
    assert isinstance(torso, ResidualTorso if min(sides) < NATURE_SMALLEST_SIDE else ConvolutionalTorso)
    assert torso(frames(space, 2)).shape == (2, torso.features)


def test_sac_refuses_observations_with_images_without_naming_a_network_that_it_has_not() -> None:
    with pytest.raises(UserError, match="^SAC sees vectors, not "):
        SacNetwork(MIXED, spaces.Box(-1, 1, (2,)))
