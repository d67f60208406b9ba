"""Actor processes of the inference benchmark: environments that ask a service, or nobody."""

from __future__ import annotations

import time
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from dba3c.central.actor import Actor, ActorGroup
from dba3c.central.wire import GroupShape
from dba3c.environments import EnvironmentConfig, Transition, VectorEnvironment, make_vector_environment
from dba3c.environments.protocol import Experience

GROUPS = 2
JOIN_TIMEOUT_S = 60.0


class BlankEnvironment:
    """Frames of Atari's size that are already there; no game ends."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(4)
        self._observation = np.random.default_rng(0).integers(0, 255, (num_envs, 4, 84, 84), dtype=np.uint8)
        nothing = np.zeros(num_envs, bool)
        rewards, frames = np.zeros(num_envs, np.float32), np.ones(num_envs, np.int64)
        self._step = Transition(
            self._observation, rewards, nothing, nothing, ~nothing, [], rewards.astype(np.float64), frames
        )

    def reset(self, seed: int | None = None) -> np.ndarray:
        """The same frames as ever."""
        return self._observation

    def step(self, actions: np.ndarray) -> Transition:
        """Nothing happens."""
        return self._step

    def close(self) -> None:
        """There is nothing to close."""


def make_environments(name: str, num_envs: int, seed: int) -> VectorEnvironment:
    """``blank`` or any environment id."""
    if name == "blank":
        return BlankEnvironment(num_envs)
    return make_vector_environment(EnvironmentConfig(env_id=name), num_envs, seed)


def shape_of(name: str, num_envs: int) -> GroupShape:
    """Of one group of environments."""
    environments = make_environments(name, 1, 0)
    try:
        return GroupShape.of(environments.observation_space, environments.action_space, num_envs, 4)
    finally:
        environments.close()


class Played(NamedTuple):
    """What an actor's process says at its end."""

    steps: int
    """Environment steps."""
    cpu_s: float
    wall_s: float


def play(name: str, num_envs: int, rank: int, port: int, secret: bytes, seconds: float, told: Any, begin: Any) -> None:
    """An actor's process, which begins when all are ready; port 0: no service, for so many seconds."""
    size = num_envs // GROUPS
    shape = shape_of(name, size)
    groups = [ActorGroup(make_environments(name, size, rank * 10 + i), shape, rank * 10 + i) for i in range(GROUPS)]
    begin.wait(JOIN_TIMEOUT_S)
    told.put(_through(port, rank, secret, groups) if port else _bare(groups, seconds))
    for group in groups:
        group.environments.close()


def _through(port: int, rank: int, secret: bytes, groups: list[ActorGroup]) -> Played:
    """As an actor of a service, from the first step to the service's end."""
    steps, began_s, cpu_s = 0, 0.0, 0.0

    def count(version: int, experience: Experience, sections: dict[str, float]) -> None:
        nonlocal steps, began_s, cpu_s
        if steps == 0:
            began_s, cpu_s = time.perf_counter(), time.process_time()
        steps += groups[0].environments.num_envs

    Actor(
        rank=rank,
        incarnation=0,
        learner=0,
        groups=groups,
        resolve=lambda: ("127.0.0.1", port),
        secret=secret,
        join_timeout_s=JOIN_TIMEOUT_S,
        answer_timeout_s=JOIN_TIMEOUT_S,
        reconnect_timeout_s=JOIN_TIMEOUT_S,
        on_steps=count,
    ).run()
    return Played(steps, time.process_time() - cpu_s, time.perf_counter() - began_s)


def _bare(groups: list[ActorGroup], seconds: float) -> Played:
    """The same environments with nobody to ask."""
    for group in groups:
        group.environments.step(group.actions)
    steps, began_s, cpu_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began_s < seconds:
        for group in groups:
            group.environments.step(group.actions)
            steps += len(group.actions)
    return Played(steps, time.process_time() - cpu_s, time.perf_counter() - began_s)


class Actors:
    """Actor processes, which are not left behind whatever happens."""

    def __init__(self, name: str, num_envs: int, count: int, port: int, secret: bytes, seconds: float) -> None:
        context = get_context("forkserver")  # what they import is imported once
        context.set_forkserver_preload([__name__, "dba3c.environments.atari.consoles"])
        self._told, self._begin = context.Queue(), context.Barrier(count + 1)
        self._processes = [
            context.Process(
                target=play, args=(name, num_envs, rank, port, secret, seconds, self._told, self._begin), daemon=True
            )
            for rank in range(count)
        ]

    def __enter__(self) -> Actors:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join(10)

    def begin(self) -> None:
        """Wait until all are ready, and let them begin."""
        self._begin.wait(JOIN_TIMEOUT_S)

    def played(self) -> list[Played]:
        """What each of them did, when all have ended."""
        return [self._told.get(timeout=JOIN_TIMEOUT_S + 60) for _ in self._processes]
