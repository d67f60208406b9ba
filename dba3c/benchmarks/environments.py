"""Agent steps/s of every family, and what the factory adds: ``python -m dba3c.benchmarks.environments``.

Each family is stepped with random actions, nothing else, in turn with the others, ``repeats`` times; the medians are
printed. "per core" divides by the CPU seconds that this process, its threads and its child processes used, so it says
what one busy core delivers whatever else the machine did. Atari is also stepped bare, without the factory, on the same
seeds and actions; "adds" is the median of the pairwise ratios of CPU seconds. Families whose package is missing are
named and skipped.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro

from dba3c.environments.atari_protocols import atari_2017, atari_v5
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.identifiers import atari_games
from dba3c.environments.seeding import environment_seeds
from dba3c.errors import UserError

_ACTION_BATCHES = 64  # random actions are drawn before the clock starts


class Stepper(NamedTuple):
    """Something with B environments that can be stepped."""

    step: Callable[[np.ndarray], Any]
    actions: list[np.ndarray]
    close: Callable[[], None]


class Rate(NamedTuple):
    """Agent steps per second of wall time and per second of CPU time."""

    per_second: float
    per_core: float


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    game: str = "ALE/Breakout-v5"
    """The Atari game."""
    envs: int = 32
    """Environments stepped together; slow families take 4."""
    threads: int = 1
    """C++ threads of the Atari families."""
    seconds: float = 3.0
    """Of each measurement, after a tenth of it as warm-up."""
    repeats: int = 5
    only: tuple[str, ...] = ()
    """Names of the families to measure; all without it."""
    json: Path | None = None
    """Write the measurements here as well."""


def families(arguments: Arguments) -> dict[str, tuple[EnvironmentConfig, int]]:
    """(configuration, number of environments) of everything there is to measure, by name."""
    ale = atari_v5(EnvironmentConfig(env_id=arguments.game, env_threads=arguments.threads))
    many, few = arguments.envs, min(arguments.envs, 4)
    return {
        "ale": (ale, many),
        "envpool": (replace(ale, atari_backend="envpool"), many),
        "ale 2017": (atari_2017(ale), many),
        "classic control": (EnvironmentConfig(env_id="CartPole-v1"), many),
        "mujoco": (EnvironmentConfig(env_id="HalfCheetah-v5"), few),
        "vizdoom": (EnvironmentConfig(env_id="vizdoom/basic"), few),
        "football": (EnvironmentConfig(env_id="football/academy_empty_goal_close"), few),
    }


def through_factory(config: EnvironmentConfig, num_envs: int) -> Stepper:
    """The family as training steps it."""
    envs = make_vector_environment(config, num_envs, seed=1)
    envs.reset()
    envs.action_space.seed(0)
    actions = [np.stack([envs.action_space.sample() for _ in range(num_envs)]) for _ in range(_ACTION_BATCHES)]
    return Stepper(envs.step, actions, envs.close)


def bare_ale(config: EnvironmentConfig, num_envs: int) -> Stepper:
    """ale-py's vector environment with nothing around it, on the seeds and actions of the factory's."""
    from ale_py.vector_env import AtariVectorEnv

    envs = AtariVectorEnv(
        atari_games()[config.env_id],
        num_envs,
        num_threads=config.env_threads,
        repeat_action_probability=config.repeat_action_probability,
        reward_clipping=False,
    )
    envs.reset(seed=environment_seeds(1, num_envs))
    envs.single_action_space.seed(0)
    sample = envs.single_action_space.sample
    actions = [np.stack([sample() for _ in range(num_envs)]) for _ in range(_ACTION_BATCHES)]
    return Stepper(envs.step, actions, envs.close)


def measure(stepper: Stepper, seconds: float) -> Rate:
    """Step for `seconds` after a warm-up."""
    _step_for(stepper, seconds / 10)
    wall_s, cpu_s = time.perf_counter(), _cpu_s()
    steps = _step_for(stepper, seconds) * len(stepper.actions[0])
    return Rate(steps / (time.perf_counter() - wall_s), steps / max(_cpu_s() - cpu_s, 1e-9))


def _cpu_s() -> float:
    """CPU seconds of this process and its living descendants (ViZDoom's engines are processes)."""
    ticks, pids = 0, _children(Path("/proc/self"))
    while pids:
        process = Path("/proc") / pids.pop()
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime, fields 14 and 15 of proc(5)
            pids += _children(process)
        except OSError:  # it ended meanwhile
            continue
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _children(process: Path) -> list[str]:
    return [pid for task in (process / "task").glob("*/children") for pid in task.read_text().split()]


def _step_for(stepper: Stepper, seconds: float) -> int:
    deadline, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < deadline:
        stepper.step(stepper.actions[count % _ACTION_BATCHES])
        count += 1
    return count


def make_all(arguments: Arguments) -> dict[str, Stepper]:
    """What could be made, by name; what could not is said."""
    made: dict[str, Stepper] = {}
    for name, (config, num_envs) in families(arguments).items():
        if arguments.only and name not in arguments.only:
            continue
        try:
            if name == "ale":
                made["ale, bare"] = bare_ale(config, num_envs)
            made[name] = through_factory(config, num_envs)
        except UserError as error:
            print(f"{name:16} skipped: {error}")
    return made


def main(arguments: Arguments) -> None:
    """Measure in turn and print a table."""
    torch.set_num_threads(1)
    steppers = make_all(arguments)
    rates: dict[str, list[Rate]] = {name: [] for name in steppers}
    for _ in range(arguments.repeats):
        for name, stepper in steppers.items():
            rates[name].append(measure(stepper, arguments.seconds))
    for stepper in steppers.values():
        stepper.close()
    print(f"{'family':16} {'environments':>12} {'agent steps/s':>14} {'per core':>10}")
    for name, measured in rates.items():
        per_second, per_core = (statistics.median(values) for values in zip(*measured, strict=True))
        print(f"{name:16} {len(steppers[name].actions[0]):>12} {per_second:>14,.0f} {per_core:>10,.0f}")
    if "ale" in rates:
        pairs = zip(rates["ale, bare"], rates["ale"], strict=True)
        added = statistics.median(bare.per_core / ours.per_core - 1 for bare, ours in pairs)
        print(f"the factory adds {added:+.1%} to ale-py's vector environment (median of {arguments.repeats} pairs)")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({name: [r._asdict() for r in rates[name]] for name in rates}, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
