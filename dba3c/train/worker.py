"""The worker's whole life: pull, collect, differentiate, push, record.

The mean of n workers' gradients is that of one batch made of theirs (`dba3c.algorithms.actor_critic`). Each clips its
own before it is pushed, as DBA3C did: where clipping binds, the mean of the clipped is not the clipped mean.
"""

from __future__ import annotations

import numpy as np
import torch

from dba3c.algorithms.agent import Agent
from dba3c.config import TrainConfig
from dba3c.metrics.exchange_records import GradientRecorder
from dba3c.metrics.writer import MetricsWriter, Sections
from dba3c.networks.active_relus import ActiveRelus
from dba3c.train.collector import Collector
from param_servers.exchange import GradientExchange, RunStopped
from param_servers.optim.optimizers import clip_gradient
from param_servers.schedules import parse_schedule


def run_worker(
    config: TrainConfig,
    agent: Agent,
    collector: Collector,
    exchange: GradientExchange,
    metrics: MetricsWriter,
    *,
    rank: int,
    incarnation: int,
) -> str:
    """Train until the exchange says that the run has stopped.

    Returns:
        The reason the run stopped.

    Raises:
        ParamServersError: the exchange broke (a peer was lost for good, a wait ran out).
    """
    sections, recorder, relus = Sections(), GradientRecorder(metrics), ActiveRelus()
    entropy_cost = parse_schedule(config.algorithm.entropy_cost)
    clip = (config.optimizer.clip_rule, config.optimizer.clip_norm)
    random = RolloutRandomness(config.run.seed, rank, incarnation)
    try:
        while True:
            with sections("waiting"):
                pulled = exchange.pull()
            agent.load(pulled.parameters)
            with relus.watch():
                rollout = collector.collect(random.at(pulled.step), sections)
            recorder.stepped(pulled.step, rollout.experience, rollout.episodes, rollout.failures)
            with sections("learning"):
                cost = entropy_cost(pulled.data_points)
                gradient, losses = agent.gradient(rollout, entropy_cost=cost)
                before, after = clip_gradient(gradient, agent.layout, *clip)
                norms = {"gradient_norm": before, "gradient_norm_clipped": after}
            with sections("pushing"):
                receipt = exchange.push(gradient, pulled.step, rollout.data_points)
            numbers = {"entropy_cost": cost, "reward_mean": float(rollout.rewards.mean()), **norms}
            numbers |= relus.take()
            recorder.record(receipt, pulled.step, rollout.data_points, losses | numbers, sections)
    except RunStopped as stopped:
        return stopped.reason
    finally:
        recorder.finish()


class RolloutRandomness:
    """Action randomness as a function of (run seed, worker, incarnation, step): nothing of it has to be saved."""

    def __init__(self, seed: int, rank: int, incarnation: int) -> None:
        self._identity = (seed, rank, incarnation)
        self._generator = torch.Generator()

    def at(self, step: int) -> torch.Generator:
        """The generator for the rollout computed on the parameters of ``step``."""
        words = np.random.SeedSequence([*self._identity, step]).generate_state(2)
        return self._generator.manual_seed(int(words[0]) << 31 ^ int(words[1]))
