"""B environments of one kind, each replaced by a new one when it breaks, so often within an hour."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from dba3c.environments.errors import EnvironmentFailed, failure_line
from dba3c.environments.seeding import environment_seed
from param_servers.patience import Restarts

_LOG = logging.getLogger(__name__)
RESTART_WINDOW_S = 3600.0
MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]


class RestartableEnvironments:
    """The environments themselves: `envs`, what they are to be seeded with, and who takes a broken one's place.

    Args:
        num_envs: B. None is made here: see `make_another`.
        seed: of them all, e.g. `worker_seed(run_seed, worker, incarnation)`.
        allowed: restarts of each environment within `RESTART_WINDOW_S`.
    """

    def __init__(self, env_id: str, make_env: MakeEnv, num_envs: int, seed: int, allowed: int) -> None:
        self.seed = seed
        self.envs: list[gymnasium.Env[Any, Any]] = []
        self.unseeded = np.ones(num_envs, dtype=bool)  # whose next reset takes a seed
        self.life_steps = np.zeros(num_envs, dtype=np.int64)  # since each was made, for failure lines
        self._env_id = env_id
        self._make_env = make_env
        self._restarts = [Restarts(allowed, RESTART_WINDOW_S) for _ in range(num_envs)]
        self._closed: set[int] = set()  # broken ones whose place nobody has taken

    def make_another(self) -> gymnasium.Env[Any, Any]:
        """The next one of the first B. Raises what `make_env` raises: nothing was played yet, so that is no restart."""
        self.envs.append(self._make_env())
        return self.envs[-1]

    def begin(self, seed: int | None) -> None:
        """Every environment starts anew, with the seeds of `seed` or else of the last one."""
        if seed is not None:
            self.seed = seed
        self.unseeded[:] = True
        self.life_steps[:] = 0

    def seed_for_reset(self, index: int) -> int | None:
        """What `reset` is to be given: a seed once in each environment's life."""
        return self.seed_of(index) if self.unseeded[index] else None

    def seed_of(self, index: int) -> int:
        """The seed of environment `index`, another one after each restart."""
        return environment_seed(self.seed, index, self._restarts[index].total)

    def restart(self, index: int, error: Exception, failures: list[str]) -> None:
        """Replace an environment that broke by `error` by a new one with the next seed.

        One line for each attempt is added to `failures`: that a new one cannot be made is one more failure. Raises
        `EnvironmentFailed` when no attempt is left.
        """
        self._count(index, error, failures)
        try:
            self.envs[index].close()
        except Exception as close_error:  # it is broken already; the line says that it did not close
            failures[-1] += f" (closing it raised {type(close_error).__name__})"
        self._closed.add(index)
        while index in self._closed:
            self.unseeded[index], self.life_steps[index] = True, 0
            try:
                self.envs[index] = self._make_env()
                self._closed.remove(index)
            except Exception as making:  # whatever a stranger's constructor raises is named and bounded
                self._count(index, making, failures)

    def close(self) -> None:
        """Close every environment."""
        for index, env in enumerate(self.envs):
            if index not in self._closed:
                env.close()
        self.envs = []

    def _count(self, index: int, error: Exception, failures: list[str]) -> None:
        """One restart more for environment `index`, or `EnvironmentFailed`."""
        line = failure_line(self._env_id, index, self.seed_of(index), int(self.life_steps[index]), one_line(error))
        restarts = self._restarts[index]
        if not restarts.take():
            raise EnvironmentFailed(f"{line}; given up after {restarts.most} restarts") from error
        failures.append(f"{line}; restart {restarts}")
        _LOG.warning(failures[-1])


def one_line(error: Exception) -> str:
    """The error's type and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
