"""Settings of central inference."""

import math
from dataclasses import dataclass
from typing import Literal

from dba3c.errors import UserError
from param_servers.config import check_options, option


@dataclass(frozen=True, kw_only=True)
class CentralConfig:
    """Where actions are chosen; with --mode central, by whom and in what batches. Learners are --num-workers."""

    mode: Literal["worker", "central"] = "worker"
    """worker: each process steps environments and computes gradients. central: actors step environments, learners
    choose all actions and compute gradients."""

    actors: int = option(4, least=1, mode="central")
    """central: processes that step environments, dealt to the learners in turn."""

    envs_per_actor: int = option(32, least=1, mode="central")
    """central: environments of each actor."""

    actor_groups: int = option(2, least=1, mode="central")
    """central: groups of an actor's environments that take turns: one is stepped while the other is answered."""

    unroll_length: int = option(20, least=1, mode="central")
    """central: T, agent steps of each environment that are trained on together."""

    batch_unrolls: int = option(32, least=1, mode="central", algorithm="vtrace")
    """central: unrolls (one environment's each) that make one gradient; rounded up to whole groups."""

    inference_batch: int | None = option(None, least=1, mode="central")
    """central: environments whose observations make a batch that waits no longer. None: half of a learner's own."""

    inference_timeout_ms: float = option(10.0, least=0, below=math.inf, mode="central")
    """central: longest wait of an observation for its batch to fill. An actor that hangs may cost each batch so much, a
    dead one costs nothing."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
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
        """The actors that dial this learner. Raises UserError: there is none, so it would wait in vain."""
        if learner >= self.actors:
            raise UserError(f"{learners} learners need as many actors or more, got {self.actors} (--actors)")
        return range(learner, self.actors, learners)


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Experience that is kept and learned from more than once (r2d2, sac), and the networks of these algorithms."""

    replay_capacity: int = option(1_000_000, least=1, algorithm="r2d2 sac")
    """Agent steps that a learner keeps; r2d2: never fewer than a few unrolls of each environment."""

    replay_start: int = option(10_000, least=1, algorithm="r2d2 sac")
    """Agent steps to gather before the first gradient; r2d2: more where no sequence is complete by then."""

    replay_batch: int = option(64, least=1, algorithm="r2d2 sac")
    """r2d2: sequences, sac: transitions of one gradient."""

    replay_ratio: float = option(1.5, above=0, below=math.inf, algorithm="r2d2 sac")
    """Steps trained on per agent step gathered (a step is counted each time it is sampled)."""

    burn_in: int = option(40, least=0, algorithm="r2d2")
    """r2d2: steps before an unroll that only warm the recurrent state up."""

    n_step: int = option(5, least=1, algorithm="r2d2")
    """r2d2: n of the returns."""

    target_every_steps: int = option(2500, least=1, algorithm="r2d2")
    """r2d2: updates between copies into the target network."""

    polyak: float = option(0.005, above=0, most=1, algorithm="sac")
    """sac: how far the target critics move towards the critics with each update."""

    memory_size: int = option(512, least=1, algorithm="r2d2")
    """r2d2: LSTM units."""

    dueling_size: int = option(512, least=1, algorithm="r2d2")
    """r2d2: hidden units of the value and of the advantage."""

    hidden_size: int = option(256, least=1, algorithm="sac")
    """sac: units of both hidden layers of the actor and of the critics."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
