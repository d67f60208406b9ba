"""``dba3c plot STUDY`` draws a study, ``dba3c plot RUN...`` learning curves of any runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dba3c.errors import UserError
from dba3c.runs.files import is_there
from dba3c.studies.figures import plot_runs
from dba3c.studies.report import plot_metric, plot_study
from dba3c.studies.results import commit_into
from dba3c.studies.study import STUDY_FILE
from launch.cli.options import parse


@dataclass(frozen=True)
class PlotStudyArguments:
    """Draw a study: its figures (PNG and SVG) and report.html."""

    study: Annotated[Path, tyro.conf.Positional]
    """The study's folder."""

    into: Path | None = None
    """Where the figures go; STUDY/figures by default."""

    y: str | None = None
    """Draw this chart of docs/metrics.md alone, e.g. optimizer/v_norm."""

    x: str | None = None
    """With --y: frames, hours, core-hours or a chart; None: the study's axis, where it has one, else frames."""

    commit_into: Path | None = None
    """Also copy the study's data there, downsampled: small enough to commit, and drawn from like the study itself."""


@dataclass(frozen=True)
class PlotArguments:
    """Draw learning curves; runs that differ only in their seeds become one line with a bootstrap band.

    dba3c plot STUDY draws a study: its figures and report.html. dba3c plot STUDY --help lists the options of that.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""

    into: Path = Path("learning_curves")
    """The figure, written as INTO.png and INTO.svg."""

    x: str = "frames"
    """frames, hours, core-hours (of processor time), or any chart of docs/metrics.md."""

    y: str = "score/mean"
    """Any chart of docs/metrics.md."""

    statistic: Literal["iqm", "mean"] = "iqm"
    """What is drawn of several seeds."""

    title: str = ""


def plot(words: Sequence[str]) -> int:
    """dba3c plot STUDY, or dba3c plot RUN..."""
    if not any(_holds_a_study(word) for before, word in pairwise(["", *words]) if _is_drawn(before, word)):
        return _plot_runs(words)
    arguments = parse(PlotStudyArguments, words, "dba3c plot")
    if arguments.x is not None and arguments.y is None:
        raise UserError("--x goes with --y")
    if arguments.commit_into is not None:
        copied = commit_into(arguments.study, arguments.commit_into)
        print(f"{copied} runs copied to {arguments.commit_into}")
    if arguments.y is not None:
        print(*plot_metric(arguments.study, arguments.y, arguments.x, arguments.into), sep="\n")
        return 0
    print(*plot_study(arguments.study, arguments.into), sep="\n")
    return 0


def _is_drawn(before: str, word: str) -> bool:
    """Whether a word, and the one before it, are what is to be drawn: no option, and no option's value."""
    return not word.startswith("-") and (not before.startswith("--") or "=" in before)


def _holds_a_study(word: str) -> bool:
    try:
        return is_there(Path(word) / STUDY_FILE)
    except UserError:  # of a run among others, which is left out with a line
        return False


def _plot_runs(words: Sequence[str]) -> int:
    arguments = parse(PlotArguments, words, "dba3c plot")
    if not arguments.runs:
        raise UserError("nothing to draw: name a study's folder, or run folders (dba3c plot RUN...)")
    written = plot_runs(arguments.runs, arguments.into, arguments.x, arguments.y, arguments.statistic, arguments.title)
    print(*written, sep="\n")
    return 0
