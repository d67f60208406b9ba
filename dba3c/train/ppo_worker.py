"""A worker that learns each rollout several times: proximal policy optimisation, synchronous and data-parallel.

Every minibatch's gradient goes through the exchange, so that all workers take the same updates: the mean of their
gradients is that of one minibatch made of theirs, but for advantages, which each normalises by its own minibatch.
"""

from __future__ import annotations

from dataclasses import replace

from dba3c.algorithms.agent import Agent
from dba3c.algorithms.ppo import PpoSettings, minibatches, normalised_advantages, ppo_batch, ppo_loss
from dba3c.config import TrainConfig
from dba3c.metrics.exchange_records import GradientRecorder
from dba3c.metrics.writer import MetricsWriter, Sections
from dba3c.networks.active_relus import ActiveRelus
from dba3c.train.collector import Collector
from dba3c.train.worker import RolloutRandomness
from param_servers.exchange import GradientExchange, RunStopped
from param_servers.optim.optimizers import clip_gradient
from param_servers.schedules import parse_schedule


def run_ppo_worker(
    config: TrainConfig,
    agent: Agent,
    collector: Collector,
    exchange: GradientExchange,
    metrics: MetricsWriter,
    *,
    rank: int,
    incarnation: int,
) -> str:
    """Train until the exchange says that the run has stopped; see ``run_worker``. The collector keeps observations.

    Returns:
        The reason the run stopped.

    Raises:
        ParamServersError: the exchange broke (a peer was lost for good, a wait ran out).
    """
    sections, recorder, settings = Sections(), GradientRecorder(metrics), settings_of(config)
    relus = ActiveRelus()
    entropy_cost, policy_clip = (
        parse_schedule(text) for text in (config.algorithm.entropy_cost, config.algorithm.policy_clip)
    )
    clip = (config.optimizer.clip_rule, config.optimizer.clip_norm)
    random = RolloutRandomness(config.run.seed, rank, incarnation)
    try:
        while True:
            with sections("waiting"):
                pulled = exchange.pull()
            agent.load(pulled.parameters)
            generator = random.at(pulled.step)
            with relus.watch():
                rollout = collector.collect(generator, sections)
            assert rollout.observations is not None
            recorder.stepped(pulled.step, rollout.experience, rollout.episodes, rollout.failures)
            batch = ppo_batch(agent.policy(rollout.policy_logits), rollout, rollout.observations, settings)
            for index, part in enumerate(minibatches(batch, settings, generator)):
                with sections("waiting"):
                    pulled = exchange.pull()
                agent.load(pulled.parameters)
                with sections("learning"):
                    cost = entropy_cost(pulled.data_points)
                    output = agent.forward(part.observations, ())
                    now = replace(settings, policy_clip=policy_clip(pulled.data_points))
                    policy, advantages = agent.policy(output.policy_logits), normalised_advantages(part)
                    loss = ppo_loss(policy, output.value, part, advantages, now, entropy_cost=cost)
                    gradient = agent.gradient_of(loss.total)
                    before, after = clip_gradient(gradient, agent.layout, *clip)
                # a point is data when it enters its first update, not again in later epochs
                data_points = part.data_points if index < settings.minibatches else 0
                with sections("pushing"):
                    receipt = exchange.push(gradient, pulled.step, data_points)
                numbers = {"entropy_cost": cost, "gradient_norm": before, "gradient_norm_clipped": after}
                numbers |= {"reward_mean": float(rollout.rewards.mean())}
                recorder.record(receipt, pulled.step, data_points, loss.metrics | numbers | relus.take(), sections)
    except RunStopped as stopped:
        return stopped.reason
    finally:
        recorder.finish()


def settings_of(config: TrainConfig) -> PpoSettings:
    """PPO's coefficients, as the configuration has them at the start."""
    algorithm = config.algorithm
    return PpoSettings(
        discount=algorithm.discount,
        trace_lambda=algorithm.trace_lambda,
        policy_clip=parse_schedule(algorithm.policy_clip)(0),
        value_cost=algorithm.value_cost,
        epochs=algorithm.ppo_epochs,
        minibatches=algorithm.ppo_minibatches,
    )
