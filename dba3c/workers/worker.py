"""The worker's whole life: pull, collect, differentiate, push, record.

A worker is one gradient, of all its lanes (`param_servers.lanes`): a process for each core, all in the same loop. The
mean of n workers' gradients is that of one batch made of theirs (`dba3c.algorithms.actor_critic`). Each clips its own
before it is pushed, as DBA3C did: where clipping binds, the mean of the clipped is not the clipped mean.
"""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dba3c.algorithms.agent import Agent
from dba3c.assembly.exchanges import connect
from dba3c.assembly.model import Spaces, build_model
from dba3c.assembly.statistics_keeper import StatisticsKeeper
from dba3c.config import TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import EnvironmentFailed, Experience, VectorEnvironment, worker_seed
from dba3c.errors import UserError, warn_on_stderr
from dba3c.metrics import registry
from dba3c.metrics.writer import GradientRecorder, MetricsWriter, Sections
from dba3c.networks.active_relus import ActiveRelus
from dba3c.own_code import calling
from dba3c.roles import RunProcess, seed_own_code
from dba3c.workers.collector import Collector
from dba3c.workers.gradients import gradients_of
from param_servers.exchange import GradientExchange, Pull, RunStopped
from param_servers.lanes import ALONE, Lane, run_in_lanes

CHECKED_ENVIRONMENTS, CHECKED_STEPS, CHECKED_RESTARTS = 2, 5, 3
"""With which a user's own code is tried."""


def worker(process: RunProcess) -> str:
    """Step environments and compute gradients, in as many lanes as the configuration has."""
    lanes, timeouts = process.config.environment.lanes, process.config.exchange.timeouts
    cores = sorted(os.sched_getaffinity(0))
    if lanes > len(cores):
        warn_on_stderr(f"worker {process.rank}: {lanes} lanes share {len(cores)} cores")
    mine = cores if lanes == len(cores) else ()  # given to this worker alone, as far as can be known
    return run_in_lanes(
        lanes,
        lambda lane: _live(replace(process, lane=lane.index), lane),
        timeouts=timeouts,
        cores=mine,
        told=(EnvironmentFailed, UserError),
    )


def _live(process: RunProcess, lane: Lane) -> str:
    config = process.config
    environment, seeds = config.environment, (config.run.seed, process.rank, process.incarnation, process.lane)
    seed_own_code("worker", process)  # again, as lanes are forks
    environments = make_vector_environment(environment, environment.envs_per_lane, worker_seed(*seeds))
    metrics = MetricsWriter.of(process, "worker")
    try:
        model = build_model(config, Spaces(environments.observation_space, environments.action_space))
        keeper = StatisticsKeeper(process, "worker", [environments])
        numel = model.plan.layout.numel
        exchange = lane.exchange(lambda: connect(process, model.plan, model.parameters, metrics), numel)
        with closing(exchange), closing(keeper):
            return run_worker(
                config,
                model.network,
                environments,
                exchange,
                metrics,
                rank=process.rank,
                incarnation=process.incarnation,
                lane=lane,
                at_step=keeper.at,
            )
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
    lane: Lane = ALONE,
    at_step: Callable[[int], None] = lambda step: None,
) -> str:
    """Train until the exchange says that the run has stopped.

    Args:
        lane: which of the worker's processes this is.
        at_step: told the step of all parameters that are pulled.

    Returns:
        The reason the run stopped.

    Raises:
        ParamServersError: the exchange broke (a peer was lost for good, a wait ran out).
        EnvironmentFailed: an environment broke too often.
        UserError: an algorithm gave no gradient of a rollout, or told of a metric that the registry does not have.
    """
    gradients = gradients_of(config.algorithm, agent, environments.num_envs, lane.total)
    sections, recorder, relus = Sections(), GradientRecorder(metrics, counts=lane.index == 0), ActiveRelus()

    def pull() -> Pull:
        with sections("waiting"):
            pulled = exchange.pull()
            at_step(pulled.step)
        agent.load(pulled.parameters)
        return pulled

    step = 0
    try:
        collector = Collector(environments, agent, config.algorithm.rollout_length, gradients.keeps_observations)
        while True:
            pulled = pull()
            step = pulled.step
            generator = rollout_generator(config.run.seed, rank, incarnation, lane.index, step)
            with relus.watch():
                rollout = collector.collect(generator, sections)
            recorder.stepped(pulled.step, rollout.experience, rollout.episodes, rollout.failures)
            pushed, reward_mean = False, rollout.reward_mean
            for part, data_points in gradients.parts(rollout, generator):
                pushed = True
                if gradients.several:
                    pulled = pull()
                with sections("learning"):
                    gradient, numbers = gradients.of(part, pulled.data_points)
                with sections("pushing"):
                    receipt = exchange.push(gradient, pulled.step, data_points)
                if not receipt.accepted and hasattr(gradients, "refused"):
                    gradients.refused()
                numbers |= relus.take() | {"reward_mean": reward_mean}
                recorder.record(receipt, pulled.step, data_points, numbers, sections)
            if not pushed:  # and pulling again before others have pushed: lanes would be out of step
                raise UserError(f"{config.algorithm.algorithm}: its parts gave no gradient of a rollout")
    except RunStopped as stopped:
        return stopped.reason
    except EnvironmentFailed as failed:
        for transition in failed.transitions:
            experience = Experience.of(transition.frames)
            recorder.stepped(step, experience, transition.episodes, transition.failures)
        recorder.stepped(step, Experience(), [], failed.failures)
        raise
    finally:
        recorder.finish()


def rollout_generator(seed: int, rank: int, incarnation: int, lane: int, step: int) -> torch.Generator:
    """Chooses the actions of the rollout on the parameters of ``step``: a function of these numbers (``seed`` is the
    run's), of which nothing has to be saved."""
    words = np.random.SeedSequence([seed, rank, incarnation, *([lane] if lane else []), step]).generate_state(2)
    return torch.Generator().manual_seed(int(words[0]) << 31 ^ int(words[1]))


def _play_a_little(config: EnvironmentConfig) -> None:
    """Raise UserError, with the place where it is the user's, where a run would give up an environment at once."""
    config = replace(config, environment_restarts=min(config.environment_restarts, CHECKED_RESTARTS))
    environments = make_vector_environment(config, 1, seed=0)
    space: Any = environments.action_space
    try:
        environments.reset()
        steps = 0
        while steps < CHECKED_STEPS:
            transition = environments.step(np.array([space.sample() - getattr(space, "start", 0)]))
            steps = 0 if transition.failures else steps + int(transition.valid[0])
    except EnvironmentFailed as failed:
        with calling(config.env_id):
            raise (failed.__cause__ or failed) from None
    finally:
        environments.close()


def check_own_code(config: TrainConfig) -> None:
    """Before a run is started: do what a worker does until its first gradient, where something in it is the user's own,
    so that mistakes are one line.

    Raises:
        UserError: what is wrong, and where.
    """
    if ":" in config.environment.env_id:
        _play_a_little(config.environment)
    own = [name for name in (config.network.network, config.algorithm.algorithm) if ":" in name]
    if not own or config.central.mode != "worker":
        return
    name = own[-1]
    environments = make_vector_environment(config.environment, CHECKED_ENVIRONMENTS, seed=0)
    try:
        model = build_model(config, Spaces(environments.observation_space, environments.action_space))
        agent = model.network
        with calling(name):
            agent.load(model.parameters)
            # as many environments as in the run: whether the rollout holds observations or a graph depends on it
            gradients = gradients_of(config.algorithm, agent, config.environment.envs_per_lane)
            if gradients.several and not gradients.keeps_observations:
                raise UserError(
                    f"{name}: where several is True keeps_observations must be: the pull before each gradient breaks "
                    "the graph that a rollout holds otherwise"
                )
            generator = torch.Generator()
            length, keep = config.algorithm.rollout_length, gradients.keeps_observations
            rollout = Collector(environments, agent, length, keep).collect(generator, Sections())
            part, data_points = next(iter(gradients.parts(rollout, generator)))
            gradient, numbers = gradients.of(part, 0)
    finally:
        environments.close()
    if type(data_points) is not int:
        raise UserError(f"{name}: the data points of a part must be an int, not {type(data_points).__name__}")
    if not isinstance(gradient, torch.Tensor) or not isinstance(numbers, dict):
        given = f"({type(gradient).__name__}, {type(numbers).__name__})"
        raise UserError(f"{name}: `of` must return (gradient, a tensor; numbers, a dict), not {given}")
    if gradient.shape != (agent.layout.numel,) or gradient.dtype != torch.float32 or gradient.device.type != "cpu":
        made = f"{str(gradient.dtype)[6:]} {list(gradient.shape)} on {gradient.device.type}"
        raise UserError(f"{name}: its gradient must be float32 [{agent.layout.numel}] on the CPU, not {made}")
    if not torch.isfinite(gradient).all():
        raise UserError(f"{name}: the gradient of the first rollout has numbers that are not finite")
    for metric, number in numbers.items():
        registry.find("step", metric)
        try:
            float(number)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{name}: {metric} must be a number: {error}") from None
