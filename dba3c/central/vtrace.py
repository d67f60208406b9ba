"""V-trace on central inference: each batch of unrolls makes one gradient.

Legend: T unroll length, N environments of a batch.
"""

import numpy as np

from dba3c.algorithms.agent import Agent
from dba3c.algorithms.rollout import Rollout
from dba3c.central.algorithm import Trainer, Update
from dba3c.central.unrolls import Unroll, UnrollBatch, batch_of
from dba3c.config import TrainConfig
from dba3c.environments.protocol import Experience
from param_servers.config import parse_schedule
from param_servers.exchange import Pull


class ActorCriticTrainer(Trainer):
    """V-trace: each batch of unrolls makes one gradient."""

    def __init__(self, config: TrainConfig, agent: Agent) -> None:
        self.groups_per_batch = config.central.groups_per_batch
        self._agent = agent
        self._entropy_cost = parse_schedule(config.algorithm.entropy_cost)
        self._batch: UnrollBatch | None = None

    @property
    def owes(self) -> bool:
        return self._batch is not None

    def take(self, unrolls: list[Unroll]) -> None:
        self._batch = batch_of(unrolls)

    def update(self, pulled: Pull) -> Update:
        batch, self._batch = self._batch, None
        assert batch is not None
        cost = self._entropy_cost(pulled.data_points)
        rollout = rollout_of(self._agent, batch)
        gradient, numbers = self._agent.gradient(
            rollout, entropy_cost=cost, behaviour_log_probs=batch.behaviour_log_probs
        )
        numbers |= {"entropy_cost": cost, "reward_mean": rollout.reward_mean}
        return Update(gradient, batch.data_points, numbers | policy_lag(batch.versions, pulled.step))


def rollout_of(agent: Agent, batch: UnrollBatch) -> Rollout:
    """What the agent thinks now, with graph, of what was observed then: the rollout [T, N] that the loss reads."""
    length, device = len(batch.rewards), agent.device
    state = tuple(part.to(device) for part in batch.initial_state)
    output = agent.network.unroll(batch.observation.to(device), state, batch.first.to(device))
    return Rollout(
        policy_logits=output.policy_logits[:length],
        values=output.value[:length],
        actions=batch.actions.to(device),
        rewards=batch.rewards.to(device),
        terminated=batch.terminated.to(device),
        truncated=batch.truncated.to(device),
        valid=batch.valid.to(device),
        bootstrap_value=output.value[length].detach(),
        experience=Experience(),  # its actors have counted it
        episodes=[],
    )


def policy_lag(versions: np.ndarray, step: int) -> dict[str, float]:
    """Updates between the weights that acted, [T, groups], and those of ``step``, which learn."""
    lags = step - versions
    p50, p99 = np.percentile(lags, (50, 99))
    return {
        "policy_lag_mean": float(lags.mean()),
        "policy_lag_p50": float(p50),
        "policy_lag_p99": float(p99),
        "policy_lag_max": float(lags.max()),
    }
