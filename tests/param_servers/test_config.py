import dataclasses

import pytest

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError


def test_gradients_and_backup_workers_are_derived_from_each_other():
    for given in ({"num_gradients": 60}, {"num_backup_workers": 5}, {"num_gradients": 60, "num_backup_workers": 5}):
        config = ExchangeConfig(exchange="servers", num_workers=65, **given)
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
        ({"exchange": "local", "num_workers": 2}, "local is one process, but 2 workers were given"),
        ({"exchange": "async", "num_workers": 2, "num_gradients": 2}, "num_gradients is 1"),
        ({"exchange": "gossip"}, "exchange must be one of local, servers, async, allreduce, majority, got 'gossip'"),
        ({"step_timeout_s": 0}, "step_timeout_s must be greater than 0"),
        (
            {"exchange": "majority", "num_workers": 2, "collective_backend": "horovod"},
            "collective_backend: an option of exchange allreduce only, and this run's exchange is majority",
        ),
        (
            {"exchange": "servers", "max_staleness": 0},
            "max_staleness: an option of exchange async only",
        ),
        ({"port": 70000}, "port must be at most 65535"),
        ({"min_workers": 2}, "min_workers is 2, but only 1 workers were given"),
    ],
)
def test_bad_exchange_settings_are_one_clear_line(settings, line):
    with pytest.raises(ConfigError) as error:
        ExchangeConfig(**settings)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of rmsprop, adam"),
        ({"learning_rate": "fast"}, "bad schedule 'fast'"),
        ({"beta2": 1.0}, "beta2 must be at least 0 and less than 1"),
        ({"epsilon": 0.0}, "epsilon must be greater than 0"),
    ],
)
def test_bad_optimizer_settings_are_one_clear_line(settings, line):
    with pytest.raises(ConfigError, match=line):
        OptimizerConfig(**settings)


def test_configs_survive_a_round_trip_through_plain_values():
    config = OptimizerConfig(learning_rate="linear:7e-4->0@20e6")
    assert OptimizerConfig(**dataclasses.asdict(config)) == config
    assert config.schedule(10_000_000) == pytest.approx(3.5e-4)
    names = [field.name for part in (OptimizerConfig, ExchangeConfig) for field in dataclasses.fields(part)]
    assert len(names) == len(set(names))
