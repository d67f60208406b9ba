"""``dba3c plot STUDY`` draws a study, ``dba3c plot RUN...`` learning curves of any runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dba3c.errors import UserError
from dba3c.runs.files import is_there
from dba3c.studies.figures import plot_runs
from dba3c.studies.report import plot_metric, plot_study
from dba3c.studies.results import commit_into
from dba3c.studies.study import STUDY_FILE
from launch.cli.options import parse, refuse_given


@dataclass(frozen=True)
class PlotArguments:
    """Draw a study, or learning curves of runs.

    dba3c plot STUDY draws a study: its figures (PNG and SVG) and report.html. dba3c plot RUN... draws runs; those that
    differ only in their seeds become one line with a bootstrap band.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """A study's folder, or run folders."""

    into: Path | None = None
    """Where figures of a study go (STUDY/figures by default); of runs INTO.png and INTO.svg (learning_curves)."""

    x: str | None = None
    """frames, hours, core-hours (of processor time), or any chart of docs/metrics.md; None: the study's own axis, where
    it has one, else frames. Of a study with --y only."""

    y: str | None = None
    """Any chart of docs/metrics.md, score/mean where none is named. Of a study this chart alone is drawn."""

    title: str = ""
    """Of learning curves."""

    commit_into: Path | None = None
    """Also copy the study's data there, downsampled: small enough to commit, and drawn from like the study itself."""


def plot(words: Sequence[str]) -> int:
    """dba3c plot STUDY, or dba3c plot RUN..."""
    arguments = parse(PlotArguments, words, "dba3c plot")
    if not arguments.paths:
        raise UserError("nothing to draw: name a study's folder, or run folders (dba3c plot RUN...)")
    if not any(map(_holds_a_study, arguments.paths)):
        refuse_given(arguments, ("commit_into",), "of a study")
        into, x, y = arguments.into or Path("learning_curves"), arguments.x or "frames", arguments.y or "score/mean"
        print(*plot_runs(arguments.paths, into, x, y, arguments.title), sep="\n")
        return 0
    refuse_given(arguments, ("title",), "of learning curves")
    if len(arguments.paths) > 1:
        raise UserError("a study is drawn alone: dba3c plot STUDY")
    (study,) = arguments.paths
    if arguments.x is not None and arguments.y is None:
        raise UserError("--x goes with --y")
    if arguments.commit_into is not None:
        copied = commit_into(study, arguments.commit_into)
        print(f"{copied} runs copied to {arguments.commit_into}")
    if arguments.y is not None:
        print(*plot_metric(study, arguments.y, arguments.x, arguments.into), sep="\n")
        return 0
    print(*plot_study(study, arguments.into), sep="\n")
    return 0


def _holds_a_study(path: Path) -> bool:
    try:
        return is_there(path / STUDY_FILE)
    except UserError:  # of a run among others, which is left out with a line
        return False
