"""Central inference on a cluster that one machine stands for: its bound, its dilation, and one small row."""

from __future__ import annotations

import os
import shutil

import central_lab
import pytest
from central_lab import CentralScene, choose_dilation, predicted_points_per_s
from lab import CORES

from dba3c.simulation.simulate import AgentCosts
from param_servers.errors import ConfigError

COSTS = AgentCosts(environment_s=0.001, inference_s=0.0002, learning_s=0.0003)
SCENE = CentralScene(actors=4, envs_per_actor=48, learner_cores=12.0, gbit=1.0, length_steps=5)


def test_an_update_is_bound_by_one_frame_for_each_step_on_the_learners_link() -> None:
    assert SCENE.points_per_update == 4 * 48 * 5
    assert SCENE.bound_s == pytest.approx(4 * 48 * 5 * 7056 / 125e6)


def test_the_dilation_leaves_the_machine_idle_enough_or_is_refused() -> None:
    assert choose_dilation(SCENE, cores=1) > choose_dilation(SCENE, cores=64) == 1
    with pytest.raises(ConfigError, match="too much for 1 cores at D = 40"):
        choose_dilation(SCENE._replace(gbit=1000.0), cores=1)


def test_a_slow_learner_bounds_what_is_predicted_and_a_fast_one_leaves_it_to_the_actors() -> None:
    slow = predicted_points_per_s(SCENE._replace(learner_cores=1.0), COSTS)
    assert slow == pytest.approx(1 / (2 * 0.0002 + 0.0003), rel=0.1)  # acts, acts again to learn, and learns
    fast = predicted_points_per_s(SCENE._replace(learner_cores=1e6), COSTS)
    most = min(4 * CORES / COSTS.environment_s, SCENE.points_per_update / SCENE.bound_s)
    assert slow < fast <= most * (1 + 1e-9)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None,
    reason="needs root and iproute2",
)
def test_a_small_row_is_measured_in_the_clusters_time() -> None:
    scene = CentralScene(actors=2, envs_per_actor=4, learner_cores=1.0, gbit=1.0, length_steps=2)
    row = central_lab.measure(scene, COSTS, dilation=10, updates=2)
    assert row["rate_mbit"] == 100.0 and 0 <= row["own_share"] <= 1
    assert row["step_ms"] >= 1e3 * scene.points_per_update * (COSTS.inference_s + COSTS.learning_s)
    assert row["data_points_per_s"] == pytest.approx(1e3 * scene.points_per_update / row["step_ms"], rel=1e-3)
