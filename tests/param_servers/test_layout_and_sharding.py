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
    flat = FlatLayout.of_module(module).reordered(["bias", "weight"]).flatten(module)
    assert torch.equal(flat, torch.cat([module.bias, module.weight.flatten()]))


def test_a_module_takes_back_what_was_flattened_whatever_the_order():
    module, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    layout = FlatLayout.of_module(module).reordered(["bias", "weight"])
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


def test_fingerprints_tell_order_and_shape_apart():
    layout = FlatLayout.of({"a": (2, 3), "b": (2,)})
    others = [layout.reordered(["b", "a"]), FlatLayout.of({"a": (3, 2), "b": (2,)}), FlatLayout.of({"a": (8,)})]
    assert len({layout.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert layout.fingerprint == FlatLayout.of([("a", (2, 3)), ("b", (2,))]).fingerprint
    assert plan_shards(layout, 2).fingerprint != plan_shards(layout, 3).fingerprint


def test_greedy_sharding_gives_the_largest_tensor_to_the_emptiest_server():
    layout = FlatLayout.of({"a": (3,), "b": (10,), "c": (4,), "d": (4,)})
    plan = plan_shards(layout, 2, "greedy_by_tensor")  # b=10 | c=4, d=4, a=3
    assert plan.layout.names == ("b", "c", "d", "a")
    assert plan.cuts == (0, 10, 21)


@given(shapes, st.integers(1, 6), st.sampled_from(["even_bytes", "greedy_by_tensor"]))
@settings(max_examples=100)
def test_shards_cover_every_element_once_or_are_refused(shapes_list, num_shards, policy):
    layout = layout_of(shapes_list)
    pieces = layout.numel if policy == "even_bytes" else len(shapes_list)
    if num_shards > pieces:
        with pytest.raises(ConfigError, match="use fewer servers"):
            plan_shards(layout, num_shards, policy)
        return
    plan = plan_shards(layout, num_shards, policy)
    covered = [element for part in plan.slices for element in range(part.start, part.stop)]
    assert covered == list(range(layout.numel))
    assert sorted(zip(plan.layout.names, plan.layout.shapes, strict=True)) == sorted(
        zip(layout.names, layout.shapes, strict=True)
    )
    if policy == "even_bytes":
        sizes = [part.stop - part.start for part in plan.slices]
        assert max(sizes) - min(sizes) <= 1
    else:
        assert set(plan.cuts) <= {*plan.layout.offsets, layout.numel}


def test_bad_layouts_and_plans_are_named():
    with pytest.raises(ConfigError, match="at least one element"):
        FlatLayout.of({})
    with pytest.raises(ConfigError, match="given twice: a"):
        FlatLayout.of([("a", (1,)), ("a", (2,))])
    with pytest.raises(ConfigError, match=r"shape \[3\] is needed, got \[4\]"):
        FlatLayout.of({"a": (3,)}).views(torch.zeros(4))
    with pytest.raises(ConfigError, match="unknown sharding 'random'"):
        plan_shards(FlatLayout.of({"a": (3,)}), 1, "random")


def test_a_buffer_is_ordered_anew_and_of_other_tensors_those_that_differ_are_named():
    here, there = FlatLayout.of({"a": (2,), "b": (1,)}), FlatLayout.of({"b": (1,), "a": (2,)})
    assert here.in_order_of(there, torch.tensor([1.0, 2.0, 3.0])).tolist() == [3.0, 1.0, 2.0]
    other = FlatLayout.of({"a": (1, 2), "c": (1,)})
    with pytest.raises(ConfigError) as refused:
        here.in_order_of(other, torch.zeros(3))
    assert str(refused.value) == "its a is [2] instead of [1, 2]; it has b [1] too; it has no c [1]"
