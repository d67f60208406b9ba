"""The configuration tree: exact in JSON, one line for every mistake."""

import json
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.central_config import CentralConfig
from dba3c.config import TrainConfig, option_names, replace_options
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from launch.cli.presets import PRESETS, preset
from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_survives_json_exactly(name: str) -> None:
    config = preset(name, None, workers=2)
    assert TrainConfig.from_json(config.to_json()) == config


def test_option_names_are_unique_across_the_tree() -> None:
    assert len(option_names()) == sum(len(fields(kind)) for kind in get_type_hints(TrainConfig).values())


def test_an_unknown_key_names_the_close_ones() -> None:
    tree = json.loads(TrainConfig().to_json())
    tree["algorithm"]["rolout_length"] = 5
    with pytest.raises(UserError, match="rolout_length.*rollout_length"):
        TrainConfig.from_json(json.dumps(tree))


def test_a_run_folder_from_before_an_option_went_is_read_where_it_means_the_same() -> None:
    tree = json.loads(TrainConfig().to_json())
    tree["environment"]["atari_backend"] = "ale"
    assert TrainConfig.from_json(json.dumps(tree)) == TrainConfig()
    tree["environment"]["atari_backend"] = "envpool"
    with pytest.raises(UserError, match="atari_backend"):
        TrainConfig.from_json(json.dumps(tree))
    tree = json.loads(TrainConfig().to_json())
    tree["run"]["evaluators"] = 2
    assert TrainConfig.from_json(json.dumps(tree)).run.evaluators == 1
    for folder in ("breakout_central", "games/Pong/seed-0"):  # one says `inference_thread` shared, the other own
        TrainConfig.from_json((RESULTS / folder / "config.json").read_text(encoding="utf-8"))


def test_a_value_of_the_wrong_type_is_one_line() -> None:
    tree = json.loads(TrainConfig().to_json())
    tree["run"]["stop_games"] = "many"
    with pytest.raises(UserError) as caught:
        TrainConfig.from_json(json.dumps(tree))
    assert "\n" not in str(caught.value)


def test_what_is_not_json_is_one_line() -> None:
    with pytest.raises(UserError, match="not valid JSON"):
        TrainConfig.from_json("{")


@pytest.mark.parametrize("text", ["5", "[]", '{"environment": []}', '{"exchange": null}'])
def test_json_that_is_no_configuration_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="the configuration should be one JSON object"):
        TrainConfig.from_json(text)


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ({"rollout_length": 0}, "^rollout_length must be at least 1, got 0$"),
        ({"discount": 1.5}, "^discount must be at least 0 and at most 1, got 1.5$"),
        ({"trace_lambda": -0.1}, "^trace_lambda must be at least 0 and at most 1, got -0.1$"),
        ({"entropy_cost": "often"}, "^bad schedule 'often': 'often' is not a number; write 7e-4, .*$"),
    ],
)
def test_values_out_of_range_are_refused(bad: dict, line: str) -> None:
    with pytest.raises((UserError, ConfigError), match=line):
        AlgorithmConfig(**bad)


@pytest.mark.parametrize("clip", ["0", "linear:0.2->-0.2@1e6"])
def test_a_clip_range_of_ppo_may_shrink_to_nothing_but_not_begin_there_or_turn_round(clip: str) -> None:
    assert AlgorithmConfig(policy_clip="linear:0.2->0@1e6")
    with pytest.raises(UserError, match="policy_clip must begin greater than 0 and never fall below it, got"):
        AlgorithmConfig(policy_clip=clip)


def test_replacing_an_option_finds_its_group_and_refuses_strangers() -> None:
    assert replace_options(TrainConfig(), rollout_length=20).algorithm.rollout_length == 20
    with pytest.raises(UserError, match="rollout_length"):
        replace_options(TrainConfig(), rollout_lenght=20)


def test_an_environment_that_hangs_is_given_up_before_its_worker_is() -> None:
    environment = EnvironmentConfig(env_id="games:slow", environment_processes=True, environment_timeout_s=60.0)
    line = r"environment_timeout_s 60 \+ 2 must be at most step_timeout_s 60, or a worker .*learner.* is expelled"
    with pytest.raises(UserError, match=line):
        TrainConfig(environment=environment)
    TrainConfig(environment=environment, exchange=ExchangeConfig(step_timeout_s=62.0))
    learner = {"central": CentralConfig(mode="central"), "algorithm": AlgorithmConfig(algorithm="vtrace")}
    TrainConfig(environment=environment, **learner)  # nobody waits for a learner alone
    with pytest.raises(UserError, match=line):
        TrainConfig(environment=environment, exchange=ExchangeConfig(exchange="allreduce", num_workers=2), **learner)
