"""`dba3c evaluate` plays full games with a checkpoint of a run, `dba3c record` films one."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dba3c import games
from dba3c.runs.checkpoints import run_and_step
from launch.cli.options import parse
from launch.local.resources import given_cores


@dataclass(frozen=True)
class CheckpointArguments:
    """Which checkpoint plays, and how. Fields are named as arguments of `dba3c.evaluate` and `dba3c.record`."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder, or one of its checkpoints; of a folder of seeds the first."""

    step: Annotated[int | None, tyro.conf.arg(aliases=["--checkpoint"])] = None
    """The checkpoint; None: the newest whole one."""

    actions: Literal["sampled", "greedy"] | None = None
    """Drawn from the policy, or its likeliest; None: as the run's protocol has it."""

    seed_index: int = 0
    """Which stream of seeds: the same index plays the same games."""


@dataclass(frozen=True)
class EvaluateArguments(CheckpointArguments):
    """Play full games with a run's newest checkpoint: mean, median, IQM with its 95 % interval."""

    games: int = 50
    """Full games, with unclipped scores."""


@dataclass(frozen=True)
class RecordArguments(CheckpointArguments):
    """Film one full game played with a run's newest checkpoint, as mp4 and, when asked, as a GIF."""

    output: Path | None = None
    """Where the mp4 goes; None: videos/step-N.mp4 in the run's folder (step-N-ACTIONS-I.mp4 where actions and seeds are
    not the recorder's), of a committed one in a folder under runs/."""

    overlay: bool = False
    """Draw score, value and action probabilities beside the game."""

    gif: Path | None = None
    """Write a GIF of at most 2 MB here as well."""


def evaluate(words: Sequence[str]) -> int:
    """dba3c evaluate RUN [OPTIONS]"""
    arguments = parse(EvaluateArguments, words, "dba3c evaluate")
    evaluation = games.evaluate(**vars(arguments), env_threads=given_cores(os.environ))
    print(f"step {evaluation.checkpoint_step}, {evaluation.protocol}: {evaluation.summary}")
    if evaluation.human_normalised is not None:
        print(f"mean: {evaluation.human_normalised:.0%} of the way from random actions to a person")
    print(evaluation.path(games.folder_for_outputs(run_and_step(arguments.run)[0])))
    return 0


def record(words: Sequence[str]) -> int:
    """dba3c record RUN [OPTIONS]"""
    arguments = parse(RecordArguments, words, "dba3c record")
    path, game = games.record(**vars(arguments))
    print(f"step {game.checkpoint_step}, {game.protocol}: {game.score:,.10g} points in {game.length_steps} steps")
    print("\n".join(str(file) for file in (path, arguments.gif) if file is not None))
    return 0
