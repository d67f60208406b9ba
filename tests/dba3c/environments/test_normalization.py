"""Running mean and deviation, against NumPy over everything at once."""

import json

import numpy as np
import pytest

from dba3c.environments import EnvironmentConfig, make_vector_environment
from dba3c.environments.normalization import RunningStatistics
from dba3c.errors import UserError

PENDULUM = EnvironmentConfig(env_id="Pendulum-v1", normalize_observations=True)


def test_merged_batches_have_the_mean_and_variance_of_all_rows():
    rows = np.random.default_rng(0).normal(loc=[1e4, -3.0], scale=[0.01, 5.0], size=(1000, 2))
    statistics = RunningStatistics(2)
    for batch in np.split(rows, [1, 8, 8, 300]):
        statistics.update(batch)
    assert statistics.count == 1000
    assert statistics.mean == pytest.approx(rows.mean(axis=0), rel=1e-12)
    assert statistics.variance == pytest.approx(rows.var(axis=0), rel=1e-6)


def test_a_hand_worked_case():
    statistics = RunningStatistics(1)
    statistics.update(np.array([[1.0], [3.0]]))  # mean 2, variance 1
    assert statistics.normalize(np.array([[5.0]])) == pytest.approx(3.0, rel=1e-6)
    assert statistics.normalize(np.array([[500.0]])).tolist() == [[10.0]]


def test_training_observations_are_normalised_by_what_was_seen_so_far():
    raw = make_vector_environment(EnvironmentConfig(env_id="Pendulum-v1"), 4, seed=0)
    normalized = make_vector_environment(PENDULUM, 4, seed=0)
    oracle = [raw.reset()]
    normalized.reset()
    for _ in range(20):
        actions = np.ones((4, 1), np.float32)
        oracle.append(raw.step(actions).observation)
        shown = normalized.step(actions).observation
    seen = np.concatenate(oracle).astype(np.float64)
    expected = (oracle[-1] - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8)
    assert shown == pytest.approx(np.clip(expected, -10, 10), abs=1e-4)


def test_an_evaluation_uses_the_statistics_it_is_given_and_changes_nothing():
    envs = make_vector_environment(PENDULUM, 2, seed=0, view="evaluation")
    trained = RunningStatistics(3)
    trained.update(np.random.default_rng(0).normal(size=(50, 3)))
    envs.statistics.load_dict(json.loads(json.dumps(trained.to_dict())))
    first = envs.reset()
    envs.step(np.zeros((2, 1), np.float32))
    assert envs.statistics.count == 50
    raw = make_vector_environment(EnvironmentConfig(env_id="Pendulum-v1"), 2, seed=0).reset()
    assert first == pytest.approx(trained.normalize(raw))


def test_statistics_of_another_size_and_images_are_refused():
    with pytest.raises(UserError, match="statistics of 2 numbers, but observations have 3"):
        RunningStatistics(3).load_dict(RunningStatistics(2).to_dict())
    with pytest.raises(UserError, match="normalize_observations is for vector observations"):
        make_vector_environment(EnvironmentConfig(normalize_observations=True), 1, seed=0)
