"""Which game is played and how: one frozen dataclass, and what an id means: its family, its stop score, close ids.

The named Atari protocols are in `atari_protocols`. Every command reads ids, so this imports neither ale-py nor, where
another family has the id, Gymnasium: people would wait for them before the first line.
"""

import difflib
import functools
import importlib
import importlib.util
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple

from dba3c.errors import UserError
from param_servers.config import check_options, option, refusal_of_unread

FOOTBALL_FRAMES = 4
"""Of which football's map is made."""
_LEGACY_ATARI = re.compile(r"^(?P<game>[A-Z]\w*?)(?P<suffix>NoFrameskip|Deterministic)?-v(?P<version>[04])$")
_MODULE_AND_ID = re.compile(r"[\w.]+:[\w./-]+-v\d+")
"""Gymnasium's own "module:Id-v0": import the module, which registers the id."""
_SCENARIO = re.compile(r"\w+/[\w.-]+")
"""A job script holds the name, too."""
STOP_SCORES = {  # of DBA3C's code, but for:
    "ALE/Breakout-v5": 300.0,
    "ALE/Pong-v5": 10.0,
    "ALE/Riverraid-v5": 4000.0,
    "ALE/Seaquest-v5": 1830.0,
    "ALE/SpaceInvaders-v5": 700.0,
    "ALE/BeamRider-v5": 14900.0,  # the scores that it published
    "ALE/Boxing-v5": 98.0,
    "football/academy_empty_goal_close": 0.9,  # ours: nine games of ten scored
    "vizdoom/basic": 75.0,  # ours: a scripted player who walks until he faces the monster and shoots has 76
}
"""Mean scores of 50 consecutive games at which a game counts as solved."""


class Family(NamedTuple):
    """What is the same of all games of a family."""

    makes: str
    """"module:function" of (config), which gives what makes one environment; Atari's makes the whole vector."""
    prefix: str | None = None
    """Of its ids; None where there is none."""
    frame_skip: int | None = None
    """Emulator frames per agent step where nothing else is asked for; None where that is no option."""
    frames_per_s: float | None = None
    """At its own speed, of what does not say it itself."""


FAMILIES = {
    "atari": Family("dba3c.environments.atari:make_atari", prefix="ALE", frame_skip=4),
    "vizdoom": Family("dba3c.environments.vizdoom:vizdoom_maker", prefix="vizdoom", frame_skip=4, frames_per_s=35.0),
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
    return "custom" if ":" in env_id and not _MODULE_AND_ID.fullmatch(env_id) else "gymnasium"


def check_env_id(env_id: str) -> None:
    """Raise `UserError` naming close ids where `env_id` names nothing. Your own module is imported only when made."""
    family = family_of(env_id)
    if family == "atari" and env_id not in atari_games():
        raise UserError(f"unknown Atari game {env_id}{close_names(env_id, list(atari_games()))}")
    if family in ("football", "vizdoom") and not _SCENARIO.fullmatch(env_id):
        raise UserError(f"no scenario can be called {env_id!r}")
    if family == "custom" and not re.fullmatch(r"[\w.]+:[\w.]+", env_id):
        raise UserError(f"an environment of your own is written package.module:function, not {env_id}")
    if family == "gymnasium" and not _MODULE_AND_ID.fullmatch(env_id):
        registry = importlib.import_module("gymnasium").registry  # with Atari games, where something imported ale-py
        registered = [name for name, spec in registry.items() if not str(spec.entry_point).startswith("ale_py")]
        if env_id in registered:
            return
        legacy = _LEGACY_ATARI.match(env_id)
        if legacy and f"ALE/{legacy['game']}-v5" in atari_games():
            sticky = "0.25" if legacy["version"] == "0" else "0"
            deterministic = "3" if legacy["game"] == "SpaceInvaders" else "4"  # with 4 its lasers cannot be seen
            skip = {None: "2 4", "NoFrameskip": "1", "Deterministic": deterministic}[legacy["suffix"]]
            raise UserError(
                f"{env_id} is a legacy id: write ALE/{legacy['game']}-v5 and say the protocol with "
                f"--frame-skip {skip} --repeat-action-probability {sticky}"
            )
        close = close_names(env_id, [*registered, *atari_games()])
        by_module = f"; one that a module registers is MODULE:{env_id}" if re.search(r"-v\d+$", env_id) else ""
        raise UserError(f"unknown environment {env_id or repr(env_id)}{close}{by_module}")


@functools.lru_cache(maxsize=1)
def atari_games() -> dict[str, str]:
    """Every ALE/<Game>-v5 id and its ROM name: {"ALE/Breakout-v5": "breakout", …}, of the ROMs in ale-py's wheel."""
    no_single_player_mode = {"combat", "joust", "maze_craze", "warlords"}
    ale_py = importlib.util.find_spec("ale_py")
    folders = (ale_py and ale_py.submodule_search_locations) or ()
    roms = sorted(path.stem for folder in folders for path in Path(folder, "roms").glob("*.bin"))
    return {f"ALE/{rom.title().replace('_', '')}-v5": rom for rom in roms if rom not in no_single_player_mode}


def game_of(env_id: str) -> str:
    """ "breakout" for ALE/Breakout-v5, "make_env" for package.module:make_env."""
    return env_id.split("/")[-1].split(":")[-1].rsplit("-v", 1)[0].lower()


def close_names(name: str, known: list[str], prefix: str = "") -> str:
    """ ": did you mean A or B?" for the ids closest to `name`, or what else to do."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = [prefix + by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    return f": did you mean {' or '.join(close)}?" if close else " (an id of your own is package.module:function)"


def stop_score(env_id: str) -> float | None:
    """The score at which a run may stop, of Gymnasium's ids their `reward_threshold`; None where none is known."""
    if family_of(env_id) != "gymnasium":
        return STOP_SCORES.get(env_id)
    gymnasium = importlib.import_module("gymnasium")
    try:
        threshold = gymnasium.spec(env_id).reward_threshold
    except gymnasium.error.Error:
        return None
    return None if threshold is None else float(threshold)


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """The environment of a run. The defaults of the Atari options are ALE's v5 protocol (sticky actions)."""

    env_id: str = option("ALE/Breakout-v5", short="env")
    """A registered Gymnasium id, an Atari game as ALE/<Game>-v5, or your own as package.module:function."""

    envs_per_worker: int = option(32, least=1, mode="worker")
    """B: environments each worker steps together."""

    lanes: int = option(1, least=1, mode="worker")
    """Processes of a worker, one for each of its cores: they share its environments evenly, and one gradient, of all of
    them, travels."""

    env_threads: int = option(1, least=1)
    """C++ threads that step a worker's Atari games; other environments, and games with a random frame skip, have none.
    1 where there is a worker per core."""

    frame_skip: int | tuple[int, int] | None = None
    """Emulator frames per agent step; (2, 4) draws 2, 3 or 4 at random each step (Atari only). None: the family's own
    (4 for Atari and ViZDoom, else 1)."""

    clip_reward: bool | None = None
    """Clip rewards to [-1, 1]; scores are never clipped. None: yes for Atari only."""

    normalize_observations: bool = False
    """Observations minus their running mean over their running deviation, clipped to ±10 (as in PPO for MuJoCo); of
    images each pixel's, to ±5. Every lane or actor keeps its own statistics, beside the checkpoints; evaluations use
    all, merged."""

    reward_scale: float = option(1.0, above=0, below=math.inf)
    """Rewards are multiplied by this, before any clipping; scores are not."""

    environment_restarts: int = option(3, least=0)
    """How often within an hour each environment that raises, or returns what it must not, is started anew. When that
    does not do, its worker (or actor) is started again, up to 5 times an hour; then the run goes on without it, or ends
    where no other is left. In an all-reduce no worker is started again: the run ends with a checkpoint."""

    environment_processes: bool = False
    """Each environment in a process of its own: they step in parallel, and one that hangs is noticed and ended. Not for
    Atari, whose C++ threads step in parallel too."""

    environment_timeout_s: float = option(30.0, above=0, below=math.inf, environment_processes="")
    """With environment_processes: seconds after which one that does not answer is ended and started anew; less than
    the exchange's step_timeout_s, or its worker is expelled before that."""

    repeat_action_probability: float = option(0.25, least=0, below=1, family="atari")
    """Atari: probability, per emulator frame, that the console repeats the previous action (sticky actions)."""

    grayscale: bool = option(True, family="atari")
    """Atari: one channel per frame instead of RGB's three."""

    frame_stack: int = option(4, least=1, family="atari")
    """Atari: how many of the newest frames make an observation."""

    screen_size: int = option(84, least=1, family="atari")
    """Atari: height and width, in pixels, that screens are resized to."""

    noop_max: int = option(30, least=0, family="atari")
    """Atari: a game starts with fewer than this many frames of doing nothing, drawn at random (30: 0 to 29; a frame of
    FIRE is one of them); 0 for none."""

    episodic_life: bool = option(False, family="atari")
    """Atari: in the training view a lost life is `terminated`; the game goes on. Evaluation plays full games."""

    fire_on_reset: bool = option(True, family="atari")
    """Atari: press FIRE for one frame when a game starts, where the game has it. After a lost life the agent must
    press it itself (in Breakout a ball waits for it) unless `fire_on_life_loss`."""

    fire_on_life_loss: bool = option(False, family="atari")
    """Atari: FIRE replaces the agent's action in the step after a lost life (a step that does not train); needs
    `episodic_life` so that the training view has no hole in the middle of an episode."""

    full_action_space: bool = option(False, family="atari")
    """Atari: all 18 actions instead of the game's own."""

    max_episode_frames: int = option(108_000, least=1, family="atari")
    """Atari: a game is truncated after this many emulator frames (108,000 is 30 minutes of play)."""

    stuck_guard_steps: int = option(0, least=0, family="atari")
    """Atari, evaluation only: FIRE replaces the last of this many equal actions in a row, and those that follow it
    (30 in the 2017 system); 0 for off."""

    football_observation: Literal["extracted", "simple115v2"] = option("extracted", family="football")
    """Football: the map of players and ball, or 115 numbers."""

    football_map: Literal["small", "medium", "large"] = option("small", family="football")
    """Football: cells of the map: 72×96, 90×120 or 108×144."""

    football_rewards: Literal["scoring", "scoring,checkpoints"] = option("scoring", family="football")
    """Football: goals alone, or also a tenth for each of ten checkpoints on the way to the goal; scores are goals."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
        if isinstance(self.frame_skip, list):  # JSON knows no tuples
            object.__setattr__(self, "frame_skip", tuple(self.frame_skip))
        check_env_id(self.env_id)
        changed = [each for each in fields(self) if getattr(self, each.name) != each.default]
        if refusal := refusal_of_unread(changed, {"family": self.family}):
            raise UserError(refusal)
        self._check_combinations()

    @property
    def family(self) -> str:
        """Which file plays this id: atari, vizdoom, football, custom or gymnasium."""
        return family_of(self.env_id)

    @property
    def envs_per_lane(self) -> int:
        """Environments of each of a worker's processes."""
        return self.envs_per_worker // self.lanes

    @property
    def clips_reward(self) -> bool:
        """Whether the training view clips rewards, the family's own default resolved."""
        return self.family == "atari" if self.clip_reward is None else self.clip_reward

    @property
    def frame_skip_range(self) -> tuple[int, int]:
        """(lowest, highest) emulator frames of an agent step, the family's own default resolved."""
        if self.frame_skip is None:
            only = FAMILIES[self.family].frame_skip or 1
            return only, only
        return self.frame_skip if isinstance(self.frame_skip, tuple) else (self.frame_skip, self.frame_skip)

    @property
    def frames_per_step(self) -> float:
        """Emulator frames per agent step; the mean where the frame skip is random."""
        return sum(self.frame_skip_range) / 2

    @property
    def frames_per_observation(self) -> int:
        """How many of the newest frames make an observation, along its first dimension."""
        if self.family == "football" and self.football_observation == "extracted":
            return FOOTBALL_FRAMES
        return self.frame_stack if self.family == "atari" else 1

    def _check_combinations(self) -> None:
        skips = self.frame_skip_range
        if len(skips) != 2 or any(type(skip) is not int for skip in skips) or not 1 <= skips[0] <= skips[1]:
            raise UserError(f"frame_skip must be positive, or (low, high) with 1 <= low <= high, not {self.frame_skip}")
        low, high = skips
        if self.envs_per_worker % self.lanes:
            fewer = self.envs_per_worker // self.lanes * self.lanes
            fitting = [str(number) for number in (fewer, fewer + self.lanes) if number]
            raise UserError(
                f"{self.envs_per_worker} environments of a worker cannot be shared evenly by {self.lanes} lanes; "
                f"{' or '.join(fitting)} can"
            )
        if self.fire_on_life_loss and not self.episodic_life:
            raise UserError("fire_on_life_loss needs episodic_life: its FIRE step must fall between two episodes")
        if self.football_map != "small" and self.football_observation != "extracted":
            raise UserError(
                f"football_map {self.football_map} is not for football_observation {self.football_observation}"
            )
        if self.environment_processes and self.family == "atari":
            raise UserError("environment_processes is not for Atari: its C++ threads (env_threads) step in parallel")
        if FAMILIES[self.family].frame_skip is None and high > 1:
            raise UserError(f"frame_skip is not an option of {self.env_id}: wrap it in a package.module:function")
        if low != high and self.family != "atari":
            raise UserError(f"a random frame_skip {self.frame_skip} needs an Atari game")
