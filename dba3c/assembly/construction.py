"""From a configuration to the objects of a role: network, layout, agent, initial parameters."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gymnasium import spaces
from torch import Tensor, nn

from dba3c.algorithms.actor_critic import ActorCriticLoss, ActorCriticSettings
from dba3c.algorithms.agent import Agent
from dba3c.config import TrainConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.networks import ActorCriticNetwork, build_network
from dba3c.networks.q_networks import build_q_network
from dba3c.networks.sac_networks import build_sac_network
from param_servers.checkpoint.files import find_newest, load_checkpoint
from param_servers.layout import FlatLayout, ShardPlan, plan_shards


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


def build_any_network(config: TrainConfig, of: Spaces) -> nn.Module:
    """What the run's parameters are: a function of the configuration and its seed alone."""
    if config.algorithm.algorithm == "r2d2":
        return build_q_network(
            of.observation,
            of.action,
            seed=config.run.seed,
            lstm_size=config.replay.memory_size,
            dueling_size=config.replay.dueling_size,
        )
    if config.algorithm.algorithm == "sac":
        hidden = (config.replay.hidden_size, config.replay.hidden_size)
        return build_sac_network(of.observation, of.action, seed=config.run.seed, hidden=hidden)
    return build_policy_network(config, of)


def build_policy_network(config: TrainConfig, of: Spaces) -> ActorCriticNetwork:
    """The actor-critic network with its initial parameters."""
    return build_network(config.network.network, of.observation, of.action, seed=config.run.seed)


def plan_of(config: TrainConfig, network: nn.Module) -> ShardPlan:
    """How the network's parameters lie in the flat buffer, and where the buffer is cut."""
    return plan_shards(FlatLayout.of_module(network), config.exchange.num_servers, config.exchange.sharding)


def initial_parameters(config: TrainConfig, of: Spaces | None = None) -> tuple[ShardPlan, Tensor]:
    """The shard plan and the run's first parameters [P] float32; without `of` an environment is made to be asked."""
    network = build_any_network(config, of or spaces_of(config))
    plan = plan_of(config, network)
    return plan, plan.layout.flatten(network)


def build_agent(config: TrainConfig, of: Spaces) -> Agent:
    """An agent whose flat parameters lie as the run's servers hold them."""
    network = build_policy_network(config, of)
    algorithm = config.algorithm
    settings = ActorCriticSettings(
        discount=algorithm.discount,
        trace_lambda=algorithm.trace_lambda,
        value_cost=algorithm.value_cost,
        vtrace=algorithm.algorithm == "vtrace",
    )
    return Agent(
        network,
        plan_of(config, network).layout,
        ActorCriticLoss(of.action, settings),
        precision=config.network.precision,
        device=config.network.device,
    )


def check_buildable(config: TrainConfig, checkpoints: Path | None = None) -> None:
    """Build what the roles will build, so that what cannot be is one line before anything is started.

    Args:
        checkpoints: of the run to be resumed; its newest valid checkpoint must fit the network.

    Raises:
        UserError, ConfigError: an environment, network or sharding that cannot be.
        SnapshotError: the checkpoint belongs to another network, or there are some and none is whole.
        CheckpointUnreadable: the file system does not let them be read.
    """
    plan, _ = initial_parameters(config)
    if checkpoints is not None:
        newest = find_newest(checkpoints)
        if newest is not None:
            load_checkpoint(newest).slice_for(plan, shard=0)
