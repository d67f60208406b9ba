"""Which game is played and how: one frozen dataclass. The named Atari protocols are in `atari_protocols`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints

from dba3c.environments.families import FAMILIES, check_env_id, family_of
from dba3c.errors import UserError
from param_servers.config import option, refusal_of_unread

FOOTBALL_FRAMES = 4
"""Of which football's map is made."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """The environment of a run. The defaults of the Atari options are ALE's v5 protocol (sticky actions)."""

    env_id: str = option("ALE/Breakout-v5", short="env")
    """A registered Gymnasium id, an Atari game as ALE/<Game>-v5, or your own as package.module:function."""

    envs_per_worker: int = option(32, mode="worker")
    """B: environments each worker steps together."""

    lanes: int = option(1, mode="worker")
    """Processes of a worker, one for each of its cores: they share its environments evenly, and one gradient, of all of
    them, travels."""

    env_threads: int = 1
    """C++ threads that step a worker's Atari games; 1 where there is a worker per core."""

    frame_skip: int | tuple[int, int] | None = None
    """Emulator frames per agent step; (2, 4) draws 2, 3 or 4 at random each step (Atari only). None: the family's own
    (4 for Atari and ViZDoom, else 1)."""

    clip_reward: bool | None = None
    """Clip rewards to [-1, 1]; scores are never clipped. None: yes for Atari only."""

    normalize_observations: bool = False
    """Vector observations minus their running mean over their running deviation, clipped to ±10 (as in PPO for
    MuJoCo). Every worker keeps its own statistics, beside the checkpoints; evaluations use those of all, merged."""

    reward_scale: float = 1.0
    """Rewards are multiplied by this, before any clipping; scores are not."""

    environment_restarts: int = 3
    """How often within an hour each environment that raises, or returns what it must not, is started anew. When that
    does not do, its worker is started again, so often within an hour, too; then the run goes on without that worker."""

    environment_processes: bool = False
    """Each environment in a process of its own: they step in parallel, and one that hangs is noticed and ended. Not for
    Atari, whose C++ threads step in parallel too."""

    environment_timeout_s: float = 30.0
    """With environment_processes: seconds after which one that does not answer is ended and started anew; less than
    the exchange's step_timeout_s, or its worker is expelled before that."""

    repeat_action_probability: float = option(0.25, family="atari")
    """Atari: probability, per emulator frame, that the console repeats the previous action (sticky actions)."""

    grayscale: bool = option(True, family="atari")
    """Atari: one channel per frame instead of RGB's three."""

    frame_stack: int = option(4, family="atari")
    """Atari: how many of the newest frames make an observation."""

    screen_size: int = option(84, family="atari")
    """Atari: height and width, in pixels, that screens are resized to."""

    noop_max: int = option(30, family="atari")
    """Atari: a game starts with fewer than this many frames of doing nothing, drawn at random (30: 0 to 29); 0 for
    none."""

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

    max_episode_frames: int = option(108_000, family="atari")
    """Atari: a game is truncated after this many emulator frames (108,000 is 30 minutes of play)."""

    stuck_guard_steps: int = option(0, family="atari")
    """Atari, evaluation only: FIRE replaces the last of this many equal actions in a row, and those that follow it
    (30 in the 2017 system); 0 for off."""

    football_observation: Literal["extracted", "simple115v2"] = option("extracted", family="football")
    """Football: the map of players and ball, or 115 numbers."""

    football_map: Literal["small", "medium", "large"] = option("small", family="football")
    """Football: cells of the map: 72×96, 90×120 or 108×144."""

    football_rewards: Literal["scoring", "scoring,checkpoints"] = option("scoring", family="football")
    """Football: goals alone, or also a tenth for each of ten checkpoints on the way to the goal (training only)."""

    def __post_init__(self) -> None:
        if isinstance(self.frame_skip, list):  # JSON knows no tuples
            object.__setattr__(self, "frame_skip", tuple(self.frame_skip))
        check_env_id(self.env_id)
        self._check_choices()
        changed = [each for each in fields(self) if getattr(self, each.name) != each.default]
        if refusal := refusal_of_unread(changed, {"family": self.family}):
            raise UserError(refusal)
        self._check_ranges()
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

    def _check_choices(self) -> None:
        """A field that is one of a few words is none of them (JSON and Python do not check)."""
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                raise UserError(f"{name} must be {' or '.join(get_args(kind))}, not {getattr(self, name)}")

    def _check_ranges(self) -> None:
        for name in ("envs_per_worker", "lanes", "env_threads", "frame_stack", "screen_size", "max_episode_frames"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("noop_max", "stuck_guard_steps", "environment_restarts"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, but is {getattr(self, name)}")
        if not 0.0 <= self.repeat_action_probability < 1.0:
            raise UserError(f"repeat_action_probability must be in [0, 1), not {self.repeat_action_probability}")
        for name in ("reward_scale", "environment_timeout_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise UserError(f"{name} must be a positive number, not {getattr(self, name)}")
        low, high = self.frame_skip_range
        if not 1 <= low <= high:
            raise UserError(f"frame_skip must be positive, or (low, high) with 1 <= low <= high, not {self.frame_skip}")

    def _check_combinations(self) -> None:
        if self.envs_per_worker % self.lanes:
            fitting = [
                self.envs_per_worker // self.lanes * self.lanes,
                -(-self.envs_per_worker // self.lanes) * self.lanes,
            ]
            raise UserError(
                f"{self.envs_per_worker} environments of a worker cannot be shared evenly by {self.lanes} lanes; "
                f"{' or '.join(str(number) for number in fitting if number)} can"
            )
        if self.fire_on_life_loss and not self.episodic_life:
            raise UserError("fire_on_life_loss needs episodic_life: its FIRE step must fall between two episodes")
        if self.environment_processes and self.family == "atari":
            raise UserError("environment_processes is not for Atari: its C++ threads (env_threads) step in parallel")
        low, high = self.frame_skip_range
        if FAMILIES[self.family].frame_skip is None and high > 1:
            raise UserError(f"frame_skip is not an option of {self.env_id}: wrap it in a package.module:function")
        if low != high and self.family != "atari":
            raise UserError(f"a random frame_skip {self.frame_skip} needs an Atari game")
