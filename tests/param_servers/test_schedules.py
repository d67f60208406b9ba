import pytest
from hypothesis import given
from hypothesis import strategies as st

from param_servers.errors import ConfigError
from param_servers.schedules import Schedule, parse_schedule

values = st.floats(allow_nan=False, allow_infinity=False)
growing = st.lists(st.floats(1e-3, 1e300), min_size=1, max_size=4, unique=True).map(sorted)


def test_each_form_gives_its_value():
    assert parse_schedule("7e-4")(123) == parse_schedule("constant:7e-4")(0) == parse_schedule(7e-4)(5) == 7e-4
    linear = parse_schedule("linear:8->4@100")
    assert [linear(n) for n in (0, 25, 50, 100, 1000)] == [8, 7, 6, 4, 4]
    piecewise = parse_schedule("piecewise:1e-3@0,5e-4@1e6,1e-4@2e6")
    assert [piecewise(n) for n in (0, 999_999, 1_000_000, 5e6)] == [1e-3, 1e-3, 5e-4, 1e-4]


@given(values, values, growing)
def test_text_and_back_is_exact(first, second, since):
    for schedule in (
        Schedule("constant", ((0.0, first),)),
        Schedule("linear", ((0.0, first), (since[0], second))),
        Schedule("piecewise", ((0.0, first), *((n, second) for n in since))),
    ):
        assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not a number"),
        ("fast", "'fast' is not a number"),
        ("nan", "nan is not finite"),
        ("cosine:1", "unknown kind 'cosine'"),
        ("linear:1->2", "linear needs start->end@data_points"),
        ("linear:1->0@0", "must end after 0 data points"),
        ("linear:1->x@5", "'x' is not a number"),
        ("piecewise:1,2@3", "each piece needs value@data_points"),
        ("piecewise:1@5", "must start at 0 data points and grow"),
        ("piecewise:1@0,2@5,3@5", "must start at 0 data points and grow"),
    ],
)
def test_bad_text_is_one_clear_line(text, why):
    with pytest.raises(ConfigError) as error:
        parse_schedule(text)
    assert why in str(error.value) and "write 7e-4" in str(error.value) and "\n" not in str(error.value)
