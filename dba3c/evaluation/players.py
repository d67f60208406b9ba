"""Who plays evaluated and filmed games, and how: a score without its protocol means nothing.

The player is a checkpoint's policy, whatever algorithm trained it. Its games:

| protocol   | games                                                   | actions | source                            |
|------------|---------------------------------------------------------|---------|-----------------------------------|
| `2017`     | 40,000 agent steps at most, FIRE after 30 equal actions | greedy  | the 2017 system's evaluation node |
| all others | whole, to the environment's own limit                   | sampled | as A3C and IMPALA evaluated       |

Either kind of actions can be asked for; the name says which were taken.

Legend: N environments of a batch, A actions.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dba3c.algorithms.agent import Agent, FlatNetwork
from dba3c.assembly.model import Spaces, build_model
from dba3c.config import TrainConfig
from dba3c.environments.atari.protocols import protocol_name
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.protocol import MAX_SEED
from dba3c.networks import State
from dba3c.networks.distributions import Categorical
from dba3c.networks.sac_networks import ActionScaling
from dba3c.runs.checkpoints import Policy

Actions = Literal["sampled", "greedy"]
R2D2_EVALUATION_EPSILON = 0.001
"""R2D2's "sampled" actions: greedy ones, but for this share of random ones (Kapturowski et al. 2019)."""
LIMIT_2017_STEPS = 40_000


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol:
    """The environment as it is evaluated, and how actions are chosen from the policy."""

    name: str
    environment: EnvironmentConfig
    actions: Actions


def protocol_for(config: TrainConfig, actions: Actions | None = None) -> EvaluationProtocol:
    """The protocol that fits the run's environment; `actions` overrides its choice.

    The 2017 limit is set in frames, as consoles count them: 40,000 steps of its mean frame skip of 3 (the frame skip
    is drawn at random, so a game is cut within 1 % of 40,000 steps).
    """
    environment = config.environment
    name = protocol_name(environment)
    is_2017 = name.split(" ")[0] == "2017"
    if is_2017:
        frames = round(LIMIT_2017_STEPS * environment.frames_per_step)
        environment = replace(environment, max_episode_frames=frames)
        name += f", at most {LIMIT_2017_STEPS:,} steps a game"
    actions = actions or ("greedy" if is_2017 else "sampled")
    chosen = f"{actions} actions"
    if config.algorithm.algorithm == "r2d2" and actions == "sampled":
        chosen = f"greedy actions but for {R2D2_EVALUATION_EPSILON:.1%} random ones"
    return EvaluationProtocol(name=f"{name}, {chosen}", environment=environment, actions=actions)


def stream_seeds(run_seed: int, purpose: str, index: int) -> tuple[int, int]:
    """(seed of the environments, seed of the actions): functions of (run seed, purpose, index) alone."""
    words = np.random.SeedSequence([run_seed, zlib.crc32(purpose.encode()), index]).generate_state(2, dtype=np.uint64)
    return int(words[0] % MAX_SEED), int(words[1] >> np.uint64(1))


class Choice(NamedTuple):
    """What a player does about a batch of observations."""

    actions: np.ndarray
    """[N] int64, [N, D] int64 or float32: as the environments take them."""
    state: State
    """Recurrent state after these observations."""
    value: Tensor | None = None
    """[N] float32: what it expects to gain."""
    probabilities: Tensor | None = None
    """[N, A] float32, of one discrete action."""


class Player(Protocol):
    """Plays N environments at once; randomness is its own."""

    def initial_state(self, num_envs: int) -> State:
        """Recurrent state at the start of games, [N, ...] each."""
        ...

    def choose(self, observation: np.ndarray, reward: np.ndarray, state: State) -> Choice:
        """Observations [N, ...], float32 rewards [N] of the steps that led to them, as they are trained on."""
        ...


def make_player(config: TrainConfig, of: Spaces, policy: Policy, actions: Actions, seed: int) -> Player:
    """The player that the run's algorithm trained, with a checkpoint's parameters.

    Raises:
        UserError: the checkpoint is of another network.
    """
    network = build_model(config, of).network
    network.load(policy.parameters_for(network.layout))
    if isinstance(network, Agent):
        return AgentPlayer(network, actions, seed)
    if config.algorithm.algorithm == "sac":
        return SacPlayer(network, ActionScaling.of(of.action), actions, seed)
    return R2d2Player(network, actions, seed)


class AgentPlayer:
    """An actor-critic: draws from its policy, or takes the likeliest action."""

    def __init__(self, agent: Agent, actions: Actions, seed: int) -> None:
        self._agent = agent
        self._actions = actions
        self._generator = torch.Generator().manual_seed(seed)

    def initial_state(self, num_envs: int) -> State:
        """See `Player`."""
        return self._agent.initial_state(num_envs)

    @torch.no_grad()
    def choose(self, observation: np.ndarray, reward: np.ndarray, state: State) -> Choice:
        """See `Player`."""
        output = self._agent.forward(observation, state)
        policy = self._agent.policy(output.policy_logits.cpu())  # the generator lives on the CPU
        actions = policy.mode() if self._actions == "greedy" else policy.sample(self._generator)
        probabilities = policy.log_probabilities.exp() if isinstance(policy, Categorical) else None
        return Choice(actions.numpy(), output.state, output.value.cpu(), probabilities)


class R2d2Player:
    """Takes the action of the highest value. State: the LSTM's (h, c) and the previous action + 1, [N, 1]."""

    def __init__(self, network: FlatNetwork, actions: Actions, seed: int) -> None:
        self._flat = network
        self._epsilon = 0.0 if actions == "greedy" else R2D2_EVALUATION_EPSILON
        self._random = np.random.default_rng(seed)

    def initial_state(self, num_envs: int) -> State:
        """See `Player`."""
        hidden, memory = self._flat.network.initial_state(num_envs)
        return hidden, memory, torch.zeros(num_envs, 1, device=hidden.device)

    @torch.no_grad()
    def choose(self, observation: np.ndarray, reward: np.ndarray, state: State) -> Choice:
        """See `Player`."""
        network, device = self._flat.network, self._flat.device
        hidden, memory, before = state
        previous_action = before.squeeze(-1).long() - 1
        previous_reward = torch.as_tensor(reward, device=device) * (previous_action >= 0)
        output = network(
            torch.as_tensor(observation, device=device), (hidden, memory), previous_action, previous_reward
        )
        values, greedy = output.q_values.cpu().max(-1)
        explores = self._random.random(len(greedy)) < self._epsilon
        actions = np.where(explores, self._random.integers(network.num_actions, size=len(greedy)), greedy.numpy())
        after = torch.from_numpy(actions + 1).to(device, torch.float32).unsqueeze(-1)
        return Choice(actions, (*output.state, after), values)


class SacPlayer:
    """Draws from its squashed Gaussian, or takes the tanh of its mean."""

    def __init__(self, network: FlatNetwork, scaling: ActionScaling, actions: Actions, seed: int) -> None:
        self._flat = network
        self._scaling = scaling
        self._actions = actions
        self._generator = torch.Generator().manual_seed(seed)

    def initial_state(self, num_envs: int) -> State:
        """See `Player`."""
        return ()

    @torch.no_grad()
    def choose(self, observation: np.ndarray, reward: np.ndarray, state: State) -> Choice:
        """See `Player`."""
        sac = self._flat.network
        vector = sac.vector(torch.as_tensor(observation, device=self._flat.device))
        policy = sac.policy(vector)
        greedy = self._actions == "greedy"
        chosen = policy.mode() if greedy else policy.sample(self._generator)
        value = sac.critics(vector, chosen).amin(0)
        actions = self._scaling.to_environment(chosen.cpu().numpy()).astype(np.float32)
        return Choice(actions, (), value.cpu())
