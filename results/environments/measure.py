"""Agent steps/s of every family, and what the factory adds: ``python results/environments/measure.py``.

Each family is stepped with random actions, nothing else, in turn with the others and with its native vector
environment on the same seeds and actions, ``repeats`` times; the medians are printed. Both take
the same number of steps each time, so that they play the same games: a reset may cost a hundred steps.
"per core" divides by the CPU seconds that this process, its threads and its child processes used, so it says what one
busy core delivers whatever else the machine did. "factory adds" is the median of the repeats' ratios of CPU seconds per
step. Families whose package is missing are named and skipped. It writes ``environments.json`` beside this file, and the
table of ``README.md``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
import tyro

from dba3c.environments.atari import native_consoles
from dba3c.environments.atari_protocols import with_protocol
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment, maker_of
from dba3c.environments.protocol import environment_seeds
from dba3c.errors import UserError
from dba3c.metrics.processor_time import ProcessorTime
from dba3c.studies.page import facts, made_by, markdown, renew

_SEED = 1
ACTION_BATCHES = 64
"""Random actions are drawn before the clock starts, and used again."""


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    envs: int = 32
    """Environments stepped together; slow families take 4."""
    seconds: float = 0.5
    """Of each measurement, after a tenth of it as warm-up. Short and often: the machine's speed drifts over seconds."""
    repeats: int = 24
    only: tuple[str, ...] = ()
    """Names of the families to measure; all without it."""
    output: Path = Path(__file__).resolve().parent
    """Where environments.json goes, and into its README.md, if there is one, the table."""


# -- native vector environments, with nothing around them: what the factory's overhead is measured against -------------


class Stepper(NamedTuple):
    """Something with B environments that can be stepped."""

    step: Callable[[np.ndarray], Any]
    actions: list[np.ndarray]
    close: Callable[[], None]


def native(config: EnvironmentConfig, num_envs: int, seed: int) -> Stepper:
    """The native vector environment on the seeds that the factory would give it."""
    seeds = environment_seeds(seed, num_envs)
    envs: Any
    if config.family != "atari":
        envs = gymnasium.vector.SyncVectorEnv([maker_of(config)] * num_envs)
        envs.reset(seed=seeds.tolist())
    else:
        envs = native_consoles(config, num_envs)
        envs.reset(seed=seeds)
    return Stepper(envs.step, random_actions(envs.single_action_space, num_envs), envs.close)


def random_actions(single: gymnasium.Space[Any], num_envs: int) -> list[np.ndarray]:
    """The same batches of actions for the same space."""
    single.seed(0)
    return [np.stack([single.sample() for _ in range(num_envs)]) for _ in range(ACTION_BATCHES)]


# -- through the factory, and in turn with the native ones -------------------------------------------------------------


class Rate(NamedTuple):
    """Agent steps per second of wall time and per second of CPU time."""

    per_second: float
    per_core: float


@dataclass(frozen=True)
class Family:
    """One family's repeats; `native` is empty where nothing native plays the same."""

    name: str
    env_id: str
    num_envs: int
    ours: list[Rate]
    native: list[Rate]

    @property
    def added(self) -> float | None:
        """Median over the repeats of what the factory adds to the native CPU seconds per step; 0.03 is 3 %."""
        if not self.native:
            return None
        pairs = zip(self.native, self.ours, strict=True)
        return statistics.median(bare.per_core / ours.per_core - 1 for bare, ours in pairs)


class Pair(NamedTuple):
    """One family through the factory, and bare (None where no native environment plays the same)."""

    env_id: str
    ours: Stepper
    native: Stepper | None


def families(arguments: Arguments) -> dict[str, tuple[EnvironmentConfig, int]]:
    """(configuration, number of environments) of everything there is to measure, by name."""
    ale = with_protocol(EnvironmentConfig(), "v5")
    many, few = arguments.envs, min(arguments.envs, 4)
    football = EnvironmentConfig(env_id="football/academy_empty_goal_close")
    return {
        "ale": (ale, many),
        "ale 2017": (with_protocol(ale, "2017"), many),
        "classic control": (EnvironmentConfig(env_id="CartPole-v1"), many),
        "mujoco": (EnvironmentConfig(env_id="HalfCheetah-v5"), few),
        "vizdoom": (EnvironmentConfig(env_id="vizdoom/basic"), few),
        "football map": (football, few),
        "football numbers": (replace(football, football_observation="simple115v2"), few),
    }


def through_factory(config: EnvironmentConfig, num_envs: int) -> Stepper:
    """The family as training steps it."""
    envs = make_vector_environment(config, num_envs, seed=_SEED)
    envs.reset()
    return Stepper(envs.step, random_actions(envs.action_space, num_envs), envs.close)


def measure(stepper: Stepper, count: int) -> Rate:
    """`count` steps of all environments, after a tenth of that as warm-up."""
    _step(stepper, max(1, count // 10))
    began_s, processor_time = time.perf_counter(), ProcessorTime()
    _step(stepper, count)
    processor_s, steps = processor_time.take(), count * len(stepper.actions[0])
    return Rate(steps / (time.perf_counter() - began_s), steps / max(processor_s, 1e-9))


def _step(stepper: Stepper, count: int) -> None:
    for index in range(count):
        stepper.step(stepper.actions[index % ACTION_BATCHES])


def steps_in(pair: Pair, seconds: float) -> int:
    """How many steps take about `seconds`. Ours and the native environment go through the same steps."""
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        for stepper in (pair.ours, pair.native):
            if stepper is not None:
                _step(stepper, 1)
        count += 1
    return count if pair.native is None else 2 * count


def make_all(arguments: Arguments) -> tuple[dict[str, Pair], dict[str, str]]:
    """What could be made, by name; and of what could not, why."""
    made: dict[str, Pair] = {}
    missing: dict[str, str] = {}
    for name, (config, num_envs) in families(arguments).items():
        if arguments.only and name not in arguments.only:
            continue
        try:
            bare = None if name == "ale 2017" else native(config, num_envs, _SEED)  # its random skip is our own
            made[name] = Pair(config.env_id, through_factory(config, num_envs), bare)
        except (UserError, ImportError) as error:
            missing[name] = str(error)
            print(f"{name:16} skipped: {error}")
    return made, missing


def measure_in_turn(pairs: dict[str, Pair], seconds: float, repeats: int) -> list[Family]:
    """Every family and its native environment, one after the other, `repeats` times."""
    ours: dict[str, list[Rate]] = {name: [] for name in pairs}
    bare: dict[str, list[Rate]] = {name: [] for name in pairs}
    counts = {name: steps_in(pair, seconds) for name, pair in pairs.items()}
    for repeat in range(repeats):
        for name, pair in pairs.items():
            both = [(ours, pair.ours), (bare, pair.native)]
            for rates, stepper in both if repeat % 2 else reversed(both):  # who comes second finds warmer caches
                if stepper is not None:
                    rates[name].append(measure(stepper, counts[name]))
    return [
        Family(name, pair.env_id, len(pair.ours.actions[0]), ours[name], bare[name]) for name, pair in pairs.items()
    ]


# -- what was found, as a table, as data and as a page -----------------------------------------------------------------


def table(families: list[Family]) -> str:
    """Markdown: medians of the repeats."""

    def median(rates: list[Rate], which: str) -> str:
        return f"{statistics.median(getattr(rate, which) for rate in rates):,.0f}" if rates else "–"

    rows = [
        (
            f"{family.name} (`{family.env_id}`)", family.num_envs, median(family.ours, "per_second"),
            median(family.ours, "per_core"), median(family.native, "per_core"),
            "–" if family.added is None else f"{family.added:+.1%}",
        )
        for family in families
    ]  # fmt: skip
    columns = ("family", "environments", "agent steps/s", "per core", "native, per core", "factory adds")
    return markdown(columns, rows)


def write_results(folder: Path, families: list[Family], missing: dict[str, str]) -> None:
    """`environments.json` in `folder`, and the table and the machine of the page that lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {
        **facts(" ".join(["python results/environments/measure.py", *sys.argv[1:]])),
        "skipped": missing,
        "families": [
            {
                "name": family.name,
                "env_id": family.env_id,
                "num_envs": family.num_envs,
                "factory": [rate._asdict() for rate in family.ours],
                "native": [rate._asdict() for rate in family.native],
                "added": family.added,
            }
            for family in families
        ],
    }
    (folder / "environments.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    page = folder / "README.md"
    if page.exists():
        renew(page, made_by(data), table(families))


def main(arguments: Arguments) -> None:
    """Measure in turn, print a table, write the results."""
    torch.set_num_threads(1)
    pairs, missing = make_all(arguments)
    earlier = arguments.output / "environments.json"
    known = json.loads(earlier.read_text(encoding="utf-8"))["families"] if earlier.exists() else []
    if lost := {family["name"] for family in known} - pairs.keys():
        sys.exit(f"{earlier} has {', '.join(sorted(lost))}, which would be lost: choose another --output")
    measured = measure_in_turn(pairs, arguments.seconds, arguments.repeats)
    for pair in pairs.values():
        pair.ours.close()
        if pair.native is not None:
            pair.native.close()
    print(table(measured))
    added = [family.added for family in measured if family.added is not None]
    if added:
        print(f"the factory adds {statistics.median(added):+.1%} (median of families), {max(added):+.1%} at most")
    write_results(arguments.output, measured, missing)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
