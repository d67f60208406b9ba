"""How actions are chosen without a graph: by central inference while it learns, in evaluated and in filmed games.

Legend: N environments of a batch, D action dimensions, A actions.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dba3c.algorithms.agent import Agent, FlatNetwork
from dba3c.algorithms.r2d2 import unrescale
from dba3c.networks import State
from dba3c.networks.distributions import Categorical
from dba3c.networks.sac_networks import ActionScaling

Actions = Literal["sampled", "greedy"]


class Asked(NamedTuple):
    """One batch of questions."""

    observation: np.ndarray  # [N, ...]
    state: State  # recurrent state before these observations [N, ...]
    reward: np.ndarray  # [N] float32, of the step that led here; meaningless where an episode begins
    environments: np.ndarray  # [N] int64: numbers that stay with an environment (actor, group and place in it)


class Decision(NamedTuple):
    """One batch of actions."""

    actions: np.ndarray  # [N] int64, [N, D] int64 or float32
    log_probs: np.ndarray  # [N] float32: log μ(a|x) of the actions; 0 where a replay needs none
    state: State  # recurrent state after these observations [N, ...]
    value: Tensor | None = None  # [N] float32: what is expected to be gained
    probabilities: Tensor | None = None  # [N, A] float32, of one discrete action


class Policy(ABC):
    """Chooses actions; randomness is its own.

    Args:
        network: its own, or the learner's: then ``load`` also gives the learner its parameters.
    """

    version = -1
    """Which weights decide: the step they were committed at."""

    def __init__(self, network: FlatNetwork) -> None:
        self._network = network

    def load(self, parameters: Tensor, version: int) -> None:
        """Decide with these flat parameters [P] from now on."""
        self._network.load(parameters)
        self.version = version

    @abstractmethod
    def initial_state(self, num_envs: int) -> State:
        """Recurrent state of fresh episodes."""

    @abstractmethod
    def act(self, asked: Asked) -> Decision:
        """Actions for one batch."""


class ActorCriticPolicy(Policy):
    """Draws from an agent's policy, or takes the likeliest action."""

    def __init__(self, agent: Agent, seed: int, greedy: bool = False) -> None:
        super().__init__(agent)
        self._agent, self._greedy = agent, greedy
        self._generator = torch.Generator().manual_seed(seed)

    def initial_state(self, num_envs: int) -> State:
        return self._agent.initial_state(num_envs)

    @torch.no_grad()
    def act(self, asked: Asked) -> Decision:
        output = self._agent.forward(asked.observation, asked.state)
        policy = self._agent.policy(output.policy_logits.cpu())  # the sampler's generator lives on the CPU
        actions = policy.mode() if self._greedy else policy.sample(self._generator)
        probabilities = policy.log_probabilities.exp() if isinstance(policy, Categorical) else None
        log_probs = policy.log_prob(actions).numpy()
        return Decision(actions.numpy(), log_probs, output.state, output.value, probabilities)


class R2d2Policy(Policy):
    """ε-greedy, each environment with an ε of its own (Horgan et al. 2018).

    Its state is the LSTM's (h, c) and the previous action + 1 [N, 1], so that zeros mean none of them.

    Args:
        network: a ``FlatNetwork`` around a ``RecurrentQNetwork``, its own or the learner's.
        rates: ε of the environments, by their numbers modulo how many there are.
        seed: of the actions.
    """

    def __init__(self, network: FlatNetwork, rates: Sequence[float], seed: int) -> None:
        super().__init__(network)
        self._rates = np.array(rates)
        self._rng = np.random.default_rng(seed)

    def initial_state(self, num_envs: int) -> State:
        hidden, memory = self._network.network.initial_state(num_envs)
        return hidden, memory, torch.zeros(num_envs, 1, device=hidden.device)

    @torch.no_grad()
    def act(self, asked: Asked) -> Decision:
        network, device = self._network.network, self._network.device
        hidden, memory, before = asked.state
        previous_action = before.squeeze(-1).long() - 1
        # the reward that led to an episode's first observation is not part of it
        reward = torch.from_numpy(asked.reward).to(device) * (previous_action >= 0)
        observation = torch.as_tensor(asked.observation, device=device)
        output = network(observation, (hidden, memory), previous_action, reward)
        actions = output.q_values.argmax(-1).cpu().numpy()
        explores = self._rng.random(len(actions)) < self._rates[asked.environments % len(self._rates)]
        actions = np.where(explores, self._rng.integers(network.num_actions, size=len(actions)), actions)
        after = torch.from_numpy(actions + 1).to(device, torch.float32).unsqueeze(-1)
        state, value = (*output.state, after), unrescale(output.q_values.amax(-1))
        return Decision(actions, np.zeros(len(actions), np.float32), state, value)


class SacPolicy(Policy):
    """Samples from the tanh-Gaussian, uniformly before the first update; or (``actions``) plays a trained one's games.

    Args:
        network: a ``FlatNetwork`` around a ``SacNetwork``, its own or the learner's.
        seed: of the actions.
    """

    def __init__(self, network: FlatNetwork, scaling: ActionScaling, seed: int, actions: Actions | None = None) -> None:
        super().__init__(network)
        self._scaling, self._actions = scaling, actions
        self._generator = torch.Generator(network.device).manual_seed(seed)

    def initial_state(self, num_envs: int) -> State:
        """It remembers nothing."""
        return ()

    @torch.no_grad()
    def act(self, asked: Asked) -> Decision:
        sac, size, value = self._network.network, len(asked.observation), None
        if self._actions is None and self.version <= 0:
            shape = (size, len(self._scaling.centre))
            chosen = torch.rand(shape, generator=self._generator, device=self._network.device) * 2 - 1
        else:
            vector = sac.vector(torch.as_tensor(asked.observation, device=self._network.device))
            policy = sac.policy(vector)
            chosen = policy.mode() if self._actions == "greedy" else policy.sample(self._generator)
            value = None if self._actions is None else sac.critics(vector, chosen).amin(0)
        actions = self._scaling.to_environment(chosen.cpu().numpy()).astype(np.float32)
        return Decision(actions, np.zeros(size, np.float32), (), value)
