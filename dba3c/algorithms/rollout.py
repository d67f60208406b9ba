"""A rollout: T steps of B environments, with the graph that chose the actions, or the observations to make it again.

Legend: T rollout length, B environments, P distribution parameters.

An on-policy learner computes its loss on exactly the forward pass that chose the actions, so that pass is done once:
``Collector.collect`` keeps the policy and values with their autograd graph, and ``Agent.gradient`` differentiates
through them. Frames are not kept at all: what the graph needs of them it has saved itself. Where a second pass is
cheaper (``OneGradient``) or there are several (PPO), observations are kept, and no graph.
"""

from dataclasses import dataclass

from torch import Tensor

from dba3c.environments.protocol import Episode, Experience


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What T steps of B environments gave; its policy and values are without graph where observations are kept."""

    policy_logits: Tensor
    """[T, B, P] float32, with graph unless observations are kept."""
    values: Tensor
    """[T, B] float32, with graph unless observations are kept."""
    actions: Tensor
    """[T, B] int64, or [T, B, D]; time t is the transition (observation_t, action_t) → reward_t."""
    rewards: Tensor
    """[T, B] float32."""
    terminated: Tensor
    """[T, B] bool, training view (a lost life counts where configured)."""
    truncated: Tensor
    """[T, B] bool."""
    valid: Tensor
    """[T, B] bool: False where the step was autoreset's extra one, which is no experience."""
    bootstrap_value: Tensor
    """[B] float32: value of the observation after the last step, without graph."""
    experience: Experience
    """What the environments did."""
    episodes: list[Episode]
    """Games that ended inside the rollout, with their unclipped scores."""
    observations: Tensor | None = None
    """[T, B, ...] that were acted on, where they are kept."""
    failures: tuple[str, ...] = ()
    """One line for each environment that broke and was started anew."""

    @property
    def data_points(self) -> int:
        """Transitions that train."""
        return int(self.valid.sum())

    @property
    def reward_mean(self) -> float:
        """Of the steps that train: a reset's 0 is no reward."""
        return float((self.rewards * self.valid).sum()) / max(1, self.data_points)
