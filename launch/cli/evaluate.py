"""`dba3c evaluate`: full games with a checkpoint of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from launch.cli.options import parse
from launch.local.resources import given_cores


@dataclass(frozen=True)
class EvaluateArguments:
    """Play full games with a run's newest checkpoint: mean, median, IQM with its 95 % interval."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""

    games: int = 50
    """Full games, with unclipped scores."""

    step: int | None = None
    """The checkpoint; None: the newest whole one."""

    actions: Literal["sampled", "greedy"] | None = None
    """Drawn from the policy, or its likeliest; None: as the run's protocol has it."""

    seed_index: int = 0
    """Which stream of evaluation seeds: the same index plays the same games."""


def run(words: Sequence[str]) -> int:
    """dba3c evaluate RUN [OPTIONS]"""
    from rich.console import Console
    from rich.progress import Progress

    from dba3c.config import TrainConfig
    from dba3c.evaluation.evaluator import evaluate
    from dba3c.runs.checkpoints import find_policy
    from dba3c.runs.run_folder import RunFolder

    arguments = parse(EvaluateArguments, words, "dba3c evaluate")
    folder = RunFolder.open(arguments.run)
    policy = find_policy(folder.checkpoints, arguments.step, on_skip=print)
    console = Console(stderr=True)
    with Progress(transient=True, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"step {policy.step}", total=arguments.games)
        evaluation = evaluate(
            TrainConfig.from_json(folder.config_text()),
            policy,
            games=arguments.games,
            actions=arguments.actions,
            seed_index=arguments.seed_index,
            env_threads=given_cores(os.environ),
            on_game=lambda episode: progress.advance(task),
        )
    print(f"step {policy.step}, {evaluation.protocol}: {evaluation.summary}")
    print(evaluation.save(folder))
    return 0
