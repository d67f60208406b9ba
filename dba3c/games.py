"""Games of a run's checkpoint, from Python: play full ones, film one. The commands of the same names call these.

In: a run's folder, or a folder of results/. Out: scores, a film.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dba3c.algorithms.policies import Actions
from dba3c.errors import UserError, warn_on_stderr
from dba3c.evaluation import evaluator
from dba3c.evaluation.agents import whole_number
from dba3c.evaluation.evaluator import Evaluation
from dba3c.recording.recorder import RecordedGame, film_of, record_game, shows
from dba3c.runs.checkpoints import open_parameters
from dba3c.runs.files import check_writable, resolved
from dba3c.runs.folder import RunFolder
from dba3c.runs.host_facts import usable_cores
from dba3c.studies.statistics import score_text


def evaluate(
    run: str | os.PathLike[str],
    games: int = 50,
    *,
    step: int | None = None,
    actions: Actions | None = None,
    seed_index: int = 0,
    env_threads: int | None = None,
) -> Evaluation:
    """Play full games with a checkpoint of a run, and keep what they were in its folder, under evaluations/ (of a
    committed run: `folder_for_outputs`).

    Args:
        run: a `Run`, its folder, or one of its checkpoints; of a folder of seeds the first.
        games: how many, each to its end.
        step: the checkpoint; None: the newest whole one.
        actions: "sampled" (drawn from the policy) or "greedy"; None: as the protocol of the run's environment has it.
        seed_index: the same index plays the same games.
        env_threads: C++ threads that step Atari; None: one for each core.

    Returns:
        `scores` [games], unclipped, in game points, and their `summary`: `mean`, `median`, `iqm` and `interval_95`, the
        IQM's 95 % bootstrap interval (None of a single game).

    Raises:
        UserError: there is no such checkpoint, its environment cannot be played here, or its folder not be written.
    """
    games, seed_index = whole_number("games", games), whole_number("seed_index", seed_index)
    env_threads = whole_number("env_threads", usable_cores() if env_threads is None else env_threads)
    step = None if step is None else whole_number("step", step)
    folder, trained = open_parameters(run, step, on_skip=warn_on_stderr)
    into = folder_for_outputs(folder)
    check_writable(into.path / evaluator.FOLDER)
    with _progress("game") as progress:
        task = progress.add_task(f"playing step {trained.step}", total=games)
        evaluation = evaluator.evaluate(
            folder.train_config(),
            trained,
            games=games,
            actions=actions,
            seed_index=seed_index,
            env_threads=env_threads,
            on_game=lambda episode: progress.advance(task),
        )
    try:
        evaluation.save(into)
    except UserError as error:  # after minutes of playing
        raise UserError(f"{error}; what was played: {evaluation.summary}") from error
    return evaluation


def record(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    step: int | None = None,
    overlay: bool = False,
    gif: str | os.PathLike[str] | None = None,
    actions: Actions | None = None,
    seed_index: int = 0,
) -> tuple[Path, RecordedGame]:
    """Film one full game that a checkpoint of a run plays.

    Args:
        run, step, actions, seed_index: as in `evaluate`.
        output: the mp4; None: videos/step-N.mp4 in the run's folder (of a committed one: `folder_for_outputs`), also
            named by actions and stream where they are not the recorder's.
        overlay: draw score, value and action probabilities beside the game.
        gif: write a GIF of at most 2 MB here as well.

    Returns:
        (the mp4, what it shows).

    Raises:
        UserError: there is no such checkpoint, the environment cannot be drawn, or a file not be written.
    """
    seed_index, step = whole_number("seed_index", seed_index), None if step is None else whole_number("step", step)
    folder, trained = open_parameters(run, step, on_skip=warn_on_stderr)
    config = folder.train_config()
    path = film_of(folder_for_outputs(folder), config, trained, actions, seed_index)
    path = path if output is None else resolved(output)
    gif = None if gif is None else resolved(gif)
    if path.suffix != ".mp4":
        raise UserError(f"a film is an .mp4 file, not {path.name}")
    if gif is not None and gif.suffix.lower() != ".gif":
        raise UserError(f"a GIF is a .gif file, not {gif.name}")
    for file in (path, *([] if gif is None else [gif])):
        check_writable(file.parent)
    if output is None and path.exists() and not shows(path, trained):
        path.with_suffix(".gif").unlink(missing_ok=True)  # the recorder's, of parameters that were made anew
    with _progress("step", "score {task.fields[score]}") as progress:
        task = progress.add_task(f"filming step {trained.step}", total=None, score="0")
        game = record_game(
            config,
            trained,
            path,
            gif=gif,
            overlay=overlay,
            actions=actions,
            seed_index=seed_index,
            on_step=lambda step, score: progress.update(task, completed=step, score=score_text(score)),
        )
    return path, game


def folder_for_outputs(run: RunFolder) -> RunFolder:
    """Where what is made of a run (evaluations, films) goes: into its folder. A committed one, as those of results/,
    stays as it is, and another's may be there to be read only: then runs/ here, under the name of its path, e.g.
    runs/breakout_lanes-nstep-seed-0 for results/breakout_lanes/nstep/seed-0."""
    if not run.is_committed and os.access(run.path, os.W_OK):
        return run
    parts, here = run.path.parts, Path.cwd()
    if "results" in parts[:-1]:
        begin = max(place for place, part in enumerate(parts[:-1]) if part == "results") + 1
    else:
        begin = len(here.parts) if here in run.path.parents else 1
    return RunFolder(Path("runs") / "-".join(parts[begin:]))


def _progress(what: str, *columns: str) -> Progress:
    """A bar on a terminal, and in a notebook that has what rich needs there; nothing elsewhere."""
    console = Console(stderr=True)
    shown = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    made = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} " + f"{what}s")]
    return Progress(*made, *map(TextColumn, columns), transient=True, console=console, disable=not shown)
