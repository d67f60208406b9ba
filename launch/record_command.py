"""`dba3c record`: film a game of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from launch.options import parse


@dataclass(frozen=True)
class RecordArguments:
    """Film one full game played with a run's newest checkpoint, as mp4 and, when asked, as a GIF."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""

    step: int | None = None
    """The checkpoint; None: the newest whole one."""

    actions: Literal["sampled", "greedy"] | None = None
    """Drawn from the policy, or its likeliest; None: as the run's protocol has it."""

    seed_index: int = 0
    """Which stream of seeds: the same index plays the same game."""

    gif: Path | None = None
    """Write a small GIF here as well."""


def run(words: Sequence[str]) -> int:
    """dba3c record RUN [OPTIONS]"""
    from dba3c.checkpoints import find_policy
    from dba3c.config import TrainConfig
    from dba3c.recording import film_game, save_gif, save_mp4
    from dba3c.run_folder import RunFolder

    arguments = parse(RecordArguments, words, "dba3c record")
    folder = RunFolder.open(arguments.run)
    policy = find_policy(folder.checkpoints, arguments.step, on_skip=print)
    config = TrainConfig.from_json(folder.config_text())
    film = film_game(config, policy, actions=arguments.actions, seed_index=arguments.seed_index)
    path = folder.videos / f"step-{policy.step}.mp4"
    save_mp4(film, path)
    print(f"step {policy.step}: {film.score:g} points, {len(film.pictures)} pictures: {path}")
    if arguments.gif is not None:
        save_gif(film, arguments.gif)
        print(arguments.gif)
    return 0
