"""A loss of the user's own, by its name "package.module:Loss", in mode worker (docs/own_loss.md).

``Loss(action_space, settings)`` makes what is called with each rollout: ``loss(rollout, entropy_cost=0.01)`` gives a
``dba3c.algorithms.actor_critic.Loss``. A class with ``parts`` and ``of`` is not a loss but a whole algorithm
(``dba3c.workers.gradients.Gradients``; docs/own_algorithm.md).
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor

from dba3c.algorithms.actor_critic import ActorCriticLoss, ActorCriticSettings, Loss
from dba3c.algorithms.rollout import Rollout
from dba3c.errors import UserError
from dba3c.own_code import calling, find


def own_algorithm(name: str) -> Any:
    """The class of a whole algorithm that ``name`` means; None where it means a loss, or is no name of the user's."""
    found = find(name) if ":" in name else None
    return found if hasattr(found, "parts") else None


class OwnLoss(ActorCriticLoss):
    """What ``name`` makes, asked as ours is.

    Raises:
        UserError: it cannot be found or made; when it is called, it gave no loss.
    """

    def __init__(self, name: str, action_space: spaces.Space, settings: ActorCriticSettings) -> None:
        super().__init__(action_space, settings)
        self._name = name
        with calling(name):
            self._loss = find(name)(action_space, settings)

    def __call__(self, rollout: Rollout, *, entropy_cost: float, behaviour_log_probs: Tensor | None = None) -> Loss:
        """See ``ActorCriticLoss``; on-policy."""
        loss = self._loss(rollout, entropy_cost=entropy_cost)
        if not isinstance(loss, Loss):
            raise UserError(f"{self._name} must give a dba3c.algorithms.actor_critic.Loss, not {type(loss).__name__}")
        if loss.total.shape:
            raise UserError(f"{self._name}: total must be a scalar, not of shape {list(loss.total.shape)}")
        return loss
