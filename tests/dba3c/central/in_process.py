"""Central inference in one thread, without sockets: what actors and service do, in a fixed order: seeds decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dba3c.algorithms.policies import Asked, Policy
from dba3c.assembly.model import spaces_of
from dba3c.central.actor import ActorGroup
from dba3c.central.inference_thread import Serving
from dba3c.central.service import InferenceReport
from dba3c.central.unrolls import GroupKey, UnrollStore
from dba3c.central.wire import WHOLE, group_shape
from dba3c.config import TrainConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import Episode, worker_seed
from dba3c.metrics.writer import Sections
from dba3c.networks import reset_state


class InProcessService:
    """The part of an ``InferenceService`` that learners look at."""

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        central = config.central
        shape = group_shape(config, spaces_of(config))
        self.policy, self.report = policy, InferenceReport()
        self.store = UnrollStore(shape, central.unroll_length)
        self.episodes: list[Episode] = []
        """Of all games, in the order in which they ended."""
        self.actors = set(range(central.actors))
        self.groups: dict[GroupKey, ActorGroup] = {}
        self.states: dict[GroupKey, Any] = {}
        for number in range(central.actors * central.actor_groups):
            key = GroupKey(number // central.actor_groups, 0, number % central.actor_groups)
            seed = worker_seed(config.run.seed, number)
            environments = make_vector_environment(config.environment, shape.num_envs, seed)
            self.groups[key] = ActorGroup(environments, shape)
            self.states[key] = policy.initial_state(shape.num_envs)
            self.store.begin(key, self.states[key])

    def turn(self, patience_s: float = 0.0, sections: Sections | None = None) -> None:
        """One step of every group; as an ``InferenceService`` does, it tells its time."""
        size, sections = self.store.shape.num_envs, sections or Sections()
        for number, (key, group) in enumerate(self.groups.items()):
            with sections("serving"):
                unroll = self.store.of(key)
                unroll.place(len(group.message))[:] = group.message
                first = torch.from_numpy(unroll.flags[unroll.time] & WHOLE != 0)
                self.states[key] = reset_state(self.states[key], first)
                self.store.arrived(key, len(group.message), self.states[key])
            with sections("inference"):
                unroll = self.store.of(key)
                observation = np.empty((size, *self.store.shape.observation_shape), self.store.shape.dtype)
                unroll.observation_into(observation)
                numbers = np.arange(number * size, (number + 1) * size)
                decision = self.policy.act(Asked(observation, self.states[key], unroll.rewards[unroll.time], numbers))
                unroll.answer(decision.actions, decision.log_probs, self.policy.version)
                self.states[key] = decision.state
            with sections("waiting"):
                group.actions[:] = decision.actions
                self.episodes += group.step().episodes

    def close(self, reason: str | None) -> None:
        """The games are over."""
        for group in self.groups.values():
            group.environments.close()


class InProcessServing(Serving):
    """It serves in the learner's thread, with the learner's network."""

    service: Any

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        service: Any = InProcessService(config, policy)
        super().__init__(service, range(config.central.actors), 60.0, None, 0)  # type: ignore[arg-type]

    def publish(self, parameters: Tensor, step: int) -> None:
        self.service.policy.load(parameters, step)

    def _wait_for(self, count: int, sections: Sections) -> None:
        while self.service.store.ready < count:
            self.service.turn(0.0, sections)
