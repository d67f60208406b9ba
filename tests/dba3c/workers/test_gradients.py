"""However a rollout's graph is made, its gradient is the same."""

import pytest
import torch

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.metrics.writer import Sections
from dba3c.networks import build_network
from dba3c.workers.collector import Collector
from dba3c.workers.gradients import FEW_ENVIRONMENTS, gradients_of
from tests.dba3c.algorithms.test_agent import ACTION, OBSERVATION, B, ScriptedEnvironments, T, make_agent


def gradient_with(algorithm: AlgorithmConfig, num_envs: int):
    """(gradient, metrics) of the same steps, made as for rollouts of `num_envs`."""
    agent, _ = make_agent()
    gradients = gradients_of(algorithm, agent, num_envs)
    collector = Collector(ScriptedEnvironments(), agent, T, keep_observations=gradients.keeps_observations)
    rollout = collector.collect(torch.Generator().manual_seed(3), Sections())
    ((part, data_points),) = gradients.parts(rollout, torch.Generator())
    assert data_points == T * B - 1  # of which one step trains nothing
    gradient, metrics = gradients.of(part, 0)
    return gradients.keeps_observations, gradient.clone(), metrics


@pytest.mark.parametrize("algorithm", ["actor_critic", "vtrace"])
def test_one_pass_over_all_steps_of_few_environments_gives_the_gradient_of_the_graphs_that_acted(algorithm: str):
    config = AlgorithmConfig(algorithm=algorithm, rollout_length=T)
    (at_once, first, told), (kept, second, told_too) = (gradient_with(config, n) for n in (FEW_ENVIRONMENTS, 64))
    assert at_once and not kept
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    assert told == pytest.approx(told_too, abs=1e-6) and first.abs().sum() > 0


def test_a_network_with_memory_keeps_the_graph_that_acted():
    agent, _ = make_agent()
    agent.network = build_network("mlp_lstm", OBSERVATION, ACTION, seed=0)
    assert not gradients_of(AlgorithmConfig(), agent, 1).keeps_observations
