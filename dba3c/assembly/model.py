"""What a run trains, as its configuration says: spaces, module, shard plan, first parameters, the network around it."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from dba3c.algorithms.actor_critic import ActorCriticLoss, OwnLoss, own_algorithm
from dba3c.algorithms.agent import Agent, FlatNetwork
from dba3c.algorithms.config import REPLAYING
from dba3c.algorithms.policies import Actions, ActorCriticPolicy, Policy, R2d2Policy, SacPolicy
from dba3c.algorithms.r2d2 import exploration_rate
from dba3c.config import TrainConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.errors import UserError
from dba3c.networks import ActorCriticNetwork, build_network
from dba3c.networks.q_networks import build_q_network
from dba3c.networks.sac_networks import ActionScaling, SacNetwork
from param_servers.checkpoint.files import find_newest, load_checkpoint
from param_servers.layout import FlatLayout, ShardPlan, plan_shards

R2D2_EVALUATION_EPSILON = 0.001
"""R2D2's "sampled" actions: greedy ones, but for this share of random ones (Kapturowski et al. 2019)."""


class Spaces(NamedTuple):
    """Of one environment."""

    observation: spaces.Space
    action: spaces.Space


def spaces_of(config: TrainConfig) -> Spaces:
    """The spaces of the configured environment, asked of one instance of it."""
    environments = make_vector_environment(config.environment, num_envs=1, seed=0)
    try:
        return Spaces(environments.observation_space, environments.action_space)
    finally:
        environments.close()


class Model(NamedTuple):
    """What a worker or a learner trains."""

    network: Any
    """An ``Agent``; for r2d2 and sac a ``FlatNetwork``."""
    plan: ShardPlan
    """How its parameters lie in the flat buffer, and where the buffer is cut."""
    parameters: Tensor
    """The run's first [P] float32."""


def build_model(config: TrainConfig, spaces: Spaces, *, only_plays: bool = False) -> Model:
    """All that a process which computes gradients, or chooses actions, needs of the network.

    Args:
        only_plays: it does not train, so where the run's device is missing the CPU does, and the module of the user's
            own loss is not needed.

    Raises UserError: there is no such device here, a network that cannot be, or another default dtype of torch.
    """
    if (dtype := torch.get_default_dtype()) != torch.float32:
        raise UserError(f"networks are float32, but torch's default dtype is {dtype}: set it back to torch.float32")
    device = config.network.device
    if only_plays and not _has(device):
        device = "cpu"
    check_device(device)
    module = build_module(config, spaces)
    if only_plays:
        module.eval()  # dropout is for who learns, but not where the user's own network has turned it off
    plan = plan_of(config, module)
    parameters = plan.layout.flatten(module)  # before the torso is cast to its precision
    algorithm, where = config.algorithm, {"precision": config.network.precision, "device": device}
    if algorithm.algorithm in REPLAYING:
        return Model(FlatNetwork(module, plan.layout, **where), plan, parameters)
    assert isinstance(module, ActorCriticNetwork)
    if algorithm.algorithm == "ppo" and module.initial_state(1):
        raise UserError(f"ppo draws its minibatches step by step, but {config.network.network} remembers: use vtrace")
    loss = ActorCriticLoss(spaces.action, algorithm)
    if not only_plays and ":" in algorithm.algorithm and own_algorithm(algorithm.algorithm) is None:
        loss = OwnLoss(algorithm.algorithm, spaces.action, algorithm)
    draws = ":" in config.network.network
    return Model(Agent(module, plan.layout, loss, draws=draws, **where), plan, parameters)


def build_policy(
    config: TrainConfig, network: Any, spaces: Spaces, seed: int, actions: Actions | None = None
) -> Policy:
    """How a model's network chooses actions: in games to be judged, or (None) while it learns by central inference."""
    if config.algorithm.algorithm == "r2d2":
        count = config.central.actors * config.central.envs_per_actor
        rates = [exploration_rate(index, count) for index in range(count)]
        if actions is not None:
            rates = [0.0 if actions == "greedy" else R2D2_EVALUATION_EPSILON]
        return R2d2Policy(network, rates, seed)
    if config.algorithm.algorithm == "sac":
        return SacPolicy(network, ActionScaling.of(spaces.action), seed, actions)
    return ActorCriticPolicy(network, seed, greedy=actions == "greedy")


def build_module(config: TrainConfig, spaces: Spaces) -> nn.Module:
    """What the run's parameters are: a function of the configuration and its seed alone."""
    algorithm, seed, replay = config.algorithm.algorithm, config.run.seed, config.replay
    if seed >= 1 << 32:  # of which torch's generator takes no more bits
        seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if algorithm == "r2d2":
        lstm_size, dueling_size = replay.memory_size, replay.dueling_size
        return build_q_network(
            spaces.observation, spaces.action, seed=seed, lstm_size=lstm_size, dueling_size=dueling_size
        )
    if algorithm == "sac":
        hidden = (replay.hidden_size, replay.hidden_size)
        return SacNetwork(spaces.observation, spaces.action, seed=seed, hidden=hidden)
    return build_network(config.network.network, spaces.observation, spaces.action, seed=seed)


def plan_of(config: TrainConfig, module: nn.Module) -> ShardPlan:
    """How the module's parameters lie in the flat buffer, and where the buffer is cut."""
    return plan_shards(FlatLayout.of_module(module), config.exchange.num_servers)


def initial_parameters(config: TrainConfig) -> tuple[ShardPlan, Tensor]:
    """The shard plan and the run's first parameters [P] float32, for who computes nothing with them."""
    module = build_module(config, spaces_of(config))
    plan = plan_of(config, module)
    return plan, plan.layout.flatten(module)


def check_device(device: str) -> None:
    """Raise UserError where torch has no such device here."""
    if not _has(device):
        count = torch.cuda.device_count()
        seen = f"sees {count} GPU{'s' if count > 1 else ''}, from cuda:0 on" if count else "sees no GPU on this machine"
        why = seen if torch.version.cuda else "was built without CUDA"
        raise UserError(f"--device {device}: torch {torch.__version__} {why}; use --device cpu")


def _has(device: str) -> bool:
    """Whether torch has this device here: "cpu", "cuda" or "cuda:N"."""
    number = int(device.partition(":")[2] or 0)
    return device == "cpu" or (torch.cuda.is_available() and number < torch.cuda.device_count())


def check_buildable(config: TrainConfig, checkpoints: Path | None = None) -> int:
    """Build what the roles will build, so that what cannot be is one line before anything is started.

    Args:
        checkpoints: of the run to be resumed; its newest valid checkpoint must fit the network.

    Returns:
        P, the number of parameters.

    Raises:
        UserError, ConfigError: an environment, network or sharding that cannot be.
        CheckpointError: the checkpoint belongs to another network, or there are some and none is whole.
        CheckpointUnreadable: the file system does not let them be read.
    """
    check_device(config.network.device)
    plan, _ = initial_parameters(config)
    if checkpoints is not None:
        newest = find_newest(checkpoints)
        if newest is not None:
            load_checkpoint(newest).slice_for(plan, shard=0)
    return plan.layout.numel
