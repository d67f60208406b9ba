"""The learner's whole life: newest parameters, complete unrolls, gradient, push, record."""

from __future__ import annotations

from dba3c.agent import Agent
from dba3c.central.inference_report import policy_lag
from dba3c.central.serving import Serving
from dba3c.central.unroll_store import UnrollBatch, batch_of
from dba3c.config import TrainConfig
from dba3c.environments.protocol import Episode
from dba3c.metrics import MetricsWriter, Sections
from dba3c.rollout import Rollout
from dba3c.worker import WorkerRecorder
from param_servers.exchange import GradientExchange, RunStopped
from param_servers.optimizers import clip_gradient
from param_servers.schedules import parse_schedule


def run_learner(
    config: TrainConfig, agent: Agent, serving: Serving, exchange: GradientExchange, metrics: MetricsWriter
) -> str:
    """Train until the exchange says that the run has stopped; the actors are told so.

    Returns:
        The reason the run stopped.

    Raises:
        ParamServersError: the exchange broke, or no actor came in time.
    """
    sections, recorder, service = Sections(), WorkerRecorder(metrics), serving.service
    entropy_cost = parse_schedule(config.algorithm.entropy_cost)
    clip = (config.optimizer.clip_rule, config.optimizer.clip_norm)
    try:
        while True:
            with sections("waiting"):
                pulled = exchange.pull()
            serving.publish(pulled.parameters, pulled.step)
            unrolls = serving.collect(config.central.groups_per_batch, sections)
            if not unrolls:
                continue
            with sections("learning"):
                batch = batch_of(unrolls)
                service.store.release(unrolls)
                rollout = replay(agent, batch, service.take_episodes())
                cost = entropy_cost(pulled.data_points)
                gradient, numbers = agent.gradient(
                    rollout, entropy_cost=cost, behaviour_log_probs=batch.behaviour_log_probs
                )
                norms = clip_gradient(gradient, agent.layout, *clip)
            with sections("pushing"):
                receipt = exchange.push(gradient, pulled.step, rollout.data_points)
            numbers |= dict(zip(("gradient_norm", "gradient_norm_clipped"), norms, strict=True))
            numbers |= {"entropy_cost": cost, "unroll_queue": service.store.ready}
            numbers |= policy_lag(batch.versions, pulled.step) | service.report.take()
            recorder.record(rollout, receipt, numbers, sections)
    except RunStopped as stopped:
        serving.close(stopped.reason)
        return stopped.reason


def replay(agent: Agent, batch: UnrollBatch, episodes: list[Episode]) -> Rollout:
    """What the agent thinks now, with graph, of what was observed then: the rollout [T, N] that the loss reads."""
    length = len(batch.rewards)
    device = agent.device
    output = agent.network.unroll(batch.observation.to(device), batch.initial_state, batch.first.to(device))
    logits, values = output.policy_logits, output.value
    return Rollout(
        policy_logits=logits[:length],
        values=values[:length],
        actions=batch.actions.to(device),
        rewards=batch.rewards.to(device),
        terminated=batch.terminated.to(device),
        truncated=batch.truncated.to(device),
        valid=batch.valid.to(device),
        bootstrap_value=values[length].detach(),
        episodes=episodes,
    )
