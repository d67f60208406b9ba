"""V-trace on central inference: each batch of unrolls makes one gradient.

Legend: T unroll length, N environments of a batch.
"""

import numpy as np
import torch
from torch import Tensor

from dba3c.algorithms.agent import Agent
from dba3c.algorithms.rollout import Rollout
from dba3c.central.algorithm import Trainer, Update
from dba3c.central.unrolls import GroupUnroll, observations_of, side_by_side, stack_states
from dba3c.central.wire import TERMINATED, TRUNCATED, VALID, WHOLE
from dba3c.config import TrainConfig
from dba3c.environments.protocol import Experience
from param_servers.config import parse_schedule
from param_servers.exchange import Pull


class VtraceTrainer(Trainer):
    """V-trace: each batch of unrolls makes one gradient."""

    def __init__(self, config: TrainConfig, agent: Agent) -> None:
        self.groups_per_batch = config.central.groups_per_batch
        self._agent = agent
        self._entropy_cost = parse_schedule(config.algorithm.entropy_cost)
        self._unrolls: list[GroupUnroll] = []

    @property
    def owes(self) -> bool:
        return bool(self._unrolls)

    def take(self, unrolls: list[GroupUnroll]) -> None:
        self._unrolls = unrolls

    def update(self, pulled: Pull) -> Update:
        unrolls, self._unrolls = self._unrolls, []
        cost = self._entropy_cost(pulled.data_points)
        rollout = rollout_of(self._agent, unrolls)
        log_probs = torch.from_numpy(side_by_side(unroll.log_probs for unroll in unrolls))
        gradient, numbers = self._agent.gradient(rollout, entropy_cost=cost, behaviour_log_probs=log_probs)
        numbers |= {"entropy_cost": cost, "reward_mean": rollout.reward_mean}
        versions = np.stack([unroll.versions for unroll in unrolls], axis=1)
        return Update(gradient, rollout.data_points, numbers | policy_lag(versions, pulled.step))


def rollout_of(agent: Agent, unrolls: list[GroupUnroll]) -> Rollout:
    """What the agent thinks now, with graph, of what was observed then: the rollout [T, N] that the loss reads."""

    def moved(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(agent.device)

    flags = moved(side_by_side(unroll.flags for unroll in unrolls))
    _keep_for_this_stream(unrolls)
    state = tuple(part.to(agent.device) for part in stack_states([unroll.initial_state for unroll in unrolls]))
    output = agent.network.unroll(moved(observations_of(unrolls)), state, flags & WHOLE != 0)
    return Rollout(
        policy_logits=output.policy_logits[:-1],
        values=output.value[:-1],
        actions=moved(side_by_side(unroll.actions for unroll in unrolls)),
        rewards=moved(side_by_side(unroll.rewards[1:] for unroll in unrolls)),
        terminated=flags[1:] & TERMINATED != 0,
        truncated=flags[1:] & TRUNCATED != 0,
        valid=flags[1:] & VALID != 0,
        bootstrap_value=output.value[-1].detach(),
        experience=Experience(),  # its actors have counted it
        episodes=[],
    )


def _keep_for_this_stream(unrolls: list[GroupUnroll]) -> None:
    """On a GPU, states come from the inference thread's stream: their memory is not free before this one has read."""
    for unroll in unrolls:
        for part in unroll.initial_state:
            if part.is_cuda:
                part.record_stream(torch.cuda.current_stream(part.device))  # type: ignore[no-untyped-call]


def policy_lag(versions: np.ndarray, step: int) -> dict[str, float]:
    """Updates between the weights that acted, [T, groups], and those of ``step``, which learn."""
    lags = np.maximum(0, step - versions)  # after a roll-back what acted may be of steps that are undone
    p50, p99 = np.percentile(lags, (50, 99))
    return {
        "policy_lag_mean": float(lags.mean()),
        "policy_lag_p50": float(p50),
        "policy_lag_p99": float(p99),
        "policy_lag_max": float(lags.max()),
    }
