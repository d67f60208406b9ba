"""The inference service alone: ``python -m dba3c.benchmarks.inference``.

Actors of 32 environments send to one service whose policy always answers 0, so that nothing but the service costs
anything: links, unrolls, stacks, batches. Beside it, in the same run, the same environments are stepped in as many
processes without a service. "service" is the CPU time of the service's process per environment step; "actor adds" is
what an actor's process used per step beyond what the same steps took without a service.

Two kinds of environments: ``ALE/Breakout-v5``, and ``blank``, frames of the same size that cost next to nothing to
make, so that the service is what limits.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from gymnasium import spaces
from torch import Tensor

from dba3c.central.actor import Actor, ActorGroup
from dba3c.central.batching import Batcher
from dba3c.central.policies import Asked, Decision
from dba3c.central.service import InferenceService
from dba3c.central.unroll_store import GroupKey, UnrollStore
from dba3c.central.wire import GroupShape
from dba3c.environments import EnvironmentConfig, Transition, VectorEnvironment, make_vector_environment
from dba3c.metrics import Sections
from dba3c.networks import State

GROUPS = 2
JOIN_TIMEOUT_S = 60.0
MOST_TURN_S = 0.05


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    actors: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of actor processes, one after the other."""
    environments: tuple[str, ...] = ("blank", "ALE/Breakout-v5")
    envs_per_actor: int = 32
    seconds: float = 5.0
    """Of each measurement."""
    unroll_length: int = 20
    timeout_ms: float = 10.0
    """Longest wait for a batch of half of the environments."""
    json: Path | None = None
    """Write the measurements here as well."""


class BlankEnvironment:
    """Frames of Atari's size that are already there; no game ends."""

    frame_skip = 1

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(4)
        self._observation = np.random.default_rng(0).integers(0, 255, (num_envs, 4, 84, 84), dtype=np.uint8)
        nothing = np.zeros(num_envs, bool)
        self._step = Transition(self._observation, np.zeros(num_envs, np.float32), nothing, nothing, ~nothing, [])

    def reset(self, seed: int | None = None) -> np.ndarray:
        """The same frames as ever."""
        return self._observation

    def step(self, actions: np.ndarray, out: np.ndarray | None = None) -> Transition:
        """Nothing happens."""
        return self._step

    def close(self) -> None:
        """There is nothing to close."""


class ZeroPolicy:
    """Answers 0."""

    version = 0

    def __init__(self) -> None:
        self.answered = 0
        """Environment steps."""

    def initial_state(self, num_envs: int) -> State:
        """It remembers nothing."""
        return ()

    def load(self, parameters: Tensor, version: int) -> None:
        """It learns nothing."""

    def act(self, asked: Asked) -> Decision:
        """Zeros."""
        size = len(asked.observation)
        self.answered += size
        return Decision(np.zeros(size, np.int64), np.zeros(size, np.float32), ())


class Measurement(NamedTuple):
    """One row of the table."""

    environment: str
    actors: int
    steps_per_s: float
    """Through the service."""
    bare_steps_per_s: float
    """The same environments in as many processes, without a service."""
    service_us: float
    """CPU microseconds of the service's process per environment step."""
    actor_adds_us: float
    """CPU microseconds per step of the actors, beyond those without a service."""
    batch: float
    latency_p50_ms: float
    latency_p99_ms: float


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


def play(words: list[str]) -> None:
    """An actor's process: name, environments, rank, port (0: no service), seconds. Prints steps and CPU seconds."""
    name, num_envs, rank, port, seconds = words[0], *map(int, words[1:4]), float(words[4])
    size = num_envs // GROUPS
    shape = shape_of(name, size)
    groups = [ActorGroup(make_environments(name, size, rank * 10 + i), shape, rank * 10 + i) for i in range(GROUPS)]
    steps = 0
    secret = sys.stdin.readline().strip().encode()
    began_s = cpu_s = 0.0

    def count(version: int, sections: dict[str, float]) -> None:
        nonlocal steps, cpu_s
        if steps == 0:
            cpu_s = time.process_time()
        steps += size

    if port:
        Actor(
            rank=rank,
            incarnation=0,
            learner=0,
            groups=groups,
            resolve=lambda: ("127.0.0.1", port),
            secret=secret,
            join_timeout_s=JOIN_TIMEOUT_S,
            reconnect_timeout_s=JOIN_TIMEOUT_S,
            on_steps=count,
        ).run()
        wall_s = seconds
    else:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        while time.perf_counter() - began_s < seconds:
            for group in groups:
                group.environments.step(group.actions)
                steps += size
        wall_s = time.perf_counter() - began_s
    print(json.dumps({"steps": steps, "cpu_s": time.process_time() - cpu_s, "wall_s": wall_s}), flush=True)


def measure(name: str, actors: int, arguments: Arguments) -> Measurement:
    """Without a service, then through it."""
    bare = _collect([_start(name, rank, 0, b"-", arguments) for rank in range(actors)])
    secret = secrets.token_hex(16).encode()
    shape = shape_of(name, arguments.envs_per_actor // GROUPS)
    target = max(1, actors * arguments.envs_per_actor // 2)
    batcher: Batcher[GroupKey] = Batcher(target, arguments.timeout_ms / 1000)
    policy = ZeroPolicy()
    service = InferenceService(secret, 0, policy, UnrollStore(shape, arguments.unroll_length), batcher, GROUPS)
    _, port = service.hub.listen("127.0.0.1")
    processes = [_start(name, rank, port, secret, arguments) for rank in range(actors)]
    sections = Sections()
    deadline_s = time.perf_counter() + JOIN_TIMEOUT_S
    while service.store.ready < actors * GROUPS:  # everybody is there and warm
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"only actors {sorted(service.actors)} of {actors} came within {JOIN_TIMEOUT_S:.0f} s")
        service.turn(MOST_TURN_S, sections)
    service.store.release(service.store.take(service.store.ready))
    service.report.take()
    before, began_s, cpu_s = policy.answered, time.perf_counter(), time.process_time()
    while time.perf_counter() - began_s < arguments.seconds:
        service.turn(MOST_TURN_S, sections)
        service.store.release(service.store.take(service.store.ready))
    steps = policy.answered - before
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    report = service.report.take()
    service.close("measured")
    acted = _collect(processes)
    return Measurement(
        environment=name,
        actors=actors,
        steps_per_s=steps / wall_s,
        bare_steps_per_s=sum(one["steps"] / one["wall_s"] for one in bare),
        service_us=1e6 * cpu_s / max(steps, 1),
        actor_adds_us=1e6 * (_cpu_per_step(acted) - _cpu_per_step(bare)),
        batch=report["inference_batch"],
        latency_p50_ms=report["inference_latency_p50_ms"],
        latency_p99_ms=report["inference_latency_p99_ms"],
    )


def _start(name: str, rank: int, port: int, secret: bytes, arguments: Arguments) -> subprocess.Popen[str]:
    words = ["--play", name, str(arguments.envs_per_actor), str(rank), str(port), str(arguments.seconds)]
    process = subprocess.Popen(
        [sys.executable, "-m", "dba3c.benchmarks.inference", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(secret.decode() + "\n")  # not as an argument, which every user of the machine can see
    process.stdin.flush()
    return process


def _collect(processes: list[subprocess.Popen[str]]) -> list[dict[str, float]]:
    outputs = [process.communicate(timeout=JOIN_TIMEOUT_S + 60)[0] for process in processes]
    return [json.loads(output) for output in outputs]


def _cpu_per_step(played: list[dict[str, float]]) -> float:
    return sum(one["cpu_s"] for one in played) / max(1, sum(one["steps"] for one in played))


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["--play"]:
        play(words[1:])
        return
    arguments = tyro.cli(Arguments, args=words, description=__doc__)
    print(f"{'environment':<18}{'actors':>7}{'steps/s':>10}{'bare':>10}{'service':>12}{'actor adds':>12}", end="")
    print(f"{'batch':>7}{'p50':>9}{'p99':>9}")
    rows = []
    for name in arguments.environments:
        for actors in arguments.actors:
            row = measure(name, actors, arguments)
            rows.append(row._asdict())
            print(
                f"{name:<18}{actors:>7}{row.steps_per_s:>10,.0f}{row.bare_steps_per_s:>10,.0f}"
                f"{row.service_us:>9.1f} µs{row.actor_adds_us:>9.1f} µs{row.batch:>7.0f}"
                f"{row.latency_p50_ms:>6.1f} ms{row.latency_p99_ms:>6.1f} ms",
                flush=True,
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
