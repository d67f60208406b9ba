"""From complete unrolls to gradients. A trainer takes experience, and then owes some number of gradients for it.

Legend: T unroll length, N environments of a batch.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from dba3c.algorithms.agent import Agent
from dba3c.algorithms.rollout import Rollout
from dba3c.central.inference_report import policy_lag
from dba3c.central.unroll import Unroll
from dba3c.central.unroll_batch import UnrollBatch, batch_of
from dba3c.config import TrainConfig
from dba3c.environments.protocol import Experience
from param_servers.exchange import Pull
from param_servers.schedules import parse_schedule


class Update(NamedTuple):
    """One gradient."""

    gradient: Tensor
    """[P] float32, in a buffer that the next one reuses."""
    data_points: int
    """Transitions that enter an update for the first time, should it be accepted."""
    numbers: dict[str, float]
    """Metrics by their names in the registry."""


class Trainer(Protocol):
    """What the learner asks of an algorithm."""

    groups_per_batch: int
    """Group unrolls that it takes at a time."""

    @property
    def owes(self) -> bool:
        """Whether there is a gradient to compute before more experience is taken."""
        ...

    def take(self, unrolls: list[Unroll]) -> None:
        """New experience; copied, the unrolls' memory may be used again."""
        ...

    def update(self, pulled: Pull) -> Update:
        """A gradient at the pulled parameters, which the trainer's network holds already."""
        ...

    def answered(self, accepted: bool) -> None:
        """Whether the newest gradient entered an update; of one that was dropped, no transition is a data point."""
        ...

    def stopped(self) -> None:
        """The run has ended: keep what the next life needs and no checkpoint holds."""
        ...


class ActorCriticTrainer:
    """V-trace: each batch of unrolls makes one gradient."""

    def __init__(self, config: TrainConfig, agent: Agent) -> None:
        self.groups_per_batch = config.central.groups_per_batch
        self._agent = agent
        self._entropy_cost = parse_schedule(config.algorithm.entropy_cost)
        self._batch: UnrollBatch | None = None

    @property
    def owes(self) -> bool:
        """See ``Trainer``."""
        return self._batch is not None

    def take(self, unrolls: list[Unroll]) -> None:
        """See ``Trainer``."""
        self._batch = batch_of(unrolls)

    def update(self, pulled: Pull) -> Update:
        """See ``Trainer``."""
        batch, self._batch = self._batch, None
        assert batch is not None
        cost = self._entropy_cost(pulled.data_points)
        gradient, numbers = self._agent.gradient(
            replay(self._agent, batch), entropy_cost=cost, behaviour_log_probs=batch.behaviour_log_probs
        )
        numbers |= {"entropy_cost": cost, "reward_mean": float(batch.rewards.mean())}
        return Update(gradient, batch.data_points, numbers | policy_lag(batch.versions, pulled.step))

    def answered(self, accepted: bool) -> None:
        """See ``Trainer``."""

    def stopped(self) -> None:
        """See ``Trainer``."""


def replay(agent: Agent, batch: UnrollBatch) -> Rollout:
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
