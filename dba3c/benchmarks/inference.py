"""The inference service alone: ``python -m dba3c.benchmarks.inference``.

Actors of 32 environments send to one service whose policy always answers 0, so that nothing but the service costs
anything: links, unrolls, stacks, batches. Beside it, in the same run, the same environments are stepped in as many
processes without a service. "service" is the CPU time of the service's process per environment step; "actor adds" is
what an actor's process used per step beyond what the same steps took without a service. "same work" is a control:
how much dearer a fixed piece of other work becomes beside the bare environments, in this process, woken as often.

Two kinds of environments: ``ALE/Breakout-v5``, and ``blank``, frames of the same size that cost next to nothing to
make, so that the service is what limits.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from torch import Tensor

from dba3c.benchmarks import fixed_work
from dba3c.benchmarks.inference_actors import GROUPS, JOIN_TIMEOUT_S, Actors, Played, shape_of
from dba3c.central.batching import Batcher
from dba3c.central.policies import Asked, Decision
from dba3c.central.service import InferenceService
from dba3c.central.unroll import GroupKey
from dba3c.central.unroll_store import UnrollStore
from dba3c.metrics.writer import Sections
from dba3c.networks import State

MOST_TURN_S = 0.05


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
    json: Path | None = None
    """Write the measurements here as well."""


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
    same_work: float
    """How many times the CPU time that it takes alone a fixed piece of other work takes beside the bare environments,
    when this process wakes up for it as often as for the service's turns."""
    actor_adds_us: float
    """CPU microseconds per step of the actors, beyond those without a service."""
    turns_per_message: float
    """Of the service's loop: 1 where each message wakes it once, less where several come together."""
    batch: float
    latency_p50_ms: float
    latency_p99_ms: float


def measure(name: str, actors: int, arguments: Arguments) -> Measurement:
    """Through the service, then without one but with the control in its place."""
    num_envs, seconds = arguments.envs_per_actor, arguments.seconds
    alone_s = fixed_work.alone_s()
    served, acted = serve(name, actors, arguments)
    with Actors(name, num_envs, actors, 0, b"", seconds) as alone:
        alone.begin()
        woken_s = fixed_work.woken_s(served.wall_s / served.turns, seconds)
        bare = alone.played()
    return Measurement(
        environment=name,
        actors=actors,
        steps_per_s=served.steps / served.wall_s,
        bare_steps_per_s=sum(one.steps / one.wall_s for one in bare),
        service_us=1e6 * served.cpu_s / served.steps,
        same_work=woken_s / alone_s,
        actor_adds_us=1e6 * (_cpu_per_step(acted) - _cpu_per_step(bare)),
        turns_per_message=served.turns * (num_envs // GROUPS) / served.steps,
        batch=served.report["inference_batch"],
        latency_p50_ms=served.report["inference_latency_p50_ms"],
        latency_p99_ms=served.report["inference_latency_p99_ms"],
    )


def serve(name: str, actors: int, arguments: Arguments) -> tuple[Served, list[Played]]:
    """One service for so many actors: what it used, what they did."""
    num_envs, secret = arguments.envs_per_actor, secrets.token_hex(16).encode()
    shape = shape_of(name, num_envs // GROUPS)
    target = max(1, actors * num_envs // 2)
    batcher: Batcher[GroupKey] = Batcher(target, arguments.timeout_ms / 1000)
    policy = ZeroPolicy()
    service = InferenceService(secret, 0, policy, UnrollStore(shape, arguments.unroll_length), batcher, GROUPS)
    _, port = service.hub.listen("127.0.0.1")
    with Actors(name, num_envs, actors, port, secret, arguments.seconds) as asking:
        asking.begin()
        _warm_up(service, actors)
        before, turns = policy.answered, 0
        began_s, cpu_s = time.perf_counter(), time.process_time()
        sections = Sections()
        while time.perf_counter() - began_s < arguments.seconds:
            service.turn(MOST_TURN_S, sections)
            service.store.release(service.store.take(service.store.ready))
            turns += 1
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        report = service.report.take()
        service.close("measured")
        return Served(max(1, policy.answered - before), turns, wall_s, cpu_s, report), asking.played()


def _warm_up(service: InferenceService, actors: int) -> None:
    """Until everybody is there and the memory of all unrolls has been written once. Raises TimeoutError."""
    sections, deadline_s = Sections(), time.perf_counter() + JOIN_TIMEOUT_S
    for _ in range(2):  # the first unrolls of all groups, then those that were begun when the first were complete
        while service.store.ready < actors * GROUPS:
            if time.perf_counter() > deadline_s:
                here = sorted(service.actors)
                raise TimeoutError(f"only actors {here} of {actors} came within {JOIN_TIMEOUT_S:.0f} s")
            service.turn(MOST_TURN_S, sections)
        service.store.release(service.store.take(service.store.ready))
    service.report.take()


def _cpu_per_step(played: list[Played]) -> float:
    return sum(one.cpu_s for one in played) / max(1, sum(one.steps for one in played))


def run(arguments: Arguments) -> list[Measurement]:
    """All points, one after the other; each is printed when it is there."""
    print(f"{'environment':<18}{'actors':>7}{'steps/s':>10}{'bare':>12}{'service':>12}{'same work':>11}", end="")
    print(f"{'actor adds':>12}{'turns':>7}{'batch':>7}{'p50':>9}{'p99':>9}")
    rows = []
    for name in arguments.environments:
        for actors in arguments.actors:
            row = measure(name, actors, arguments)
            rows.append(row)
            print(
                f"{name:<18}{actors:>7}{row.steps_per_s:>10,.0f}{row.bare_steps_per_s:>12,.0f}"
                f"{row.service_us:>9.1f} µs{row.same_work:>9.1f} ×{row.actor_adds_us:>9.1f} µs"
                f"{row.turns_per_message:>7.1f}{row.batch:>7.0f}"
                f"{row.latency_p50_ms:>6.1f} ms{row.latency_p99_ms:>6.1f} ms",
                flush=True,
            )
    return rows


def main() -> None:
    """Print the table."""
    arguments = tyro.cli(Arguments, description=__doc__)
    rows = run(arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
