"""Atari: all games of ale-py on its native vector environment (C++ threads), about 2,000 agent steps/s a core.

Needs: `ale-py` (its wheel holds the ROMs). Observes: uint8 [frame_stack, 84, 84] gray, or [3 × frame_stack, 84, 84]
RGB (frame by frame, oldest first). Frame skip: 4. Score: the game's own points, whole game.

The consoles (ale-py's, or our own with the random frame skip) step full games and give raw rewards and lives. Whatever
differs between training and evaluation, `AtariVectorEnvironment` decides, once, in NumPy on [B] arrays: rewards are
scaled and clipped; a lost life is `terminated` (`episodic_life`), but the game simply goes on; the step after it may be
a FIRE that is not the agent's (`fire_on_life_loss`), with `valid` False; an evaluation may guard against a player stuck
on one action.

Facts about ale-py 0.12 this file rests on (its src/ale/vector), each held by a test:
- every `recv` allocates new arrays and hands them over, so observations may be kept without a copy;
- `episodic_life=True` resets the whole game at a lost life, and `life_loss_info=True` hides a frame limit that falls on
  a lost life; both stay off and lost lives are read from `info["lives"]`;
- rewards are clipped there only with `reward_clipping=True`: off;
- FIRE on reset lasts one frame, so sticky actions swallow it once in four games;
- an action outside the set makes `recv` wait for ever: `AtariVectorEnvironment` checks them all.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from ale_py import Action, ALEInterface, LoggerMode, roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box, Discrete, Space

from dba3c.environments.config import EnvironmentConfig, atari_games
from dba3c.environments.protocol import Games, Transition, environment_seeds
from dba3c.errors import UserError


class ConsoleStep(NamedTuple):
    """What the consoles gave. All [B]; NEXT_STEP autoreset."""

    observation: np.ndarray  # [B, C, H, W] uint8, never written to again by the console
    reward: np.ndarray  # raw, any number type
    game_over: np.ndarray  # bool
    cut: np.ndarray  # bool: max_episode_frames reached
    lives: np.ndarray  # int32
    frames: np.ndarray  # int: emulator frames that an action ran; where the step was a reset, of no meaning


def console(config: EnvironmentConfig, seed: int = 0) -> ALEInterface:
    """One console with its game in it."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", config.repeat_action_probability)
    rom_path = roms.get_rom_path(atari_games()[config.env_id])
    assert rom_path is not None  # `atari_games` names those that there are
    ale.loadROM(rom_path)
    return ale


def native_consoles(config: EnvironmentConfig, num_envs: int, **others: int) -> AtariVectorEnv:
    """ale-py's vector environment of whole games and raw rewards, played as configured but for `others`."""
    frame_skip = config.frame_skip_range[0]
    options: dict[str, Any] = {
        "num_threads": min(config.env_threads, num_envs),
        # whole agent steps: of one that ale-py breaks off nobody would see the last screen
        "max_num_frames_per_episode": -(-config.max_episode_frames // frame_skip) * frame_skip,
        "repeat_action_probability": config.repeat_action_probability,
        "full_action_space": config.full_action_space,
        "img_height": config.screen_size,
        "img_width": config.screen_size,
        "grayscale": config.grayscale,
        "stack_num": config.frame_stack,
        "frameskip": frame_skip,
        "noop_max": config.noop_max,
        "use_fire_reset": config.fire_on_reset,
        "reward_clipping": False,
    }
    return AtariVectorEnv(atari_games()[config.env_id], num_envs, **options | others)


class AleConsoles:
    """B games stepped together by ale-py's vector environment, full games only.

    Attributes:
        actions: the action set.
        observation_shape: [C, H, W] of one game.
    """

    def __init__(self, config: EnvironmentConfig, num_envs: int) -> None:
        self._native = native_consoles(config, num_envs)
        self._grayscale = config.grayscale
        self.actions: list[Action] = self._native.ale.get_action_set()
        self.observation_shape = _observation_shape(config)

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(observations [B, C, H, W], lives [B]) of new games on `seeds` int32 [B]."""
        observation, info = self._native.reset(seed=seeds)
        self._at_frame = info["episode_frame_number"]
        return self._channels_first(observation), info["lives"]

    def step(self, actions: np.ndarray) -> ConsoleStep:
        """One agent step of every game. `actions` int32 [B], already checked."""
        observation, reward, game_over, cut, info = self._native.step(actions)
        before, self._at_frame = self._at_frame, info["episode_frame_number"]
        frames = self._at_frame - before
        return ConsoleStep(self._channels_first(observation), reward, game_over, cut, info["lives"], frames)

    def close(self) -> None:
        """Join the C++ threads."""
        self._native.close()

    def _channels_first(self, observation: np.ndarray) -> np.ndarray:
        """[B, stack, H, W] as it is; RGB's [B, stack, H, W, 3] to [B, 3 × stack, H, W], which costs a copy."""
        if self._grayscale:
            return observation
        planes = np.moveaxis(observation, -1, 2)
        return np.ascontiguousarray(planes).reshape(len(observation), *self.observation_shape)


class RandomSkipConsoles:
    """As `AleConsoles`, with a frame skip drawn anew at every agent step: the 2017 protocol.

    Gym's <Game>-v0 repeated each action for 2, 3 or 4 frames, equally likely, showed the last one without max-pooling,
    and repeated the previous action with probability 0.25 per frame; the 2017 system resized its RGB screen bilinearly
    to 84×84 and began games with a black history (its get_player and HistoryFramePlayer). The consoles are stepped one
    after the other in this thread and their screens resized together: about 2,500 agent steps/s a core, RGB.
    """

    def __init__(self, config: EnvironmentConfig, num_envs: int) -> None:
        self._config = config
        any_console = console(config)
        self.actions: list[Action] = list(
            any_console.getLegalActionSet() if config.full_action_space else any_console.getMinimalActionSet()
        )
        self._channels = 1 if config.grayscale else 3
        self._screens = np.zeros((num_envs, *any_console.getScreenDims(), self._channels), dtype=np.uint8)
        self.observation_shape = _observation_shape(config)

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `AleConsoles.reset`."""
        self._generators = [np.random.default_rng(int(seed)) for seed in seeds]
        self._consoles = [console(self._config, int(seed)) for seed in seeds]
        for index in range(len(seeds)):
            self._start_game(index)
        self._frames = np.zeros(len(seeds), dtype=np.int64)
        self._over = np.zeros(len(seeds), dtype=bool)
        self._stack = np.zeros((len(seeds), *self.observation_shape), dtype=np.uint8)
        return self._observe(np.ones(len(seeds), dtype=bool)), self._lives()

    def step(self, actions: np.ndarray) -> ConsoleStep:
        """See `AleConsoles.step`."""
        started, before = self._over.copy(), self._frames.copy()
        reward = np.zeros(len(actions), dtype=np.float32)
        game_over = np.zeros(len(actions), dtype=bool)
        for index, action in enumerate(actions):
            if started[index]:
                self._start_game(index)
                self._frames[index] = 0
            else:
                reward[index], game_over[index] = self._play(index, self.actions[action])
        cut = (self._frames >= self._config.max_episode_frames) & ~game_over
        self._over = game_over | cut
        return ConsoleStep(self._observe(started), reward, game_over, cut, self._lives(), self._frames - before)

    @property
    def pictures(self) -> list[np.ndarray]:
        """What the first console's screen shows now, in its own size: uint8 [H, W, 3]."""
        return [self._consoles[0].getScreenRGB()]

    def close(self) -> None:
        """Let go of the consoles."""
        self._consoles = []

    def _play(self, index: int, action: Action) -> tuple[float, bool]:
        """One agent step: (raw reward, game over)."""
        ale, (low, high) = self._consoles[index], self._config.frame_skip_range
        reward = 0.0
        for _ in range(self._generators[index].integers(low, high + 1)):
            reward += ale.act(action)
            self._frames[index] += 1
            if ale.game_over() or self._frames[index] >= self._config.max_episode_frames:
                break
        return reward, ale.game_over()

    def _start_game(self, index: int) -> None:
        """A new game as ale-py's vector environment starts it: 0 to noop_max - 1 frames of doing nothing; a frame of
        FIRE, where it is pressed, comes before the others and is one of them."""
        ale = self._consoles[index]
        ale.reset_game()
        fires = self._config.fire_on_reset and Action.FIRE in self.actions
        if fires:
            ale.act(Action.FIRE)
        for _ in range(int(self._generators[index].integers(max(self._config.noop_max, 1))) - fires):
            ale.act(Action.NOOP)
            if ale.game_over():
                ale.reset_game()

    def _observe(self, started: np.ndarray) -> np.ndarray:
        """Stacked newest frames [B, channels × stack, H, W] in a new array; black history where a game `started`."""
        for index, ale in enumerate(self._consoles):
            if self._channels == 1:
                ale.getScreenGrayscale(self._screens[index, :, :, 0])
            else:
                ale.getScreenRGB(self._screens[index])
        planar = torch.from_numpy(self._screens).permute(0, 3, 1, 2)
        size = (self._config.screen_size, self._config.screen_size)
        frames = torch.nn.functional.interpolate(planar, size=size, mode="bilinear", align_corners=False)
        stack = np.empty_like(self._stack)
        stack[:, : -self._channels] = self._stack[:, self._channels :]
        stack[started, : -self._channels] = 0
        stack[:, -self._channels :] = frames.numpy()
        self._stack = stack
        return stack

    def _lives(self) -> np.ndarray:
        return np.array([ale.lives() for ale in self._consoles], dtype=np.int32)


def _observation_shape(config: EnvironmentConfig) -> tuple[int, int, int]:
    return config.frame_stack * (1 if config.grayscale else 3), config.screen_size, config.screen_size


class AtariVectorEnvironment:
    """A `VectorEnvironment` of one Atari game; see the module's docstring for what each view is."""

    def __init__(
        self, config: EnvironmentConfig, consoles: AleConsoles | RandomSkipConsoles, seeds: np.ndarray, view: str
    ) -> None:
        training = view == "training"
        self.num_envs = len(seeds)
        self.observation_space: Space[Any] = Box(0, 255, consoles.observation_shape, np.uint8)
        self.action_space: Space[Any] = Discrete(len(consoles.actions))
        self._consoles = consoles
        self._num_actions = len(consoles.actions)
        self._seeds = seeds
        self._clip_reward, self._reward_scale = config.clips_reward, config.reward_scale
        self._episodic_life = config.episodic_life and training
        has_fire = Action.FIRE in consoles.actions
        self._fire = np.int32(consoles.actions.index(Action.FIRE) if has_fire else 0)
        self._fire_on_life_loss = config.fire_on_life_loss and has_fire
        self._stuck_guard_steps = 0 if training or not has_fire else config.stuck_guard_steps
        self._lives: np.ndarray | None = None

    def reset(self) -> np.ndarray:
        """First observations [B, C, H, W] uint8 of new games; see `VectorEnvironment.reset`."""
        observation, self._lives = self._consoles.reset(self._seeds)
        self._resetting = np.zeros(self.num_envs, dtype=bool)  # the next step is the autoreset's
        self._must_fire = np.zeros(self.num_envs, dtype=bool)
        self._games = Games(self.num_envs)
        self._last_actions = np.full(self.num_envs, -1, dtype=np.int32)
        self._repeats = np.zeros(self.num_envs, dtype=np.int64)
        return observation

    def step(self, actions: np.ndarray) -> Transition:
        """One agent step of every game; see `VectorEnvironment.step`. `actions` int [B]."""
        actions = self._checked(actions)
        plays = ~self._resetting
        valid = plays.copy()
        if self._fire_on_life_loss and self._must_fire.any():
            actions = np.where(self._must_fire, self._fire, actions)
            valid &= ~self._must_fire
        if self._stuck_guard_steps:
            actions = self._unstick(actions)
        stepped = self._consoles.step(actions)
        finished = stepped.game_over | stepped.cut
        life_lost = (stepped.lives < self._lives) & (stepped.lives > 0) & ~self._resetting & ~finished
        self._lives, self._must_fire = stepped.lives, life_lost
        self._games.count(stepped.reward, plays)
        episodes = self._games.finish(np.flatnonzero(finished), stepped.game_over) if finished.any() else []
        self._resetting = finished
        reward = stepped.reward.astype(np.float32)
        if self._reward_scale != 1.0:
            reward *= np.float32(self._reward_scale)
        if self._clip_reward:
            np.clip(reward, -1.0, 1.0, out=reward)
        return Transition(
            observation=stepped.observation,
            reward=reward,
            terminated=stepped.game_over | life_lost if self._episodic_life else stepped.game_over,
            truncated=stepped.cut & ~stepped.game_over,
            valid=valid,
            first=~plays,
            episodes=episodes,
            gained=stepped.reward.astype(np.float64),
            frames=np.where(plays, stepped.frames, 0).astype(np.int64),
        )

    def close(self) -> None:
        """Stop the consoles' threads."""
        self._consoles.close()

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        """Actions as int32 [B]. ale-py waits for ever after an action outside the set, so none may reach it."""
        if self._lives is None:
            raise RuntimeError("reset() must come before step()")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise UserError(f"actions must be integers [{self.num_envs}], not {actions.dtype} {list(actions.shape)}")
        if actions.min() < 0 or actions.max() >= self._num_actions:
            raise UserError(f"actions must be in [0, {self._num_actions}), not {sorted(set(actions.tolist()))}")
        return actions.astype(np.int32, copy=False)

    def _unstick(self, actions: np.ndarray) -> np.ndarray:
        """FIRE instead of the last of `stuck_guard_steps` equal actions in a row, and of those that follow it."""
        self._repeats = np.where(actions == self._last_actions, self._repeats + 1, 1)
        self._last_actions = np.where(self._resetting, -1, actions)  # a game begins with none
        return np.where(self._repeats >= self._stuck_guard_steps, self._fire, actions)


def make_atari(config: EnvironmentConfig, num_envs: int, seed: int, view: str) -> AtariVectorEnvironment:
    """The Atari environment `config` asks for, on the console that can play its protocol."""
    low, high = config.frame_skip_range
    consoles = AleConsoles(config, num_envs) if low == high else RandomSkipConsoles(config, num_envs)
    return AtariVectorEnvironment(config, consoles, environment_seeds(seed, num_envs), view)
