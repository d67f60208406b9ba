"""What may change when a run goes on, and what would make another run of it."""

from collections.abc import Mapping
from typing import Any

from dba3c.config import TrainConfig, refuse_unread, replace_options
from dba3c.errors import UserError
from param_servers.config import parse_schedule

MAY_CHANGE = (
    "total_frames", "stop_score", "stop_games", "max_hours", "max_core_hours", "track", "evaluators", "recorders",
    "evaluation_games", "evaluation_budget_s", "recording_every", "checkpoint_every_steps", "keep_checkpoints",
    "lanes", "env_threads", "environment_restarts", "environment_timeout_s", "device", "precision",
    "listen_host", "interface", "port",
    "step_timeout_s", "join_timeout_s", "reconnect_timeout_s", "checkpoint_timeout_s",
)  # fmt: skip
"""Options that a run may go on with other values of: when it ends, who watches it, on which machine it is played."""
FOLLOWS_THE_MACHINE = (
    "envs_per_worker", "environment_processes",
    "actors", "envs_per_actor", "actor_groups", "inference_batch", "inference_timeout_ms",
)  # fmt: skip
"""Options of what a run is that follow, like some of `MAY_CHANGE`, from the cores or ranks it goes on with."""
WHAT_A_RUN_IS = ("environment", "network", "algorithm", "optimizer", "central", "replay")
"""Groups of options that make another run of it."""


def rate_for(environments: int) -> str:
    """RMSprop's learning rate in the presets `breakout`, `atari` and `breakout_cluster`: with rollouts of 5 steps it
    grows with the root of an update's samples; 32 environments have 7e-4, 720 have 3.3e-3 (results/batch_size)."""
    rate = 7e-4 * (environments / 32) ** 0.5
    return f"linear:{rate:.2g}->{rate / 10:.2g}@20e6"


def environments_of(config: TrainConfig) -> int:
    """Those whose steps are in one update."""
    return config.exchange.gradients_per_step * config.environment.envs_per_worker


def _meant(value: Any, config: TrainConfig, name: str) -> Any:
    """What an option says: None is what the environment's family has."""
    of_family = {"frame_skip": config.environment.frame_skip_range, "clip_reward": config.environment.clips_reward}
    return of_family.get(name, value)


def _follows_the_environments(config: TrainConfig) -> bool:
    """Whether the learning rate is that of as many as there are, and so another one on another machine."""
    return parse_schedule(config.optimizer.learning_rate) == parse_schedule(rate_for(environments_of(config)))


def refuse_another_run(config: TrainConfig, of_run: TrainConfig) -> None:
    """Raise UserError, naming the options, where `train --resume` was told another run than the one that is there."""
    follows = ("learning_rate",) if _follows_the_environments(config) and _follows_the_environments(of_run) else ()
    other = [
        f"--{name.replace('_', '-')} {old} (not {new})"
        for group in WHAT_A_RUN_IS
        for name, old in vars(getattr(of_run, group)).items()
        if name not in (*MAY_CHANGE, *FOLLOWS_THE_MACHINE, *follows)
        and _meant(old, of_run, name) != _meant(new := getattr(getattr(config, group), name), config, name)
    ]
    if config.run.seed != of_run.run.seed:
        other.append(f"--seed {of_run.run.seed} (not {config.run.seed})")
    if other:
        raise UserError(f"the run to resume has {', '.join(other)}: give the options that it began with")


def changed_on_resume(config: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration of a run that goes on, with what was given.

    Raises:
        UserError: something that was given would make another run of it, or is not read, or cannot be.
    """
    if fixed := sorted(set(given) - set(MAY_CHANGE)):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in fixed)
        raise UserError(f"{flags} cannot change when a run goes on; dba3c resume --help lists what can")
    envs, lanes = config.environment.envs_per_worker, given.get("lanes", config.environment.lanes)
    if type(lanes) is int and lanes > 0 and envs % lanes:  # the environments are the run's
        can = ", ".join(str(number) for number in range(1, envs + 1) if envs % number == 0)
        raise UserError(f"the run's {envs} environments cannot be shared evenly by {lanes} lanes: {can} can")
    changed = replace_options(config, **given)
    refuse_unread(changed, given)
    return changed
