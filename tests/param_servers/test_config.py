import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from param_servers.config import ExchangeConfig, OptimizerConfig, Schedule, check_options, option, parse_schedule
from param_servers.errors import ConfigError


def test_gradients_and_backup_workers_are_derived_from_each_other():
    for numbers in ({"num_gradients": 60}, {"num_backup_workers": 5}, {"num_gradients": 60, "num_backup_workers": 5}):
        config = ExchangeConfig(exchange="servers", num_workers=65, **numbers)
        assert (config.gradients_per_step, config.backup_workers) == (60, 5)
    assert ExchangeConfig(exchange="allreduce", num_workers=4).gradients_per_step == 4
    config = ExchangeConfig(exchange="async", num_workers=4, max_staleness=3)
    assert (config.gradients_per_step, config.backup_workers) == (1, 0)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"exchange": "servers", "num_workers": 64, "num_gradients": 60, "num_backup_workers": 5},
            "60 gradients + 5 backup = 65 workers, but 64 were given",
        ),
        (
            {"exchange": "servers", "num_workers": 4, "num_gradients": 6},
            "6 gradients need 6 workers, but 4 were given",
        ),
        (
            {"exchange": "majority", "num_workers": 2, "num_backup_workers": 2},
            "2 backup of 2 workers leave no gradient for an update",
        ),
        ({"exchange": "allreduce", "num_workers": 4, "num_backup_workers": 1}, "choose exchange majority"),
        ({"exchange": "local", "num_workers": 2}, "local is one worker, but 2 were given"),
        ({"exchange": "async", "num_workers": 2, "num_gradients": 2}, "num_gradients is 1"),
        ({"exchange": "gossip"}, "exchange must be local or servers or async or allreduce or majority, got 'gossip'"),
        ({"step_timeout_s": 0}, "step_timeout_s must be greater than 0"),
        (
            {"exchange": "majority", "num_workers": 2, "collective_backend": "horovod"},
            "collective_backend: an option of exchange allreduce only, and this run's exchange is majority",
        ),
        (
            {"exchange": "servers", "max_staleness": 0},
            "max_staleness: an option of exchange async only",
        ),
        ({"port": 70000}, "port must be at least 0 and at most 65535, got 70000"),
        ({"min_workers": 2}, "gradients: num_gradients is 1"),
        (
            {"exchange": "servers", "num_workers": 4, "num_gradients": 2, "min_workers": 3},
            "gradients: num_gradients is 2",
        ),
        (
            {"exchange": "majority", "num_workers": 4, "num_gradients": 2, "min_workers": 3},
            "gradients: num_gradients is 2",
        ),
        ({"exchange": "async", "num_workers": 2, "min_workers": 2}, "gradients: num_gradients is 1"),
    ],
)
def test_bad_exchange_settings_are_one_clear_line(settings, line):
    with pytest.raises(ConfigError) as error:
        ExchangeConfig(**settings)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"optimizer": "lion"}, "optimizer must be rmsprop or adam or sgd"),
        ({"learning_rate": "fast"}, "bad schedule 'fast'"),
        ({"learning_rate": "linear:7e-4->-1e-9@20e6"}, "learning_rate must never be less than 0, got linear:0.0007->"),
        ({"beta2": 1.0}, "beta2 must be at least 0 and less than 1"),
        ({"epsilon": 0.0}, "epsilon must be greater than 0"),
    ],
)
def test_bad_optimizer_settings_are_one_clear_line(settings, line):
    with pytest.raises(ConfigError, match=line):
        OptimizerConfig(**settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bounded:
    rate: float = option(0.5, above=0, below=math.inf)
    share: float = option(least=0, most=1)
    steps: int | None = option(None, least=1, exchange="async")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"rate": 0}, "rate must be greater than 0 and less than inf, got 0"),
        ({"rate": math.inf}, "rate must be greater than 0 and less than inf, got inf"),
        ({"rate": None}, "rate must be greater than 0 and less than inf, got None"),
        ({"share": math.nan}, "share must be at least 0 and at most 1, got nan"),
        ({"share": 1.1}, "share must be at least 0 and at most 1, got 1.1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_an_option_out_of_its_bounds_is_refused_and_none_where_it_is_not_the_default(values, line):
    for share in (0, 1):
        check_options(_Bounded(share=share))
    with pytest.raises(KeyError) as error:
        check_options(_Bounded(**{"share": 1, **values}), KeyError)
    assert error.value.args == (line,)


def test_configs_survive_a_round_trip_through_plain_values():
    config = OptimizerConfig(learning_rate="linear:7e-4->0@20e6")
    assert OptimizerConfig(**dataclasses.asdict(config)) == config
    assert config.schedule(10_000_000) == pytest.approx(3.5e-4)
    names = [field.name for part in (OptimizerConfig, ExchangeConfig) for field in dataclasses.fields(part)]
    assert len(names) == len(set(names))


values = st.floats(allow_nan=False, allow_infinity=False)
growing = st.lists(st.floats(1e-3, 1e300), min_size=1, max_size=4, unique=True).map(sorted)


def test_each_form_gives_its_value():
    assert parse_schedule("7e-4")(123) == parse_schedule("constant:7e-4")(0) == parse_schedule(7e-4)(5) == 7e-4
    linear = parse_schedule("linear:8->4@100")
    assert [linear(n) for n in (0, 25, 50, 100, 1000)] == [8, 7, 6, 4, 4]


@given(values, values, growing)
def test_text_and_back_is_exact(first, second, since):
    for schedule in (
        Schedule(first, first),
        Schedule(first, second, since[0]),
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
    ],
)
def test_bad_text_is_one_clear_line(text, why):
    with pytest.raises(ConfigError) as error:
        parse_schedule(text)
    assert why in str(error.value) and "write 7e-4" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"num_workers": 1.5}, "num_workers must be a whole number, got 1.5"),
        ({"num_workers": "1"}, "num_workers must be a whole number, got '1'"),
        ({"num_workers": True}, "num_workers must be a whole number, got True"),
        ({"keep_checkpoints": 2.5}, "keep_checkpoints must be a whole number, got 2.5"),
        ({"step_timeout_s": "long"}, "step_timeout_s must be a number, got 'long'"),
        ({"step_timeout_s": True}, "step_timeout_s must be a number, got True"),
        ({"listen_host": None}, "listen_host must be text, got None"),
    ],
)
def test_an_option_of_another_type_is_refused_at_once(values, line):
    with pytest.raises(ConfigError) as error:
        ExchangeConfig(**values)
    assert str(error.value) == line


def test_numbers_of_numpy_become_python_s_which_a_checkpoint_s_manifest_and_sockets_can_hold():
    config = ExchangeConfig(exchange="servers", num_workers=np.int64(2), step_timeout_s=np.float32(3))
    assert (type(config.num_workers), type(config.step_timeout_s)) == (int, float)
    assert config == ExchangeConfig(exchange="servers", num_workers=2, step_timeout_s=3.0)
