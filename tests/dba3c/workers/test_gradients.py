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


@pytest.mark.parametrize("refused", [(), (1,), (0, 1, 2, 3), (1, 5), (1, 5, 9)])
def test_a_point_of_ppo_is_counted_when_it_first_enters_an_update(refused: tuple[int, ...]):
    """Also where backup workers let the gradient of the first epoch come too late."""
    agent, _ = make_agent()
    gradients = gradients_of(AlgorithmConfig(algorithm="ppo", ppo_epochs=3, ppo_minibatches=4), agent, B)
    rollout = Collector(ScriptedEnvironments(), agent, T, True).collect(torch.Generator().manual_seed(3), Sections())
    rollout.observations[:] = torch.arange(T * B).reshape(T, B, 1)  # who is who
    valid, entered, counted = rollout.valid.flatten(), set[int](), 0
    for index, (part, data_points) in enumerate(gradients.parts(rollout, torch.Generator().manual_seed(0))):
        if index in refused:
            gradients.refused()
            continue
        entered |= set(part.observations.flatten(1)[:, 0].int().tolist())
        counted += data_points
        assert counted == sum(bool(valid[each]) for each in entered)
    assert counted <= T * B - 1 and (refused == (1, 5, 9) or counted == T * B - 1)
