"""A game that counts its steps and breaks on demand, and vectors of it."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.gymnasium_vector import LoopVectorEnvironment

CONFIG = EnvironmentConfig(env_id="tests.game:make", environment_restarts=2)


class Counting(gymnasium.Env):
    """Observes its step number; ends after `length`; misbehaves at step `bad_at` of its life as `fault` says."""

    observation_space = Box(0, 100, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length=3, truncates=False, fault=None, bad_at=2):
        self.length, self.truncates, self.fault, self.bad_at = length, truncates, fault, bad_at
        self.life = self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.life += 1
        observation, reward = np.full(2, self.t, np.float32), 10.0
        if self.fault and self.life == self.bad_at:
            observation, reward = self.fault(observation, reward)
        ended = self.t == self.length
        return observation, reward, ended and not self.truncates, ended and self.truncates, {}


def loop(*environments, config=CONFIG):
    """A vector of the given environments, then ones that never end for every restart."""
    queue = [*environments, *[Counting(length=100) for _ in range(9)]]
    envs = LoopVectorEnvironment(config, lambda: queue.pop(0), len(environments), 7)
    envs.reset()
    return envs


def raising(observation, reward):
    raise RuntimeError("the physics exploded\nsecond line")


def leaving(observation, reward):
    raise SystemExit(0)


FAULTS = {
    "RuntimeError: the physics exploded": raising,
    "SystemExit: 0": leaving,
    "reward nan": lambda observation, reward: (observation, float("nan")),
    "observation with NaN": lambda observation, reward: (observation * np.nan, reward),
    "observation of shape (3,) instead of (2,)": lambda observation, reward: (np.zeros(3, np.float32), reward),
    "observation of dtype complex128": lambda observation, reward: (observation.astype(complex), reward),
}


def unmakable():
    raise OSError("the port is in use")
