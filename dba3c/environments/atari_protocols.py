"""The named ways Atari is played, so that a score always says its protocol: a table in docs/environments.md.

`2017` is what DBA3C played, Gym's <Game>-v0 (it evaluates with a guard of 30 steps against a stuck player). The sticky
actions of `v5`, ALE/<Game>-v5, are Machado et al.'s (2018, arXiv 1709.06009); `v4-no-sticky` is Mnih et al.'s (2015)
preprocessing. Every protocol cuts a game after 108,000 frames (30 minutes of play).
"""

from dataclasses import replace
from typing import Any

from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError

_V5: dict[str, Any] = {
    "frame_stack": 4,
    "screen_size": 84,
    "full_action_space": False,
    "max_episode_frames": 108_000,
    "fire_on_life_loss": False,
    "stuck_guard_steps": 0,
    "repeat_action_probability": 0.25,
    "frame_skip": 4,
    "grayscale": True,
    "noop_max": 30,
    "fire_on_reset": True,
}
_2017 = {"frame_skip": (2, 4), "grayscale": False, "noop_max": 0, "fire_on_reset": False, "stuck_guard_steps": 30}
ATARI_PROTOCOLS = {"2017": _V5 | _2017, "v5": _V5, "v4-no-sticky": _V5 | {"repeat_action_probability": 0.0}}


def with_protocol(config: EnvironmentConfig, name: str) -> EnvironmentConfig:
    """The environment played by the named protocol; 2017's training plays full games, too.

    Raises:
        UserError: there is no such protocol, or this is no Atari game.
    """
    if name not in ATARI_PROTOCOLS:
        raise UserError(f"no Atari protocol is called {name!r}; there are {', '.join(ATARI_PROTOCOLS)}")
    if config.family != "atari":
        raise UserError(f"--protocol {name} is for Atari games, and {config.env_id} is not one")
    # reward clipping is the algorithm's matter: R2D2 has none whatever it plays
    return replace(config, **ATARI_PROTOCOLS[name], episodic_life=config.episodic_life and name != "2017")


def protocol_name(config: EnvironmentConfig) -> str:
    """The nearest protocol's name and every difference from it: "v4-no-sticky but fire_on_life_loss=True".

    Only what an evaluation plays counts: episodic life and reward clipping belong to training.
    """
    if config.family != "atari":
        skip = config.frames_per_step
        return f"{config.env_id}, frame skip {skip:g}" if skip > 1 else f"{config.env_id} as registered"
    played = {name: getattr(config, name) for name in ATARI_PROTOCOLS["v5"]}
    low, high = config.frame_skip_range
    played["frame_skip"] = low if low == high else (low, high)
    differences = {
        name: {key: value for key, value in played.items() if value != protocol[key]}
        for name, protocol in ATARI_PROTOCOLS.items()
    }
    nearest = min(differences, key=lambda name: len(differences[name]))
    changed = [f"{key}={value}" for key, value in differences[nearest].items()]
    return f"{nearest} but {', '.join(changed)}" if changed else nearest
