"""How many samples make an update, and on which cores they are taken: lanes follow from cores, environments from both.

A worker has a lane for each of its cores, and a lane at least one environment. So a preset that counts environments
for all workers together gets more of them where there are more cores than that, and its update more samples: how many
is said, and whether it has been shown to learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dba3c.config import TrainConfig
from dba3c.errors import warn_on_stderr
from launch.cli.presets import fitting_preset

SHOWN_SAMPLES = {
    "breakout": (160, "results/breakout_2cores"),
    "atari": (256, "results/games"),
    "breakout_cluster": (2_880, "results/batch_size"),
}
"""Of presets: samples in an update from which it was shown to learn, and where that is."""
SHOWN_WITHIN = 1.5
"""A size is as good as a shown one when it is at most so many times as large, or as small."""
WITH_THEIR_OWN_BATCH = ("dba3c_paper",)
"""Presets that stand for a published number of environments."""


def lanes_for(config: TrainConfig, given: Mapping[str, Any], cores: int, preset: str | None = None) -> dict[str, int]:
    """`lanes`, and `envs_per_worker` that they can share evenly, for workers of `cores` each.

    Args:
        config: of `preset`.
        given: what the words say, which stays; environments that were counted bound the lanes, too.
    """
    if given.get("mode", config.central.mode) != "worker":
        return {}
    counted = "envs_per_worker" in given or preset in WITH_THEIR_OWN_BATCH
    envs = given.get("envs_per_worker", config.environment.envs_per_worker)
    if "lanes" in given:
        lanes = given["lanes"]
        if lanes > cores:
            warn_on_stderr(f"{lanes} lanes share the {cores} cores of a worker")
    elif counted:
        lanes = max(number for number in range(1, max(1, min(cores, envs)) + 1) if envs % number == 0)
    else:
        lanes = cores
    if counted or lanes < 1:
        return {"lanes": lanes}
    return {"lanes": lanes, "envs_per_worker": shared(envs, lanes)}


def shared(envs: float, lanes: int) -> int:
    """About so many environments of a worker that its lanes can share evenly, at least one for each."""
    return max(1, round(envs / lanes)) * lanes


def shared_anew(config: TrainConfig, gradients: int, given: Mapping[str, Any], preset: str | None) -> dict[str, int]:
    """`envs_per_worker` where so many gradients make an update instead of those that `config` counts on: as many
    environments in all, of a preset whose size of an update was shown."""
    name = preset or fitting_preset(config.environment.env_id)
    if "envs_per_worker" in given or name not in SHOWN_SAMPLES or config.central.mode != "worker":
        return {}
    in_all = config.environment.envs_per_worker * config.exchange.gradients_per_step
    return {"envs_per_worker": shared(in_all / gradients, config.environment.lanes)}


def samples_of(config: TrainConfig) -> int:
    """Samples in one update: of all gradients that make it."""
    gradients = config.exchange.gradients_per_step
    samples = gradients * config.environment.envs_per_worker * config.algorithm.rollout_length
    return samples // config.algorithm.ppo_minibatches if config.algorithm.algorithm == "ppo" else samples


def samples_text(config: TrainConfig) -> str:
    """One line for people: `56 gradients × 12 lanes × 1 environment × 5 steps = 3,360 samples an update`; "" where the
    learner, and not the number of workers, decides."""
    if config.central.mode != "worker":
        return ""
    lanes, envs = config.environment.lanes, config.environment.envs_per_lane
    parts = [(config.exchange.gradients_per_step, "gradient"), (lanes, "lane"), (envs, "environment")]
    parts.append((config.algorithm.rollout_length, "step"))
    text = " × ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in parts)
    if config.algorithm.algorithm == "ppo":
        text += f" / {config.algorithm.ppo_minibatches} minibatches"
    return f"{text} = {samples_of(config):,} samples an update"


def not_shown(config: TrainConfig, preset: str | None) -> str:
    """One line where a preset is asked to learn from updates of another size than it was shown to; else ""."""
    if preset not in SHOWN_SAMPLES or config.central.mode != "worker":
        return ""
    samples, (shown, where) = samples_of(config), SHOWN_SAMPLES[preset]
    if shown / SHOWN_WITHIN <= samples <= shown * SHOWN_WITHIN:
        return ""
    large = SHOWN_SAMPLES["breakout_cluster"][0]
    advice = f"; --preset breakout_cluster has {large:,}" if preset != "breakout_cluster" and samples > shown else ""
    return f"{samples:,} samples an update: the preset {preset} was shown to learn with {shown:,} ({where}){advice}"
