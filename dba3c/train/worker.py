"""The worker's whole life: pull, collect, differentiate, push, record.

The mean of n workers' gradients is that of one batch made of theirs (`dba3c.algorithms.actor_critic`). Each clips its
own before it is pushed, as DBA3C did: where clipping binds, the mean of the clipped is not the clipped mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dba3c.algorithms.agent import Agent
from dba3c.assembly.exchanges import connect
from dba3c.assembly.model import Spaces, build_model
from dba3c.assembly.statistics_keeper import StatisticsKeeper
from dba3c.config import TrainConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import VectorEnvironment, worker_seed
from dba3c.metrics.exchange_records import GradientRecorder
from dba3c.metrics.writer import MetricsWriter, Sections
from dba3c.networks.active_relus import ActiveRelus
from dba3c.roles import RunProcess
from dba3c.train.collector import Collector
from dba3c.train.gradients import gradients_of
from param_servers.exchange import GradientExchange, Pull, RunStopped
from param_servers.optim import clip_gradient


def worker(process: RunProcess) -> str:
    """Step environments and compute gradients."""
    config = process.config
    seed = worker_seed(config.run.seed, process.rank, process.incarnation)
    environments = make_vector_environment(config.environment, config.environment.envs_per_worker, seed)
    metrics = MetricsWriter.of(process, "worker")
    try:
        model = build_model(config, Spaces(environments.observation_space, environments.action_space))
        keeper = StatisticsKeeper(process, "worker", [environments])
        exchange = connect(process, model.plan, model.parameters, metrics)
        try:
            who = {"rank": process.rank, "incarnation": process.incarnation}
            reason = run_worker(config, model.network, environments, exchange, metrics, **who, at_step=keeper.at)
            keeper.finish()
            return reason
        finally:
            exchange.close()
    finally:
        metrics.close()
        environments.close()


def run_worker(
    config: TrainConfig,
    agent: Agent,
    environments: VectorEnvironment,
    exchange: GradientExchange,
    metrics: MetricsWriter,
    *,
    rank: int = 0,
    incarnation: int = 0,
    at_step: Callable[[int], None] = lambda step: None,
) -> str:
    """Train until the exchange says that the run has stopped.

    Args:
        at_step: told the step of all parameters that are pulled.

    Returns:
        The reason the run stopped.

    Raises:
        ParamServersError: the exchange broke (a peer was lost for good, a wait ran out).
    """
    gradients = gradients_of(config.algorithm, agent)
    seed = worker_seed(config.run.seed, rank, incarnation)
    collector = Collector(environments, agent, config.algorithm.rollout_length, seed, gradients.several)
    random = RolloutRandomness(config.run.seed, rank, incarnation)
    clip = (config.optimizer.clip_rule, config.optimizer.clip_norm)
    sections, recorder, relus = Sections(), GradientRecorder(metrics), ActiveRelus()

    def pull() -> Pull:
        with sections("waiting"):
            pulled = exchange.pull()
            at_step(pulled.step)
        agent.load(pulled.parameters)
        return pulled

    try:
        while True:
            pulled = pull()
            generator = random.at(pulled.step)
            with relus.watch():
                rollout = collector.collect(generator, sections)
            recorder.stepped(pulled.step, rollout.experience, rollout.episodes, rollout.failures)
            for part, data_points in gradients.parts(rollout, generator):
                if gradients.several:
                    pulled = pull()
                with sections("learning"):
                    gradient, numbers = gradients.of(part, pulled.data_points)
                    norms = clip_gradient(gradient, agent.layout, *clip)
                with sections("pushing"):
                    receipt = exchange.push(gradient, pulled.step, data_points)
                numbers |= dict(zip(("gradient_norm", "gradient_norm_clipped"), norms, strict=True)) | relus.take()
                numbers |= {"reward_mean": float(rollout.rewards.mean())}
                recorder.record(receipt, pulled.step, data_points, numbers, sections)
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
