"""The inference service alone: ``python -m dba3c.benchmarks.inference``.

Actors of 32 environments send to one service whose policy always answers 0, so that nothing but the service costs
anything: links, unrolls, stacks, batches. Beside it, in the same run, the same environments are stepped in as many
processes without a service. "service" is the CPU time of the service's process per environment step; "actor adds" is
what an actor's process used per step beyond what the same steps took without a service.

Two kinds of environments: ``ALE/Breakout-v5``, and ``blank``, frames of the same size that cost next to nothing to
make, so that the service is what limits.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tyro
from gymnasium import spaces
from torch import Tensor

from dba3c.algorithms.policies import Asked, Decision, Policy
from dba3c.central.actor import Actor, ActorGroup
from dba3c.central.service import Batcher, InferenceService
from dba3c.central.unrolls import UnrollStore
from dba3c.central.wire import GroupShape
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import Transition, VectorEnvironment
from dba3c.errors import UserError
from dba3c.metrics.writer import Sections
from dba3c.networks import State
from param_servers.benchmarks.hosts import FORK, Processes

MOST_TURN_S = 0.05
GROUPS = 2
"""Of an actor's environments: one is stepped while another is answered."""
JOIN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    actors: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of actor processes, one after the other."""
    environments: tuple[str, ...] = ("blank", "ALE/Breakout-v5")
    envs_per_actor: int = 32
    seconds: float = 5.0
    """Of each measurement, without and with the service."""
    unroll_length: int = 20
    timeout_ms: float = 10.0
    """Longest wait for a batch of half of the environments."""


# -- actor processes: environments that ask a service, or nobody -------------------------------------------------------


class BlankEnvironment:
    """Frames of Atari's size that are already there; no game ends. `play` is called for each step of all."""

    def __init__(self, num_envs: int, play: Callable[[], None] = lambda: None) -> None:
        self.num_envs, self._play = num_envs, play
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(4)
        self._observation = np.random.default_rng(0).integers(0, 255, (num_envs, 4, 84, 84), dtype=np.uint8)
        nothing = np.zeros(num_envs, bool)
        rewards, frames = np.zeros(num_envs, np.float32), np.ones(num_envs, np.int64)
        self._step = Transition(
            self._observation, rewards, nothing, nothing, ~nothing, nothing, [], rewards.astype(np.float64), frames
        )

    def reset(self) -> np.ndarray:
        return self._observation

    def step(self, actions: np.ndarray) -> Transition:
        self._play()
        return self._step

    def close(self) -> None:
        return


def make_environments(name: str, num_envs: int, seed: int) -> VectorEnvironment:
    """``blank`` or any environment id."""
    if name == "blank":
        return BlankEnvironment(num_envs)
    return make_vector_environment(EnvironmentConfig(env_id=name), num_envs, seed)


def shape_of(name: str, num_envs: int) -> GroupShape:
    """Of one group of environments."""
    environments = make_environments(name, 1, 0)
    frames = 4 if name == "blank" else EnvironmentConfig(env_id=name).frames_per_observation
    try:
        return GroupShape.of(environments.observation_space, environments.action_space, num_envs, frames)
    finally:
        environments.close()


class Played(NamedTuple):
    """What an actor's process says at its end."""

    steps: int
    """Environment steps."""
    cpu_s: float
    wall_s: float


def play(name: str, num_envs: int, rank: int, service: tuple[int, bytes] | None, seconds: float, begin: Any) -> Played:
    """An actor's process, which begins when all are ready: of a service (its port, its secret) until that ends, or for
    so many seconds with nobody to ask."""
    size = num_envs // GROUPS
    shape = shape_of(name, size)
    groups = [ActorGroup(make_environments(name, size, rank * 10 + i), shape) for i in range(GROUPS)]
    begin.wait(JOIN_TIMEOUT_S)
    played = _bare(groups, seconds) if service is None else _through(*service, rank, groups)
    for group in groups:
        group.environments.close()
    return played


def _through(port: int, secret: bytes, rank: int, groups: list[ActorGroup]) -> Played:
    """From the first step to the service's end."""
    steps, began_s, cpu_s = 0, 0.0, 0.0

    def count(version: int, transition: Transition, sections: dict[str, float]) -> None:
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
    for group in groups:
        group.environments.step(group.actions)
    steps, began_s, cpu_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began_s < seconds:
        for group in groups:
            group.environments.step(group.actions)
            steps += len(group.actions)
    return Played(steps, time.process_time() - cpu_s, time.perf_counter() - began_s)


# -- the service -------------------------------------------------------------------------------------------------------


class ZeroPolicy(Policy):
    """Answers 0, when `think` (observations) has returned."""

    version = 0

    def __init__(self, think: Callable[[int], None] = lambda observations: None) -> None:
        self._think = think
        self.answered = 0
        """Environment steps."""

    def initial_state(self, num_envs: int) -> State:
        return ()

    def load(self, parameters: Tensor, version: int) -> None:
        return

    def act(self, asked: Asked) -> Decision:
        size = len(asked.observation)
        self._think(size)
        self.answered += size
        return Decision(np.zeros(size, np.int64), np.zeros(size, np.float32), ())


class Served(NamedTuple):
    """What the service did and used."""

    steps: int
    turns: int
    wall_s: float
    cpu_s: float
    report: dict[str, float]


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
    turns_per_message: float
    """Of the service's loop: 1 where each message wakes it once, less where several come together."""
    batch: float
    latency_p50_ms: float
    latency_p99_ms: float


def measure(name: str, actors: int, arguments: Arguments) -> Measurement:
    """Through the service, then without one."""
    num_envs = arguments.envs_per_actor
    served, acted = serve(name, actors, arguments)
    processes, begin = actor_processes(name, actors, None, arguments)
    with processes:
        begin.wait(JOIN_TIMEOUT_S)
        bare = [processes.result() for _ in range(actors)]
    return Measurement(
        environment=name,
        actors=actors,
        steps_per_s=served.steps / served.wall_s,
        bare_steps_per_s=sum(one.steps / one.wall_s for one in bare),
        service_us=1e6 * served.cpu_s / served.steps,
        actor_adds_us=1e6 * (_cpu_per_step(acted) - _cpu_per_step(bare)),
        turns_per_message=served.turns * (num_envs // GROUPS) / served.steps,
        batch=served.report["inference_batch"],
        latency_p50_ms=served.report["inference_latency_p50_ms"],
        latency_p99_ms=served.report["inference_latency_p99_ms"],
    )


def actor_processes(
    name: str, actors: int, service: tuple[int, bytes] | None, arguments: Arguments
) -> tuple[Processes, Any]:
    """Each has a `Played` as its result; and the barrier at which they wait for each other and for the caller."""
    begin, num_envs, seconds = FORK.Barrier(actors + 1), arguments.envs_per_actor, arguments.seconds
    return Processes(actors, lambda rank, _: play(name, num_envs, rank, service, seconds, begin)), begin


def serve(name: str, actors: int, arguments: Arguments) -> tuple[Served, list[Played]]:
    """One service for so many actors: what it used, what they did."""
    num_envs, secret = arguments.envs_per_actor, secrets.token_hex(16).encode()
    shape = shape_of(name, num_envs // GROUPS)
    target = max(1, actors * num_envs // 2)
    batcher = Batcher(target, arguments.timeout_ms / 1000)
    policy = ZeroPolicy()
    service = InferenceService(secret, 0, policy, UnrollStore(shape, arguments.unroll_length), batcher, GROUPS)
    _, port = service.hub.listen("127.0.0.1")
    processes, begin = actor_processes(name, actors, (port, secret), arguments)
    with processes:
        begin.wait(JOIN_TIMEOUT_S)
        _warm_up(service, actors)
        before, turns = policy.answered, 0
        began_s, cpu_s = time.perf_counter(), time.process_time()
        sections = Sections()
        while time.perf_counter() - began_s < arguments.seconds:
            service.turn(MOST_TURN_S, sections)
            service.store.take(service.store.ready)
            turns += 1
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        report = service.report.take()
        service.close("measured")
        played = [processes.result() for _ in range(actors)]
    return Served(max(1, policy.answered - before), turns, wall_s, cpu_s, report), played


def _warm_up(service: InferenceService, actors: int) -> None:
    """Until everybody is there and the memory of all unrolls has been written once. Raises TimeoutError."""
    sections, deadline_s = Sections(), time.perf_counter() + JOIN_TIMEOUT_S
    for _ in range(2):  # the first unrolls of all groups, then those that were begun when the first were complete
        while service.store.ready < actors * GROUPS:
            if time.perf_counter() > deadline_s:
                here = sorted(service.actors)
                raise TimeoutError(f"only actors {here} of {actors} came within {JOIN_TIMEOUT_S:.0f} s")
            service.turn(MOST_TURN_S, sections)
        service.store.take(service.store.ready)
    service.report.take()


def _cpu_per_step(played: list[Played]) -> float:
    return sum(one.cpu_s for one in played) / max(1, sum(one.steps for one in played))


def run(arguments: Arguments) -> list[Measurement]:
    """All points, one after the other; each is printed when it is there."""
    print(f"{'environment':<18}{'actors':>7}{'steps/s':>10}{'bare':>12}{'service':>12}", end="")
    print(f"{'actor adds':>12}{'turns':>7}{'batch':>7}{'p50':>9}{'p99':>9}")
    rows = []
    for name in arguments.environments:
        for actors in arguments.actors:
            row = measure(name, actors, arguments)
            rows.append(row)
            print(
                f"{name:<18}{actors:>7}{row.steps_per_s:>10,.0f}{row.bare_steps_per_s:>12,.0f}"
                f"{row.service_us:>9.1f} µs{row.actor_adds_us:>9.1f} µs"
                f"{row.turns_per_message:>7.1f}{row.batch:>7.0f}"
                f"{row.latency_p50_ms:>6.1f} ms{row.latency_p99_ms:>6.1f} ms",
                flush=True,
            )
    return rows


def main() -> None:
    """Print the table."""
    try:
        run(tyro.cli(Arguments, description=__doc__))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
