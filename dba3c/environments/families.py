"""What an environment's id means: its family, the score at which it counts as solved, and the close ids of a wrong one.

Mean scores at which a game counts as solved, over 50 consecutive games unless said otherwise:

| game | stop score | from |
| --- | --- | --- |
| Breakout, Pong, Riverraid, Seaquest, SpaceInvaders | 300, 10, 4000, 1830, 700 | the 2017 system's own |
| BeamRider, Boxing | 14900, 98 | the scores it published |
| football/academy_empty_goal_close | 0.9 goals a game | ours: nine games of ten scored |
| vizdoom/basic | 75 | ours: a scripted player who walks until he faces the monster and shoots has 76 |
| CartPole-v1, LunarLander-v3, Acrobot-v1, MountainCar-v0 | Gymnasium's `reward_threshold` | its registry |

Every command reads ids, so this imports neither ale-py nor, where another family has the id, Gymnasium: people would
wait for them before the first line.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

from dba3c.errors import UserError

_LEGACY_ATARI = re.compile(r"^(?P<game>[A-Z]\w*?)(?P<suffix>NoFrameskip|Deterministic)?-v(?P<version>[04])$")
STOP_SCORES = {
    "ALE/Breakout-v5": 300.0,
    "ALE/Pong-v5": 10.0,
    "ALE/Riverraid-v5": 4000.0,
    "ALE/Seaquest-v5": 1830.0,
    "ALE/SpaceInvaders-v5": 700.0,
    "ALE/BeamRider-v5": 14900.0,
    "ALE/Boxing-v5": 98.0,
    "football/academy_empty_goal_close": 0.9,
    "vizdoom/basic": 75.0,
}


class Family(NamedTuple):
    """What is the same of all games of a family."""

    makes: str
    """"module:function" of (config, view), which gives what makes one environment; Atari's makes the whole vector."""
    prefix: str | None = None
    """Of its ids; None where there is none."""
    frame_skip: int | None = None
    """Emulator frames per agent step where nothing else is asked for; None where that is no option."""


FAMILIES = {
    "atari": Family("dba3c.environments.atari:make_atari", prefix="ALE", frame_skip=4),
    "vizdoom": Family("dba3c.environments.vizdoom:vizdoom_maker", prefix="vizdoom", frame_skip=4),
    "football": Family("dba3c.environments.football:football_maker", prefix="football"),
    "custom": Family("dba3c.environments.factory:custom_maker"),
    "gymnasium": Family("dba3c.environments.factory:registered_maker"),
}


def family_of(env_id: str) -> str:
    """atari, vizdoom, football, custom ("package.module:function") or gymnasium (any other registered id)."""
    prefix, slash, _ = env_id.partition("/")
    for name, family in FAMILIES.items():
        if slash and prefix == family.prefix:
            return name
    return "custom" if ":" in env_id and not _names_module_to_import(env_id) else "gymnasium"


def _names_module_to_import(env_id: str) -> bool:
    """Gymnasium's own "module:Id-v0": import the module, which registers the id."""
    return re.fullmatch(r"[\w.]+:[\w./-]+-v\d+", env_id) is not None


def check_env_id(env_id: str) -> None:
    """Raise `UserError` naming close ids where `env_id` names nothing. Your own module is imported only when made."""
    family = family_of(env_id)
    if family == "atari" and env_id not in atari_games():
        raise UserError(f"unknown Atari game {env_id}{close_names(env_id, list(atari_games()))}")
    if family == "gymnasium" and not _names_module_to_import(env_id) and env_id not in _registry():
        legacy = _LEGACY_ATARI.match(env_id)
        if legacy and f"ALE/{legacy['game']}-v5" in atari_games():
            raise UserError(_legacy_line(env_id, legacy["game"], legacy["suffix"], legacy["version"]))
        known = [*_registry(), *atari_games()]
        raise UserError(f"unknown environment {env_id}{close_names(env_id, known)}")
    if family == "custom" and not re.fullmatch(r"[\w.]+:[\w.]+", env_id):
        raise UserError(f"an environment of your own is written package.module:function, not {env_id}")


@functools.lru_cache(maxsize=1)
def atari_games() -> dict[str, str]:
    """Every ALE/<Game>-v5 id and its ROM name: {"ALE/Breakout-v5": "breakout", …}, of the ROMs in ale-py's wheel."""
    no_single_player_mode = {"combat", "joust", "maze_craze", "warlords"}
    ale_py = importlib.util.find_spec("ale_py")
    folders = (ale_py and ale_py.submodule_search_locations) or ()
    roms = sorted(path.stem for folder in folders for path in Path(folder, "roms").glob("*.bin"))
    return {f"ALE/{rom.title().replace('_', '')}-v5": rom for rom in roms if rom not in no_single_player_mode}


def _registry() -> dict[str, Any]:
    """Gymnasium's environments by id, but the Atari ones that importing ale-py may have added: another family."""
    registry = importlib.import_module("gymnasium").registry
    return {name: spec for name, spec in registry.items() if not str(spec.entry_point).startswith("ale_py")}


def close_names(name: str, known: list[str], prefix: str = "") -> str:
    """ ": did you mean A or B?" for the ids closest to `name`, or what else to do."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = [prefix + by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    return f": did you mean {' or '.join(close)}?" if close else " (an id of your own is package.module:function)"


def _legacy_line(env_id: str, game: str, suffix: str | None, version: str) -> str:
    sticky = "0.25" if version == "0" else "0"
    skip = {None: "2 4", "NoFrameskip": "1", "Deterministic": "4"}[suffix]
    return (
        f"{env_id} is a legacy id: write ALE/{game}-v5 and say the protocol with "
        f"--frame-skip {skip} --repeat-action-probability {sticky}"
    )


def stop_score(env_id: str) -> float | None:
    """The score at which a run of this environment may stop; None where none is known."""
    if family_of(env_id) != "gymnasium":
        return STOP_SCORES.get(env_id)
    gymnasium = importlib.import_module("gymnasium")
    try:
        threshold = gymnasium.spec(env_id).reward_threshold
    except gymnasium.error.Error:
        return None
    return None if threshold is None else float(threshold)
