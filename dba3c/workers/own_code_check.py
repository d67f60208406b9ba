"""Before a run is started: the user's own network and loss learn from one rollout, where mistakes are one line."""

from __future__ import annotations

import torch

from dba3c.assembly.model import Spaces, build_model
from dba3c.config import TrainConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.errors import UserError
from dba3c.metrics import registry
from dba3c.metrics.writer import Sections
from dba3c.own_code import calling
from dba3c.workers.collector import Collector
from dba3c.workers.gradients import gradients_of

ENVIRONMENTS = 2


def check_own_code(config: TrainConfig) -> None:
    """Do what a worker does until its first gradient, where something in it is the user's own.

    Raises:
        UserError: what is wrong, and where.
    """
    own = [name for name in (config.network.network, config.algorithm.algorithm) if ":" in name]
    if not own or config.central.mode != "worker":
        return
    name = own[-1]
    environments = make_vector_environment(config.environment, ENVIRONMENTS, seed=0)
    try:
        agent = build_model(config, Spaces(environments.observation_space, environments.action_space)).network
        with calling(name):
            gradients, generator = gradients_of(config.algorithm, agent, ENVIRONMENTS), torch.Generator()
            length, keep = config.algorithm.rollout_length, gradients.keeps_observations
            rollout = Collector(environments, agent, length, 0, keep).collect(generator, Sections())
            part, _ = next(iter(gradients.parts(rollout, generator)))
            gradient, numbers = gradients.of(part, 0)
    finally:
        environments.close()
    if not torch.isfinite(gradient).all():
        raise UserError(f"{name}: the gradient of the first rollout has numbers that are not finite")
    for metric in numbers:
        registry.find("step", metric)
