"""Films of games: one full game with a checkpoint as mp4 (and GIF), and the role that films as a run goes on.

videos/step-N.mp4     a game of the checkpoint of step N
videos/step-N.json    its score, length, protocol and seed
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from dba3c.algorithms.policies import Actions, Asked, Decision
from dba3c.algorithms.policies import Policy as Player
from dba3c.assembly.model import Spaces
from dba3c.config import TrainConfig
from dba3c.environments.normalization import use_statistics
from dba3c.environments.protocol import Episode
from dba3c.errors import UserError, writing
from dba3c.evaluation.full_games import LONGEST_GAME_STEPS, GamesAbandoned
from dba3c.evaluation.players import make_player, protocol_for, stream_seeds
from dba3c.metrics.writer import MetricsWriter
from dba3c.recording.cameras import Camera, make_camera
from dba3c.recording.videos import GIF_LARGEST_WIDTH, GIF_PANEL, GifWriter, Mp4Writer, Overlay, enlarge, shrink
from dba3c.roles import RunProcess
from dba3c.runs.atomic_files import write_atomically
from dba3c.runs.checkpoints import CheckpointWatch, Policy
from dba3c.runs.ending import RunEnd

OnPicture = Callable[[np.ndarray, float, int, Decision | None], None]
"""Called with each picture, the score and the agent steps so far, and the decision that led to it."""


@dataclass(frozen=True, kw_only=True)
class RecordedGame:
    """What a film shows."""

    checkpoint_step: int
    env_id: str
    protocol: str
    seed: int
    """The run's."""
    seed_index: int
    """Which of the run's streams of recording seeds; the same index films the same game."""
    score: float
    length_steps: int
    truncated: bool
    pictures: int
    pictures_per_s: float


def record_game(
    config: TrainConfig,
    policy: Policy,
    path: Path,
    *,
    gif: Path | None = None,
    overlay: bool = False,
    actions: Actions | None = None,
    seed_index: int = 0,
    should_stop: Callable[[], str | None] = lambda: None,
    on_step: Callable[[int, float], None] = lambda step, score: None,
) -> RecordedGame:
    """Play one full game with a policy in the evaluation view and film it.

    Args:
        path: the mp4; a file beside it with the suffix .json says what it shows.
        gif: where to put a GIF of at most 2 MB.
        overlay: draw score, value and action probabilities beside the game, in both.
        actions: "sampled" or "greedy"; None as the protocol has it.
        on_step: called with each agent step and the score so far.

    Raises:
        UserError: the policy is of another network, the environment cannot be drawn, or the file not written.
        GamesAbandoned: `should_stop` gave a reason; no file is left.
    """
    environment_seed, action_seed = stream_seeds(config.run.seed, "recording", seed_index)
    protocol = protocol_for(config, actions)
    for file in (path, gif):
        if file is not None:
            with writing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
    camera = make_camera(protocol.environment, environment_seed)
    try:
        use_statistics(camera.environments, policy.observation_statistics, f"checkpoint step-{policy.step}")
        spaces = Spaces(camera.environments.observation_space, camera.environments.action_space)
        player = make_player(config, spaces, policy, protocol.actions, action_seed)
        panel = Overlay(camera.action_names) if overlay else None
        small_panel = Overlay(camera.action_names, GIF_PANEL) if overlay else None
        small_width = GIF_LARGEST_WIDTH + (GIF_PANEL.width if overlay else 0)
        small = GifWriter(camera.pictures_per_s, small_width) if gif is not None else None
        with Mp4Writer(path, camera.pictures_per_s) as video:

            def keep(picture: np.ndarray, score: float, step: int, decision: Decision | None) -> None:
                on_step(step, score)
                if small is not None:
                    shown = shrink(picture)
                    small.add(shown if small_panel is None else small_panel.beside(shown, score, step, decision))
                large = enlarge(picture)
                video.add(large if panel is None else panel.beside(large, score, step, decision))

            with _one_thread():
                episode = play_and_show(player, camera, keep, should_stop)
    finally:
        camera.environments.close()
    game = RecordedGame(
        checkpoint_step=policy.step,
        env_id=config.environment.env_id,
        protocol=protocol.name,
        seed=config.run.seed,
        seed_index=seed_index,
        score=episode.score,
        length_steps=episode.length_steps,
        truncated=episode.truncated,
        pictures=video.pictures,
        pictures_per_s=camera.pictures_per_s,
    )
    write_atomically(path.with_suffix(".json"), json.dumps(asdict(game), indent=1) + "\n")
    if small is not None and gif is not None:
        small.save(gif)
    return game


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One observation is too little for several threads: where cores are busy they wait 20 ms for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def play_and_show(
    player: Player, camera: Camera, on_picture: OnPicture, should_stop: Callable[[], str | None]
) -> Episode:
    """Play the camera's first game to its end; see `record_game` for what it raises."""
    environments = camera.environments
    observation, reward, score = environments.reset(), np.zeros(1, np.float32), 0.0
    state, number = player.initial_state(1), np.zeros(1, np.int64)
    for picture in camera.pictures(observation):
        on_picture(picture, score, 0, None)
    for step in range(1, LONGEST_GAME_STEPS + 1):
        decision = player.act(Asked(observation, state, reward, number))
        transition = environments.step(decision.actions)
        if transition.failures:
            raise UserError(f"the game cannot be filmed: {transition.failures[0]}")
        observation, reward, state = transition.observation, transition.reward, decision.state
        score += float(transition.gained[0])
        for picture in camera.pictures(observation):
            on_picture(picture, score, step, decision)
        if transition.episodes:
            return transition.episodes[0]
        reason = should_stop()
        if reason is not None:
            raise GamesAbandoned(reason)
    raise UserError(f"the game did not end within {LONGEST_GAME_STEPS} steps: give the environment a time limit")


def recorder(process: RunProcess) -> str:
    """The recording node's whole life: film a game of every `recording_every`-th checkpoint until the run ends.

    The first checkpoint it sees is filmed, and then the newest as soon as `recording_every` have come since; one that
    an earlier life filmed is not filmed again.

    Returns:
        The reason the run ended.

    Raises:
        RunBroken: the launch is gone without a word.
    """
    folder, config = process.folder, process.config
    metrics = MetricsWriter.of(process, "recorder")
    run_end = RunEnd(folder)

    def tell(line: str, step: int | None = None, film: str = "") -> None:
        print(f"recorder {process.rank}: {line}", flush=True)
        metrics.record_event("recording", line, step, film)

    watch = CheckpointWatch(folder.checkpoints, run_end, say=tell)
    due = 1
    try:
        while (policy := watch.wait()) is not None:
            due -= 1 + len(watch.passed_over)
            path = folder.videos / f"step-{policy.step}.mp4"
            if due > 0 or path.exists():
                continue
            due = config.run.recording_every
            try:
                gif = path.with_suffix(".gif")  # what trackers show
                game = record_game(config, policy, path, gif=gif, should_stop=run_end)
                line = f"step {policy.step}: filmed a game of {game.score:g} points in {path.name}"
                tell(line, policy.step, str(gif.relative_to(folder.path)))
            except UserError as error:  # a full disk, say: the run goes on, and so do the films when it can be
                tell(f"step {policy.step}: no film: {error}")
            except GamesAbandoned:
                tell(f"step {policy.step}: gave up the film, since the run ended")
    finally:
        metrics.close()
    return run_end() or "the run has ended"
