"""From command-line words to a validated configuration: tyro reads the words once, and tells what they give, no more.

An option is declared as a field of a configuration (`param_servers.config`); what the words do not give is the
preset's.
"""

import ast
import inspect
import itertools
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar, cast, get_args, get_type_hints, is_typeddict

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from dba3c.config import TrainConfig, option_names
from dba3c.errors import UserError, did_you_mean
from dba3c.resuming import MAY_CHANGE
from launch.cli.configuration import TrainWords, words_of
from launch.local.resources import given_cores

ALL_WORD = "--help-all"
HELP_WORDS = ("-h", "--help", ALL_WORD)
COMMON = (
    "preset", "protocol", "resume",
    "envs_per_worker", "network", "device", "algorithm", "rollout_length", "discount", "entropy_cost", "learning_rate",
    "exchange", "num_workers", "num_servers", "num_backup_workers", "mode", "actors",
    "run_dir", "seed", "total_frames", "stop_score", "max_hours", "track", "evaluators", "recorders",
)  # fmt: skip
"""Options that `dba3c train --help` shows."""
Parsed = TypeVar("Parsed")
_TYPED_DICT: Any = TypedDict  # made at run time, which type checkers do not follow
_POSITION: Any = tyro.conf.Positional


def parse_train(words: Sequence[str]) -> TrainWords:
    """The words after ``dba3c train``.

    Raises:
        UserError: what tyro refuses, in one line.
    """
    said = parse(_train_options(), [word for word in words if word not in HELP_WORDS], "dba3c train")
    groups = [said.pop(group.name, {}) for group in fields(TrainConfig)]
    given = {name: value for group in groups for name, value in group.items()}
    read = words_of(said.pop("env_or_preset", None), given, **said)
    if asked := set(words) & set(HELP_WORDS):
        shown, text = read.config(given_cores(os.environ)), inspect.cleandoc(TrainWords.__doc__ or "")
        only = () if ALL_WORD in asked else COMMON
        text += f"\n\nThese are the common options; {ALL_WORD} shows all {len(option_names())}." if only else ""
        parse(_train_options(shown, only), ["--help"], "dba3c train", text)
    return read


def _train_options(shown: TrainConfig | None = None, only: Collection[str] = ()) -> Any:
    """The options of `dba3c train` as a type of which tyro makes a dictionary of those that were given.

    Args:
        shown: whose values the help shows as defaults; without it there are no help texts either.
        only: these options of the configuration; without any: all.
    """
    docs, kinds = docstrings_of_fields(TrainWords), get_type_hints(TrainWords)
    what = "What to train; without it the environment of --preset, or Breakout."
    env = Annotated[str, _POSITION, tyro.conf.arg(metavar="[ENV|PRESET]", help=what, help_behavior_hint="")]
    options: dict[str, Any] = {"env_or_preset": env}
    for own in fields(TrainWords)[1:]:
        if only and own.name not in only:
            continue
        kind = bool if kinds[own.name] is bool else str
        options[own.name] = Annotated[kind, tyro.conf.arg(help=docs[own.name], help_behavior_hint="")]
    options |= _groups(shown, shown is not None, only)
    return _TYPED_DICT("TrainOptions", options, total=False)


def _groups(shown: TrainConfig | None = None, described: bool = False, only: Collection[str] = ()) -> dict[str, Any]:
    """The configuration's groups of options as such types.

    Args:
        shown: whose values the help shows as defaults.
        described: with help texts.
        only: these options; without any: all.
    """
    groups: dict[str, Any] = {}
    for name, kind in get_type_hints(TrainConfig).items():
        docs, kinds = docstrings_of_fields(kind) if described else {}, get_type_hints(kind)
        leaves = {}
        for leaf in fields(kind):
            if only and leaf.name not in only:
                continue
            default = f"(default: {getattr(getattr(shown, name), leaf.name)})" if shown else ""
            short = tuple(f"--{each}" for each in leaf.metadata.get("short", ()))
            leaf_help = tyro.conf.arg(aliases=short, help=docs.get(leaf.name), help_behavior_hint=default)
            leaves[leaf.name] = Annotated[kinds[leaf.name], leaf_help]
        if leaves:
            groups[name] = Annotated[_TYPED_DICT(kind.__name__, leaves, total=False), tyro.conf.arg(help=kind.__doc__)]
    return groups


def parse_resume(words: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """The words after ``dba3c resume``: the run's folder, and the options that are given.

    Raises:
        UserError: what tyro refuses, in one line.
    """
    run = {"folder": Annotated[Path, _POSITION, tyro.conf.arg(help="The run's folder.", help_behavior_hint="")]}
    if set(words) & set(HELP_WORDS):
        kind = _TYPED_DICT("ResumeOptions", {**run, **_groups(described=True, only=MAY_CHANGE)}, total=False)
        parse(kind, ["--help"], "dba3c resume", "Go on with a run from its newest checkpoint. These may change.")
    said = parse(_TYPED_DICT("ResumeOptions", {**run, **_groups()}, total=False), words, "dba3c resume")
    if "folder" not in said:
        raise UserError("PATH is missing: The run's folder.")
    return said.pop("folder"), {name: value for group in said.values() for name, value in group.items()}


def docstrings_of_fields(kind: type) -> dict[str, str]:
    """Each field's docstring, the one under it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    lines = cast(ast.ClassDef, tree).body
    return {
        above.target.id: " ".join(below.value.value.split())
        for above, below in itertools.pairwise(lines)
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def parse(kind: type[Parsed], words: Sequence[str], program: str, description: str | None = None) -> Parsed:
    """``words`` as a ``kind``; tyro's boxed complaint becomes one line that names the close options.

    Raises:
        UserError: what tyro, or the configuration itself, refuses; an option that there is not, or a list without a
            value, which would mean that list's default.
    """
    said = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    known = _flags(kind)
    for flag in said:
        if flag not in known:
            close = did_you_mean(flag, known, f"{program} --help lists those that there are")
            raise UserError(f"unknown option {flag}; {close}")
    complaint = StringIO()
    try:
        with redirect_stderr(complaint):
            parsed: Parsed = tyro.cli(
                kind, args=list(words), prog=program, description=description, config=(tyro.conf.OmitArgPrefixes,),
                registry=_values,
            )  # fmt: skip
        for name, value in vars(parsed).items() if is_dataclass(kind) else ():
            if value == () and "--" + name.replace("_", "-") in said:
                raise UserError(f"--{name.replace('_', '-')} needs a value")
        return parsed
    except SystemExit as ended:
        if not ended.code:
            raise
        raise UserError(_one_line(complaint.getvalue())) from None


def _flags(kind: Any) -> dict[str, None]:
    """Every option of a type that `parse` reads, in order, by each of its names."""
    flags = dict.fromkeys(["--help"])
    for name, hint in get_type_hints(kind, include_extras=True).items():
        said = getattr(hint, "__metadata__", ())
        own = get_args(hint)[0] if said else hint
        if is_typeddict(own):
            flags |= _flags(own)
        elif _POSITION not in said:
            flags["--" + name.replace("_", "-")] = None
            flags |= dict.fromkeys(alias for each in said for alias in getattr(each, "aliases", None) or ())
            flags |= dict.fromkeys(["--no-" + name.replace("_", "-")] if own is bool else [])
    return flags


def refuse_given(arguments: Any, names: Iterable[str], why: str) -> None:
    """Raise UserError where any of these options is not its class's default: nobody reads them."""
    given = [name for name in names if getattr(arguments, name) != getattr(type(arguments), name)]
    if given:
        raise UserError(f"{', '.join('--' + name.replace('_', '-') for name in given)}: {why}")


def whole_number(text: str) -> int:
    """Also 1e5 and 2.5e6, which are whole. Raises ValueError: it is none, as 1.5."""
    try:
        return int(text)
    except ValueError:
        with suppress(ValueError):
            if (number := float(text)).is_integer():
                return int(number)
        raise


def path(text: str) -> Path:
    """Raises ValueError: it is empty, as a variable that is not set; pathlib takes that for the current folder.

    A shell expands ~ at the beginning of a word only, and not in --output=~/film.mp4.
    """
    if not text:
        raise ValueError("an empty path")
    return Path(os.path.expanduser(text))


_values = ConstructorRegistry()


def _rule(kind: type, metavar: str, read: Callable[[str], Any]) -> None:
    @_values.primitive_rule
    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type is not kind:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=lambda words: read(words[0]),
            is_instance=lambda value: isinstance(value, kind) and type(value) is not bool,
            str_from_instance=lambda value: [str(value)],
        )


_rule(int, "INT", whole_number)
_rule(Path, "PATH", path)


REWORDED = (
    (r"Error parsing (--[\w-]+).*?invalid literal for int.*? base 10: ('.*?')", "{0} takes a whole number, not {1}"),
    (r"Error parsing (--[\w-]+).*?could not convert string to float: ('.*?')", "{0} takes a number, not {1}"),
    (r"Error parsing \[*([\w-]+).*?(?:an empty path|from \[''\]|arguments: \[''\])", "{0} is empty"),
    (r"Error parsing (--[\w-]+).*?valid parse for arguments: \[(.*?)\]", "{0} cannot be {1}"),
    (r"Missing value for argument '(--[\w-]+)", "{0} needs a value"),
    (r"Missing from [^:]*: (--[\w-]+) \S+ (.*?) \(required\)", "{0} is missing: {1}"),
    (r"Missing from [^:]*: (\S+) (.*?) \(required\)", "{0} is missing: {1}"),
    (r"Unrecognized options: ([^,]*?)(?:,| For full|$)", "{0} belongs to no option"),
)
"""What tyro says, and what we do."""
INVALID_CHOICE = re.compile(r"invalid choice '(.*?)' for argument '(--[\w-]+).*?'\. Expected one of \((.*?)\)")


def _one_line(complaint: str) -> str:
    """tyro's boxes, without frames: what is wrong."""
    rows = [row.strip("│╭╮╰╯ ").strip() for row in complaint.splitlines()]
    rows = [row for row in rows if row and not row.startswith("─")]
    text = " ".join(rows)
    for pattern, ours in REWORDED:
        if found := re.search(pattern, text):
            return ours.format(*found.groups())
    if found := INVALID_CHOICE.search(text):
        given, flag, choices = found.groups()
        return f"{flag} cannot be {given!r}; {did_you_mean(given, choices.replace(chr(39), '').split(', '))}"
    sentences = (row for row in rows if not row.startswith(("--", "(", "For full helptext", "Argument helptext")))
    return " ".join([*sentences][:2]) or "bad options"
