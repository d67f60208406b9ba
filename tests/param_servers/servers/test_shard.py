"""One shard's update equals a hand-made torch.optim step, however it is cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from param_servers.config import OptimizerConfig, OptimizerName
from param_servers.errors import CheckpointError
from param_servers.layout import FlatLayout, plan_shards
from param_servers.optim import merge_states
from param_servers.servers.shard import Shard

OPTIMIZERS: list[OptimizerName] = ["sgd", "momentum", "rmsprop", "adam", "adagrad", "adadelta"]


def randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=10)
@given(numel=st.integers(1, 20_000), shards=st.integers(1, 4), workers=st.integers(1, 5))
def test_shards_change_nothing_in_the_result(name: OptimizerName, numel: int, shards: int, workers: int) -> None:
    config = OptimizerConfig(optimizer=name, learning_rate="0.01")
    plan = plan_shards(FlatLayout.of({"w": (numel,)}), min(shards, numel))
    initial = randn(numel, numel)
    slices = [*map(plan.slice_of, range(plan.num_shards))]
    whole, parts = initial.clone(), [Shard(initial[part], config) for part in slices]
    reference = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=config.momentum_coefficient),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=config.decay, eps=config.epsilon),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(config.beta1, config.beta2), eps=config.epsilon),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, eps=config.epsilon),
        "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.01, rho=config.decay, eps=config.epsilon),
    }[name]([torch.nn.Parameter(whole)])
    parameter = reference.param_groups[0]["params"][0]
    for step in range(3):
        gradients = [randn(step * 100 + worker, numel) for worker in range(workers)]
        for gradient in gradients:
            gradient[::5] = 0.0  # of units that are dead
        mean = gradients[0].clone()
        for gradient in gradients[1:]:
            mean += gradient
        parameter.grad = mean / workers if workers > 1 else mean
        reference.step()
        for shard, part in zip(parts, slices, strict=True):
            shard.apply([gradient[part] for gradient in gradients], 0.01)
    assert torch.equal(torch.cat([shard.parameters for shard in parts]), parameter.detach())
    merged, state = merge_states([shard.optimizer_state() for shard in parts]), reference.state[parameter]
    assert all(torch.equal(merged[key], state[key]) for key in state.keys() | merged.keys())


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=10)
@given(numel=st.integers(1, 2_000), cuts=st.lists(st.integers(1, 30), max_size=6))
def test_an_update_in_parts_is_the_whole_update_and_can_be_undone(
    name: OptimizerName, numel: int, cuts: list[int]
) -> None:
    config = OptimizerConfig(optimizer=name, learning_rate="0.01")
    initial, gradients = randn(numel, numel), [randn(worker, numel) for worker in range(3)]
    whole, parted = Shard(initial, config), Shard(initial, config)
    stops = [*sorted({64 * cut for cut in cuts if 64 * cut < numel}), numel]
    whole.apply(gradients, 0.01)
    for undo in (False, True, False):  # the second update is taken back, then made
        if not undo:
            before = None
        else:
            whole.apply(gradients, 0.01)
            before = parted.parameters.clone()
        parted.publish(parted.parameters.clone())
        parted.keep()
        for start, stop in zip([0, *stops], stops, strict=False):
            for part in parted.parts(start, stop):
                parted.update_part(part, [gradient.numpy() for gradient in gradients], 0.01)
        assert torch.equal(parted.parameters, whole.parameters)
        if before is not None:
            parted.go_back()
            assert torch.equal(parted.parameters, before)
    assert all(map(torch.equal, parted.optimizer_state().values(), whole.optimizer_state().values()))


def test_a_checkpoint_of_another_optimizer_is_refused_and_changes_nothing() -> None:
    shard = Shard(torch.zeros(3), OptimizerConfig(optimizer="sgd"))
    with pytest.raises(CheckpointError, match="the saved optimizer state has .*, but this optimizer needs"):
        shard.load(torch.ones(3), {"square_avg": torch.ones(3)})
    assert torch.equal(shard.parameters, torch.zeros(3))


def test_what_was_published_does_not_change_with_the_next_step() -> None:
    shard = Shard(torch.zeros(10), OptimizerConfig(optimizer="sgd", learning_rate="1"))
    before = shard.published()
    shard.apply([torch.ones(10)], 1.0)
    assert before.sum() == 0 and shard.published().sum() == -10
    assert shard.published() is shard.published()


def test_the_norms_of_the_moments_of_all_shards_add_up_to_the_whole() -> None:
    config = OptimizerConfig(optimizer="adam", beta1=0.5, beta2=0.75)
    gradient = torch.arange(1.0, 10_001.0)
    shards = [Shard(torch.zeros(6000), config), Shard(torch.zeros(4000), config)]
    for shard, part in zip(shards, (gradient[:6000], gradient[6000:]), strict=True):
        shard.apply([part], 0.1)
    norms = [shard.moment_norms() for shard in shards]
    assert set(norms[0]) == {"first_moment_norm", "second_moment_norm"}
    first, second = (sum(one[name] ** 2 for one in norms) ** 0.5 for name in sorted(norms[0]))
    assert first == pytest.approx(float((0.5 * gradient).norm()), rel=1e-5)
    assert second == pytest.approx(float((0.25 * gradient**2).norm()), rel=1e-5)
    assert Shard(torch.zeros(3), OptimizerConfig(optimizer="sgd")).moment_norms() == {}
