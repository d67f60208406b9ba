"""Films of games: mp4 (and GIF for READMEs) of one full game with a checkpoint, and the role that makes them.

Encoded by the ffmpeg that the package imageio-ffmpeg carries; GIFs by Pillow through imageio.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import torch
from PIL import Image

from dba3c.cameras import make_camera
from dba3c.checkpoints import Policy
from dba3c.config import TrainConfig
from dba3c.construction import Spaces, build_agent
from dba3c.errors import UserError
from dba3c.evaluation_protocol import protocol_for, stream_seeds
from dba3c.full_games import Actions, act, decide
from dba3c.metrics import MetricsWriter
from dba3c.run_folder import RunFolder
from dba3c.run_watch import CheckpointWatch, RunEnd

GIF_PICTURES_PER_S = 15
GIF_MOST_PICTURES = 400
"""A GIF of more is thinned out, so that it stays small enough for a README."""
LONGEST_GAME_STEPS = 30_000


@dataclass(frozen=True)
class Film:
    """One game as it was filmed."""

    pictures: list[np.ndarray]
    """uint8 [H, W, 3] each."""
    pictures_per_s: float
    score: float


def film_game(config: TrainConfig, policy: Policy, *, actions: Actions | None = None, seed_index: int = 0) -> Film:
    """Play one full game with a policy, in the evaluation view, and keep what it looked like.

    Raises:
        UserError: the policy is of another network, the environment has no picture, or the game does not end.
    """
    environment_seed, action_seed = stream_seeds(config.run.seed, "recording", seed_index)
    protocol = protocol_for(config, actions)
    camera = make_camera(protocol.environment, environment_seed)
    try:
        of = Spaces(camera.environments.observation_space, camera.environments.action_space)
        agent = build_agent(config, of)
        agent.load(policy.parameters_for(agent.layout))
        generator = torch.Generator(device=agent.device).manual_seed(action_seed)
        pictures: list[np.ndarray] = []
        observation, state = camera.environments.reset(), agent.initial_state(1)
        pictures += camera.pictures(observation)
        for _ in range(LONGEST_GAME_STEPS):
            chosen, state = decide(agent, observation, state)
            transition = camera.environments.step(act(chosen, protocol.actions, generator))
            observation = transition.observation
            pictures += camera.pictures(observation)
            if transition.episodes:
                return Film(pictures, camera.pictures_per_s, transition.episodes[0].score)
    finally:
        camera.environments.close()
    raise UserError(f"the game did not end within {LONGEST_GAME_STEPS} steps: give the environment a time limit")


def save_mp4(film: Film, path: Path, *, scale: int = 2) -> None:
    """Encode a film as H.264; the file appears whole or not at all."""
    height, width = (size * scale - size * scale % 2 for size in film.pictures[0].shape[:2])
    part = path.with_name(f".{path.stem}.part.mp4")
    path.parent.mkdir(parents=True, exist_ok=True)
    with imageio.get_writer(part, fps=film.pictures_per_s, macro_block_size=1, quality=7) as writer:
        for picture in film.pictures:
            writer.append_data(  # type: ignore[attr-defined]
                np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.NEAREST))
            )
    os.replace(part, path)


def save_gif(film: Film, path: Path) -> None:
    """Encode a film as a small GIF: the game's own size, 32 colours, at most `GIF_MOST_PICTURES` pictures."""
    step = max(1, round(film.pictures_per_s / GIF_PICTURES_PER_S), -(-len(film.pictures) // GIF_MOST_PICTURES))
    frames = [Image.fromarray(picture).quantize(32) for picture in film.pictures[::step]]
    part = path.with_name(f".{path.stem}.part.gif")
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(
        part, save_all=True, append_images=frames[1:], duration=round(1000 / GIF_PICTURES_PER_S), loop=0, optimize=True
    )
    os.replace(part, path)


def run_recorder(folder: RunFolder, config: TrainConfig, rank: int) -> str:
    """The recording node's whole life: film a game of every `recording_every`-th checkpoint until the run ends.

    Returns:
        The reason the run ended.
    """
    metrics = MetricsWriter(folder, "recorder", rank)

    def tell(line: str) -> None:
        print(f"recorder {rank}: {line}", flush=True)
        metrics.record_event("recording", line)

    run_end = RunEnd(folder)
    try:
        for policy in _every_kth(CheckpointWatch(folder, run_end, say=tell), config.run.recording_every):
            film = film_game(config, policy)
            path = folder.videos / f"step-{policy.step}.mp4"
            save_mp4(film, path)
            tell(f"step {policy.step}: a game of {film.score:g} points in {path.name}")
    finally:
        metrics.close()
    return run_end() or "the run has ended"


def _every_kth(watch: CheckpointWatch, k: int) -> Iterator[Policy]:
    """The first of every k new policies."""
    seen = 0
    while (policy := watch.wait()) is not None:
        if seen % k == 0:
            yield policy
        seen += 1
