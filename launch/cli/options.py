"""From command-line words to a validated configuration, through tyro."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Annotated, Any, TypeVar

import tyro

from dba3c.config import TrainConfig, option_names
from dba3c.environments.atari.protocols import with_protocol
from dba3c.errors import UserError
from launch.cli.belonging import refuse_options_given_in_vain
from launch.cli.presets import PRESETS, preset, with_central_inference
from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError

SHORT_NAMES = {
    "--env": "--env-id",
    "--workers": "--num-workers",
    "--servers": "--num-servers",
    "--backup-workers": "--num-backup-workers",
    "--learners": "--num-workers",
    "--gradients": "--num-gradients",
    "--lr": "--learning-rate",
}
WITH_BACKUP_WORKERS = ("servers", "majority")
"""Exchanges that can have them."""

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class TrainArguments:
    """Train on an environment: dba3c train [ENV | PRESET] [OPTIONS].

    ENV is any Gymnasium id, or package.module:function. --workers, --servers, --backup-workers, --gradients, --env and
    --lr are short for --num-workers, --num-servers, --num-backup-workers, --num-gradients, --env-id, --learning-rate.
    The defaults shown are those of the preset that fits the environment.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)

    preset: str | None = None
    """breakout, dba3c_paper, classic, football, vizdoom, mujoco, impala, r2d2, sac or ppo; without it the one that fits
    the environment."""

    protocol: str | None = None
    """Atari: how the game is played, which its score is quoted with: v5, v4-no-sticky or 2017. None: the preset's."""

    resume: bool = False
    """Go on from the newest checkpoint of the run in --run-dir, or of this environment's newest run under runs/."""


def parse_train(words: Sequence[str], cores: int) -> TrainArguments:
    """The words after ``dba3c train``; options not given come from the preset.

    Raises:
        UserError: anything that cannot be, in one line.
    """
    words = with_long_names(words)
    if words and not words[0].startswith("-"):
        words = ["--preset" if words[0] in PRESETS else "--env-id", *words]
    refuse_unknown(words)
    config = preset(value_of(words, "--preset"), value_of(words, "--env-id"), cores)
    if value_of(words, "--mode") == "central":
        config = with_central_inference(config, cores)
    config = replace(config, exchange=_with_backup_workers_that_can_be(config.exchange, words))
    protocol = value_of(words, "--protocol")
    if protocol is not None:
        config = replace(config, environment=with_protocol(config.environment, protocol))
    arguments = parse(TrainArguments, words, "dba3c train", TrainArguments(config=config))
    refuse_options_given_in_vain(arguments.config, given_options(words))
    return arguments


def _with_backup_workers_that_can_be(exchange: ExchangeConfig, words: Sequence[str]) -> ExchangeConfig:
    """A preset's exchange; its backup workers, if nobody asked for them, give way to what the words say."""
    given, backup = given_options(words), exchange.num_backup_workers
    if not backup or "num_backup_workers" in given:
        return exchange
    if "num_gradients" in given:
        return replace(exchange, num_backup_workers=None)  # all workers beyond these
    workers, name = value_of(words, "--num-workers") or "", value_of(words, "--exchange") or exchange.exchange
    too_few = workers.isdigit() and int(workers) <= backup
    return replace(exchange, num_backup_workers=0) if too_few or name not in WITH_BACKUP_WORKERS else exchange


def parse(kind: type[Parsed], words: Sequence[str], program: str, default: Parsed | None = None) -> Parsed:
    """``words`` as a ``kind``; tyro's boxed complaint becomes one line that names the close options.

    Raises:
        UserError: what tyro, or the configuration itself, refuses.
    """
    complaint = StringIO()
    options: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with redirect_stderr(complaint):
            parsed: Parsed = tyro.cli(
                kind, args=list(words), prog=program, config=(tyro.conf.OmitArgPrefixes,), **options
            )
            return parsed
    except ConfigError as error:
        raise UserError(str(error)) from error
    except SystemExit as ended:
        if not ended.code:
            raise
        raise UserError(_one_line(complaint.getvalue())) from None


def _one_line(complaint: str) -> str:
    """tyro's boxes, without frames: what is wrong, and the nearest options if it names any."""
    rows = [row.strip("│╭╮╰╯ ").strip() for row in complaint.splitlines()]
    rows = [row for row in rows if row and not row.startswith("─")]
    close = [row for row in rows if row.startswith("--")]
    sentences = [
        row for row in rows if not row.startswith(("--", "(", "For full helptext", "Perhaps", "Argument help"))
    ]
    text = " ".join(sentences[:2]).strip() or "bad options"
    return text + (f" (close: {', '.join(close[:3])})" if close else "")


def with_long_names(words: Sequence[str]) -> list[str]:
    """Short names spelled out, underscores as dashes, ``--name=value`` split."""
    long: list[str] = []
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word.startswith("--"):
            name = name.replace("_", "-")
            name = SHORT_NAMES.get(name, name)
        long += [name, value] if equals else [name]
    return long


def refuse_unknown(words: Sequence[str]) -> None:
    """Raise UserError for an option that dba3c train does not have, naming the close ones, short names too."""
    known = {*option_names(), "preset", "protocol", "resume", "help"}
    shorts = [short[2:] for short in SHORT_NAMES]
    for word in words:
        if word.startswith("--") and word[2:].removeprefix("no-").replace("-", "_") not in known:
            names = [*shorts, *(name.replace("_", "-") for name in sorted(known))]
            close = difflib.get_close_matches(word[2:], names)
            hint = f"; did you mean {' or '.join('--' + name for name in close)}?" if close else ""
            raise UserError(f"unknown option {word}{hint}")


def given_options(words: Sequence[str]) -> set[str]:
    """Names of the options that the words give themselves, as `dba3c.config` spells them: ``num_workers``, …"""
    return {word[2:].replace("-", "_") for word in with_long_names(words) if word.startswith("--")}


def value_of(words: Sequence[str], name: str) -> str | None:
    """The word after ``name``, if it is there."""
    places = [i for i, word in enumerate(words) if word == name and i + 1 < len(words)]
    return words[places[-1] + 1] if places else None
