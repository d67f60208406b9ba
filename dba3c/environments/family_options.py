"""Which options belong to which family, so that an option that would do nothing is refused, not ignored."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from dba3c.errors import UserError

if TYPE_CHECKING:
    from dba3c.environments.config import EnvironmentConfig

# not env_threads: how many threads there are belongs to the machine, and where nothing uses them they do no harm
FAMILY_OPTIONS: dict[str, frozenset[str]] = {
    "atari": frozenset(
        {
            "repeat_action_probability",
            "grayscale",
            "frame_stack",
            "screen_size",
            "noop_max",
            "episodic_life",
            "fire_on_reset",
            "fire_on_life_loss",
            "full_action_space",
            "max_episode_frames",
            "stuck_guard_steps",
        }
    ),
    "football": frozenset({"football_observation", "football_map", "football_rewards"}),
    "dmlab": frozenset({"dmlab_level_cache", "dmlab_dataset", "dmlab_home"}),
}
_FAMILY_NAMES = {"atari": "Atari games", "football": "football", "dmlab": "DeepMind Lab"}


def refuse_options_of_other_families(config: EnvironmentConfig) -> None:
    """Raise `UserError` where an option of another family was changed."""
    for family, options in FAMILY_OPTIONS.items():
        if family == config.family:
            continue
        changed = [f.name for f in fields(config) if f.name in options and getattr(config, f.name) != f.default]
        if changed:
            names = _FAMILY_NAMES[family]
            raise UserError(f"{', '.join(changed)}: options of {names} only, and {config.env_id} is not one")


def check_choices(config: EnvironmentConfig) -> None:
    """Raise `UserError` where a field that is one of a few words is none of them (JSON and Python do not check)."""
    for name, kind in get_type_hints(type(config)).items():
        if get_origin(kind) is Literal and getattr(config, name) not in get_args(kind):
            raise UserError(f"{name} must be {' or '.join(get_args(kind))}, not {getattr(config, name)}")
