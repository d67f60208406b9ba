"""The measurement of environments runs and says what it skipped; how fast anything is, no test asks."""

import json

import numpy as np
import pytest
from environments import measure as benchmark
from environments.measure import Family, Rate, native

from dba3c.environments.config import EnvironmentConfig


def test_it_measures_in_turn_and_writes_what_it_measured(tmp_path, capsys):
    page = tmp_path / "README.md"
    page.write_text(benchmark.table([]) + "\n")
    arguments = benchmark.Arguments(
        envs=2, seconds=0.05, repeats=2, only=("ale", "ale 2017", "classic control"), output=tmp_path
    )
    benchmark.main(arguments)
    written = json.loads((tmp_path / "environments.json").read_text())
    assert [family["name"] for family in written["families"]] == ["ale", "ale 2017", "classic control"]
    assert [len(family["native"]) for family in written["families"]] == [2, 0, 2]
    assert all(len(family["factory"]) == 2 for family in written["families"])
    assert all(family["factory"][0]["per_core"] > 0 for family in written["families"])
    assert "| classic control (`CartPole-v1`) | 2 |" in page.read_text()
    assert "the factory adds" in capsys.readouterr().out


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_ours_and_the_native_environment_play_the_same_games(env_id):
    config = EnvironmentConfig(env_id=env_id)
    ours, bare = benchmark.through_factory(config, 3), native(config, 3, benchmark._SEED)
    ends = 0
    for actions in ours.actions:
        mine, (observation, reward, terminated, *_) = ours.step(actions), bare.step(actions)
        np.testing.assert_array_equal(mine.observation, observation)
        np.testing.assert_array_equal(mine.reward, reward)
        ends += int(terminated.sum())
    assert ends or env_id != "CartPole-v1"


def test_what_the_factory_adds_is_the_median_of_ratios_of_cpu_time():
    rates = [Rate(1.0, per_core) for per_core in (100.0, 100.0, 50.0)]
    family = Family("ale", "ALE/Pong-v5", 2, ours=rates, native=[Rate(1.0, c) for c in (102.0, 150.0, 55.0)])
    assert family.added == pytest.approx(0.1)  # of 2 %, 50 % and 10 %
    assert Family("ale 2017", "ALE/Pong-v5", 2, ours=rates, native=[]).added is None
