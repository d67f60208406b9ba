import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from param_servers.errors import ConfigError
from param_servers.layout import FlatLayout, plan_shards

shapes = st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=6)


def layout_of(shapes_list):
    return FlatLayout.of([(f"t{i}", shape) for i, shape in enumerate(shapes_list)])


def test_views_write_through_to_the_buffer():
    layout = FlatLayout.of({"weight": (2, 3), "bias": (2,)})
    flat = torch.zeros(layout.numel)
    layout.views(flat)["bias"].copy_(torch.tensor([1.0, 2.0]))
    assert layout.offsets == (0, 6)
    assert flat.tolist() == [0, 0, 0, 0, 0, 0, 1, 2]


def test_a_module_is_flattened_in_the_order_of_the_layout():
    module = torch.nn.Linear(2, 1)
    flat = FlatLayout.of({"bias": (1,), "weight": (1, 2)}).flatten(module)
    assert torch.equal(flat, torch.cat([module.bias, module.weight.flatten()]))


def test_a_module_takes_back_what_was_flattened_whatever_the_order():
    module, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    layout = FlatLayout.of({"bias": (1,), "weight": (1, 2)})
    layout.load(other, layout.flatten(module))
    assert torch.equal(other.weight, module.weight) and torch.equal(other.bias, module.bias)
    with pytest.raises(ConfigError, match="no parameter bias"):
        layout.load(torch.nn.Linear(2, 1, bias=False), torch.zeros(3))


def _frozen() -> torch.nn.Module:
    module = torch.nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    return module


class _OneUnused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)

    def forward(self, rows):
        return self.used(rows)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (_frozen(), [1.0] * 6 + [0.0] * 2),
        (_OneUnused(), [1.0] * 8 + [0.0] * 6),
        (torch.nn.Linear(3, 2).bfloat16(), [1.0] * 8),
        (torch.nn.Linear(3, 2).double(), [1.0] * 8),
    ],
)
def test_the_gradient_of_any_module_is_float32_with_zeros_where_nothing_learns(module, expected):
    rows = torch.ones(1, 3, dtype=next(module.parameters()).dtype)
    gradient = FlatLayout.of_module(module).gradient(module, module(rows).sum())
    assert gradient.dtype == torch.float32 and gradient.tolist() == expected


def test_the_gradient_is_zero_where_nothing_is_trained_and_where_the_loss_depends_on_no_parameter():
    module = torch.nn.Linear(3, 2)
    layout = FlatLayout.of_module(module)
    assert layout.gradient(module, torch.tensor(1.0)).tolist() == [0.0] * 8
    module.requires_grad_(False)
    assert layout.gradient(module, module(torch.ones(1, 3)).sum()).tolist() == [0.0] * 8


def test_a_sparse_gradient_is_as_good_as_a_dense_one():
    dense, sparse = (torch.nn.Embedding(4, 2, sparse=sparse) for sparse in (False, True))
    layout = FlatLayout.of_module(dense)
    gradients = [layout.gradient(each, each(torch.tensor([1, 1, 3])).sum()) for each in (dense, sparse)]
    assert gradients[0].tolist() == gradients[1].tolist() == [0, 0, 2, 2, 0, 0, 1, 1]


def test_a_plan_is_the_same_for_a_number_of_numpy():
    layout = FlatLayout.of({"all": (10,)})
    assert plan_shards(layout, np.int64(2)).fingerprint == plan_shards(layout, 2).fingerprint


def test_fingerprints_tell_order_and_shape_apart():
    layout = FlatLayout.of({"a": (2, 3), "b": (2,)})
    others = [FlatLayout.of(each) for each in ({"b": (2,), "a": (2, 3)}, {"a": (3, 2), "b": (2,)}, {"a": (8,)})]
    assert len({layout.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert layout.fingerprint == FlatLayout.of([("a", (2, 3)), ("b", (2,))]).fingerprint
    assert plan_shards(layout, 2).fingerprint != plan_shards(layout, 3).fingerprint


@given(shapes, st.integers(1, 6))
@settings(max_examples=100)
def test_shards_cover_every_element_once_or_are_refused(shapes_list, num_shards):
    layout = layout_of(shapes_list)
    if num_shards > layout.numel:
        with pytest.raises(ConfigError, match="use fewer servers"):
            plan_shards(layout, num_shards)
        return
    plan = plan_shards(layout, num_shards)
    slices = [*map(plan.slice_of, range(plan.num_shards))]
    covered = [element for part in slices for element in range(part.start, part.stop)]
    assert covered == list(range(layout.numel))
    sizes = [part.stop - part.start for part in slices]
    assert max(sizes) - min(sizes) <= 1


def test_bad_layouts_and_plans_are_named():
    with pytest.raises(ConfigError, match="at least one element"):
        FlatLayout.of({})
    with pytest.raises(ConfigError, match="given twice: a"):
        FlatLayout.of([("a", (1,)), ("a", (2,))])
    with pytest.raises(ConfigError, match=r"shape \[3\] is needed, got \[4\]"):
        FlatLayout.of({"a": (3,)}).views(torch.zeros(4))


def test_of_other_tensors_those_that_differ_are_named():
    here, there = FlatLayout.of({"a": (2,), "b": (1,)}), FlatLayout.of({"b": (1,), "a": (2,)})
    with pytest.raises(ConfigError, match="its tensors are in another order"):
        here.refuse_another(there)
    other = FlatLayout.of({"a": (1, 2), "c": (1,)})
    with pytest.raises(ConfigError) as refused:
        here.refuse_another(other)
    assert str(refused.value) == "its a is [2] instead of [1, 2]; it has b [1] too; it has no c [1]"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            torch.nn.Linear(2, 1, dtype=torch.complex64),
            "the parameter weight is complex: float32 numbers are",
        ),
        (torch.nn.LazyLinear(1), "the parameter weight is without values yet: float32 numbers are exchanged"),
        (torch.nn.Linear(2, 1, device="meta"), "the parameter weight is without values yet"),
    ],
)
def test_parameters_that_float32_cannot_hold_are_refused(module: torch.nn.Module, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}"):
        FlatLayout.of_module(module)
