"""Who plays evaluated and filmed games, and how: a score without its protocol means nothing.

The player is a checkpoint's policy, whatever algorithm trained it. Its games:

| protocol   | games                                                   | actions | source                            |
|------------|---------------------------------------------------------|---------|-----------------------------------|
| `2017`     | 40,000 agent steps at most, FIRE after 30 equal actions | greedy  | the 2017 system's evaluation node |
| all others | whole, to the environment's own limit                   | sampled | as A3C and IMPALA evaluated       |

Either kind of actions can be asked for; the name says which were taken.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np

from dba3c.algorithms.policies import Actions
from dba3c.algorithms.policies import Policy as Player
from dba3c.assembly.model import R2D2_EVALUATION_EPSILON, Spaces, build_model, build_policy
from dba3c.config import TrainConfig
from dba3c.environments.atari_protocols import protocol_name
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.normalization import use_statistics
from dba3c.environments.protocol import MAX_SEED, VectorEnvironment
from dba3c.runs.checkpoints import Policy

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


def make_player(
    config: TrainConfig, environments: VectorEnvironment, policy: Policy, actions: Actions, seed: int
) -> Player:
    """The player that the run's algorithm trained, with a checkpoint's parameters, for environments of the evaluation
    view, which from now on normalise as that checkpoint did.

    Raises:
        UserError: the checkpoint is of another network, or its run kept no statistics of observations.
    """
    use_statistics(environments, policy.observation_statistics, f"checkpoint step-{policy.step}")
    of = Spaces(environments.observation_space, environments.action_space)
    network = build_model(config, of).network
    player = build_policy(config, network, of, seed, actions)
    player.load(policy.parameters_for(network.layout), policy.step)
    return player
