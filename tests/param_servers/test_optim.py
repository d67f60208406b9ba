import math

import numpy as np
import pytest
import torch

from param_servers.config import OptimizerConfig
from param_servers.errors import ConfigError
from param_servers.layout import FlatLayout
from param_servers.optim import (
    SliceOptimizer,
    clip_gradient,
    merge_states,
)


def step(optimizer, gradient, learning_rate):
    optimizer.step(slice(0, len(gradient)), gradient, learning_rate)


NAMES = ["rmsprop", "adam", "sgd", "momentum", "adagrad", "adadelta"]


def numpy_oracle(name, gradients, x, lr, c):
    """The update rules as in their papers, float64, one element at a time by broadcasting."""
    m, v, d = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    for t, g in enumerate(gradients, start=1):
        if name == "sgd":
            x = x - lr * g
        elif name == "momentum":
            m = c.momentum_coefficient * m + g
            x = x - lr * m
        elif name == "rmsprop":
            v = c.decay * v + (1 - c.decay) * g**2
            x = x - lr * g / (np.sqrt(v) + c.epsilon)
        elif name == "adagrad":
            v = v + g**2
            x = x - lr * g / (np.sqrt(v) + c.epsilon)
        elif name == "adadelta":
            v = c.decay * v + (1 - c.decay) * g**2
            step = np.sqrt(d + c.epsilon) / np.sqrt(v + c.epsilon) * g
            d = c.decay * d + (1 - c.decay) * step**2
            x = x - lr * step
        elif name == "adam":
            m = c.beta1 * m + (1 - c.beta1) * g
            v = c.beta2 * v + (1 - c.beta2) * g**2
            x = x - lr * (m / (1 - c.beta1**t)) / (np.sqrt(v / (1 - c.beta2**t)) + c.epsilon)
    return x


def stream(steps, numel, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) for _ in range(steps)]


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_is_the_one_of_its_paper(name):
    config = OptimizerConfig(optimizer=name, learning_rate="0.05", beta1=0.8, beta2=0.75, epsilon=1e-4, decay=0.9)
    gradients, flat = stream(12, 37), torch.linspace(-1, 1, 37)
    expected = numpy_oracle(name, [g.double().numpy() for g in gradients], flat.double().numpy(), 0.05, config)
    optimizer = SliceOptimizer(config, flat)
    for gradient in gradients:
        step(optimizer, gradient, 0.05)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_saved_and_loaded_goes_on_bit_equal(name):
    config, gradients = OptimizerConfig(optimizer=name), stream(8, 33)
    flat = torch.linspace(-1, 1, 33)
    optimizer = SliceOptimizer(config, flat)
    for gradient in gradients[:4]:
        step(optimizer, gradient, 0.01)
    saved = {key: tensor.clone() for key, tensor in optimizer.state.items()}
    part = slice(7, 20)
    resumed = flat[part].clone()
    second = SliceOptimizer(config, resumed)
    second.load({key: tensor[part] if tensor.dim() else tensor for key, tensor in saved.items()})
    for gradient in gradients[4:]:
        step(optimizer, gradient, 0.01)
        step(second, gradient[part], 0.01)
    assert torch.equal(flat[part], resumed)


def test_building_an_optimizer_changes_no_parameter():
    for name in NAMES:
        flat = torch.tensor([1.0, -0.0, 1e-38])
        SliceOptimizer(OptimizerConfig(optimizer=name), flat)
        assert torch.equal(flat.view(torch.int32), torch.tensor([1.0, -0.0, 1e-38]).view(torch.int32))


def test_the_state_of_another_optimizer_or_slice_is_refused():
    optimizer = SliceOptimizer(OptimizerConfig(optimizer="adam"), torch.zeros(3))
    with pytest.raises(ConfigError, match="this optimizer needs"):
        optimizer.load({})
    other = SliceOptimizer(OptimizerConfig(optimizer="adam"), torch.zeros(4)).state
    with pytest.raises(ConfigError, match=r"has shape \[4\], but this optimizer needs \[3\]"):
        optimizer.load(other)
    moved = {key: tensor + 1 for key, tensor in other.items()}
    with pytest.raises(ConfigError, match="shards disagree on the optimizer's step"):
        merge_states([other, moved])


@pytest.mark.parametrize("rule", ["none", "global", "average_per_tensor"])
def test_a_gradient_of_another_length_is_left_for_the_exchange_to_refuse(rule):
    flat = torch.full((3,), 10.0)
    clip_gradient(flat, FlatLayout.of({"a": (1,), "b": (1,)}), rule, 1)
    assert flat.tolist() == [10.0] * 3


def test_clipping_by_global_norm_scales_the_whole_gradient():
    layout = FlatLayout.of({"a": (1,), "b": (1,)})
    flat = torch.tensor([3.0, 4.0])
    assert clip_gradient(flat, layout, "global", 10) == (5, 5)
    assert clip_gradient(flat, layout, "global", 1) == (5, 1)
    assert torch.allclose(flat, torch.tensor([0.6, 0.8]))


def test_clipping_by_average_norm_scales_only_tensors_that_are_too_long():
    layout = FlatLayout.of({"a": (2,), "b": (2,)})
    flat = torch.tensor([3.0, 4.0, 0.1, 0.0])  # average norms 2.5 and 0.05
    before, after = clip_gradient(flat, layout, "average_per_tensor", 0.5)
    assert before == pytest.approx(math.hypot(5, 0.1)) and after == pytest.approx(math.hypot(1, 0.1))
    assert torch.allclose(flat, torch.tensor([0.6, 0.8, 0.1, 0.0]))


def test_a_huge_gradient_is_clipped_and_one_that_is_not_finite_is_left():
    layout = FlatLayout.of({"a": (2,)})
    huge = torch.tensor([3e25, 4e25])
    assert clip_gradient(huge, layout, "global", 1)[1] == 1 and torch.allclose(huge, torch.tensor([0.6, 0.8]))
    bad = torch.tensor([math.nan, 1.0])
    assert math.isnan(clip_gradient(bad, layout, "average_per_tensor", 1)[0]) and bad[1] == 1
    assert clip_gradient(torch.tensor([6.0, 8.0]), layout, "none", 1) == (10, 10)
