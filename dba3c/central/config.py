"""Settings of central inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dba3c.errors import UserError

Mode = Literal["worker", "central"]
InferenceThread = Literal["shared", "own"]


@dataclass(frozen=True, kw_only=True)
class CentralConfig:
    """Where actions are chosen; with ``mode`` central, by whom and in what batches. Learners are ``num_workers``."""

    mode: Mode = "worker"
    """worker: each process steps environments and computes gradients. central: actors step environments, learners
    choose all actions and compute gradients."""

    actors: int = 4
    """central: processes that step environments, dealt to the learners in turn."""

    envs_per_actor: int = 32
    """central: environments of each actor."""

    actor_groups: int = 2
    """central: groups of an actor's environments that take turns: one is stepped while the other is answered."""

    unroll_length: int = 20
    """central: T, agent steps of each environment that are trained on together."""

    batch_unrolls: int = 32
    """central: unrolls (one environment's each) that make one gradient; rounded up to whole groups."""

    inference_batch: int | None = None
    """central: environments whose observations make a batch that waits no longer. None: half of a learner's own."""

    inference_timeout_ms: float = 10.0
    """central: longest wait of an observation for its batch to fill; a dead actor costs no more than this."""

    inference_thread: InferenceThread = "shared"
    """central: one thread that alternates between actors and learning, or an own one for inference, with its own copy
    of the network (worth it where the learner has cores to spare, or a GPU)."""

    def __post_init__(self) -> None:
        for name in ("actors", "envs_per_actor", "actor_groups", "unroll_length", "batch_unrolls"):
            _at_least_one(name, getattr(self, name))
        if self.inference_batch is not None:
            _at_least_one("inference_batch", self.inference_batch)
        if not 0 <= self.inference_timeout_ms < float("inf"):
            raise UserError(f"inference_timeout_ms must not be negative, got {self.inference_timeout_ms}")
        if self.envs_per_actor % self.actor_groups:
            raise UserError(
                f"envs_per_actor {self.envs_per_actor} cannot be cut into {self.actor_groups} equal groups "
                f"({self.envs_per_actor} / {self.actor_groups}): choose another actor_groups"
            )

    @property
    def envs_per_group(self) -> int:
        """B: environments that are stepped and answered together."""
        return self.envs_per_actor // self.actor_groups

    @property
    def groups_per_batch(self) -> int:
        """Group unrolls that make one gradient."""
        return -(-self.batch_unrolls // self.envs_per_group)

    def actors_of(self, learner: int, learners: int) -> range:
        """The actors that dial this learner."""
        return range(learner, self.actors, learners)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} must be at least 1, got {value}")
