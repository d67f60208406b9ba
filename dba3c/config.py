"""The one configuration tree: frozen, validated, documented; CLI, Slurm scripts and run folder all speak it.

Field names are unique across the tree, so the command line needs no prefixes (``--workers 4 --entropy-cost 0.01``).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import cattrs
from cattrs.errors import AttributeValidationNote, CattrsError, ForbiddenExtraKeysError
from cattrs.preconf.json import make_converter

from dba3c.algorithms.config import OWN, POLICY_GRADIENT, REPLAYING, AlgorithmConfig
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError, did_you_mean
from dba3c.own_code import name_of
from param_servers.config import (
    ExchangeConfig,
    OptimizerConfig,
    check_options,
    option,
    refusal_of_unread,
)
from param_servers.errors import ConfigError
from param_servers.timeouts import NOTICE_S

ALGORITHMS_OF_MODES = {"worker": ("actor_critic", "vtrace", "ppo"), "central": ("vtrace", "r2d2", "sac")}
TRACKERS = ("tensorboard", "neptune", "mlflow", "wandb")
WHY_NOT = {"worker": "which replays experience that workers do not keep", "central": "which needs its own actions"}


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Which function maps observations to a policy and a value, and in what arithmetic."""

    network: str = option("nature", algorithm=POLICY_GRADIENT)
    """dba3c, nature, small, resnet, football or mlp, each also as <name>_lstm (dba3c.networks.registry); auto is
    small where observations are images, resnet where one has a side below 20, and mlp where there are none; or your
    own, package.module:function."""

    precision: Literal["float32", "bfloat16"] = option("float32", algorithm=f"{POLICY_GRADIENT} r2d2")
    """Compute dtype of the torso; heads, losses, parameters and gradients that travel stay float32."""

    device: str = "cpu"
    """Where workers and learners compute: "cpu" or "cuda" (also "cuda:1")."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
        _require(
            re.fullmatch(r"cpu|cuda(:\d+)?", self.device) is not None,
            f"device must be cpu or cuda, not {self.device!r}",
        )


RECORDS_PER_S = 64
"""Of all lanes or actors together: 4 GB a day, which a monitor of the run's next life reads in four minutes. 64 nodes
of twelve lanes, each writing once a second, would be 46 GB, and three quarters of an hour in which nobody looks at the
limits on score and hours."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """When a run ends, where it is kept, what watches it."""

    run_dir: Path | None = None
    """The run's folder; None makes runs/<environment>-<date>-<time>."""

    seed: int = option(0, least=0, below=1 << 63)
    """Everything random in the run follows from it."""

    total_frames: int | None = option(None, least=1)
    """End after this many emulator frames entered updates (data points × the frame skip, its mean where it is random);
    None trains until the stop score or a signal."""

    stop_score: float | None = option(None, above=-math.inf, below=math.inf)
    """End when the mean score of the last --stop-games finished games reaches it."""

    stop_games: int = option(50, least=1, below=1 << 63)
    """Games in that mean (the 2017 paper: 50 consecutive games)."""

    max_hours: float | None = option(None, above=0)
    """End after this many hours of wall clock in one life."""

    max_core_hours: float | None = option(None, above=0)
    """End after this much processor time of all the run's processes, over all its lives, in hours."""

    track: tuple[str, ...] = ("tensorboard",)
    """Sinks beside the metrics files: tensorboard, neptune, mlflow, wandb."""

    evaluators: int = option(0, least=0, most=1)
    """1: a process plays full games with each new checkpoint."""

    recorders: int = option(0, least=0, most=1)
    """1: a process films a game of every k-th checkpoint."""

    evaluation_games: int = option(50, least=1, evaluators="")
    """Full games per checkpoint."""

    evaluation_budget_s: float = option(120.0, least=0, evaluators="")
    """Seconds that the evaluator may play on after the run has had its frames, score or time: it finishes the games
    under way, and plays with the checkpoint that the run ended with. Ctrl-C ends that; a run that is stopped has none.
    """

    recording_every: int = option(5, least=1, recorders="")
    """The recorder films each n-th checkpoint."""

    metrics_window_s: float = option(1.0, least=0, below=math.inf)
    """Step records are summed over windows of this length before they are written; over longer ones where there are
    more than 64 lanes or actors: a second for each 64 of them."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
        if self.run_dir is not None:  # a shell expands ~ at the beginning of a word only
            object.__setattr__(self, "run_dir", Path(os.path.expanduser(self.run_dir)))
        for name in self.track:
            _require(name in TRACKERS, f"no tracker is called {name!r}; {did_you_mean(name, TRACKERS)}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a run is made of."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    central: CentralConfig = field(default_factory=CentralConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        mode, algorithm = self.central.mode, self.algorithm.algorithm
        possible, own = ALGORITHMS_OF_MODES[mode], ":" in algorithm
        why_not = "which is a loss of workers' rollouts" if own else WHY_NOT[mode]
        _require(
            algorithm in possible or (own and mode == "worker"),
            f"mode {mode} cannot learn by {algorithm}, {why_not}: use --algorithm {' or '.join(possible)}",
        )
        _require(
            algorithm != "ppo" or ":" in self.network.network or not self.network.network.endswith("_lstm"),
            "ppo draws its minibatches step by step: choose a network without _lstm, or --algorithm vtrace",
        )
        hangs_s, step_s = self.environment.environment_timeout_s, self.exchange.step_timeout_s
        waited_for = mode == "worker" or self.exchange.exchange != "local"  # one learner alone waits for its actors
        _require(
            not waited_for or not self.environment.environment_processes or hangs_s + NOTICE_S <= step_s,
            f"environment_timeout_s {hangs_s:g} + {NOTICE_S:g} must be at most step_timeout_s {step_s:g}, or a worker "
            "(or learner) whose environment hangs is expelled before that one is started anew",
        )

    def to_json(self) -> str:
        """The resolved tree as indented JSON; ``from_json`` gives an equal tree back."""
        return json.dumps(_converter.unstructure(self), indent=2) + "\n"

    @property
    def processes(self) -> dict[str, int]:
        """How many there are of each role."""
        central = self.central.mode == "central"
        return {
            "servers": self.exchange.num_servers if self.exchange.has_servers else 0,
            "workers": 0 if central else self.exchange.num_workers,
            "learners": self.exchange.num_workers if central else 0,
            "actors": self.central.actors if central else 0,
            "evaluators": self.run.evaluators,
            "recorders": self.run.recorders,
            "monitors": 1,
        }

    @property
    def record_window_s(self) -> float:
        """Over how long a lane or an actor sums what it records: longer where they are so many that they would write
        more than `RECORDS_PER_S`."""
        lanes = self.processes["workers"] * self.environment.lanes + self.processes["actors"]
        return max(self.run.metrics_window_s, lanes / RECORDS_PER_S if lanes > RECORDS_PER_S else 0.0)

    @staticmethod
    def from_json(text: str, source: str = "the configuration") -> TrainConfig:
        """Read a tree back.

        Raises:
            UserError: not JSON, a value of the wrong type, or an unknown key (the close ones are named); in `source`.
        """
        try:
            tree = json.loads(text)
            groups = [group.name for group in fields(TrainConfig)]
            if not isinstance(tree, dict) or not all(isinstance(tree.get(group, {}), dict) for group in groups):
                raise UserError(f"{source} should be one JSON object, of one for each group of options")
            for group, name, value in RETIRED_OPTIONS:
                if tree.get(group, {}).get(name, ...) == value:
                    del tree[group][name]
            if isinstance(several := tree.get("run", {}).get("evaluators"), int):  # which shared a checkpoint's games
                tree["run"]["evaluators"] = min(1, several)
            return _converter.structure(tree, TrainConfig)
        except json.JSONDecodeError as error:
            raise UserError(f"{source} is not valid JSON: {error}") from error
        except cattrs.BaseValidationError as error:
            raise UserError(f"{source}: {_first_line(error)}") from error


def refuse_normalized_replay(config: TrainConfig) -> None:
    """Raise UserError where a new run would; one that was trained so before can be played and resumed."""
    _require(
        not config.environment.normalize_observations or config.algorithm.algorithm not in REPLAYING,
        f"normalize_observations is for what is learned from once: the replay of {config.algorithm.algorithm} would "
        "keep what earlier statistics, of several actors, have made of observations (--no-normalize-observations)",
    )


def has_own_code(config: TrainConfig) -> bool:
    """Whether the environment, the network or the loss is the user's own."""
    return ":" in config.environment.env_id + config.network.network + config.algorithm.algorithm


RETIRED_OPTIONS = (
    ("environment", "atari_backend", "ale"),
    ("exchange", "transport", "tcp"),
    ("exchange", "wire_dtype", "float32"),
    ("exchange", "when_workers_lost", "shrink"),
    *(("exchange", "sharding", sharding) for sharding in ("even_bytes", "greedy_by_tensor")),  # the same parameters
    *(("environment", f"dmlab_{name}", None) for name in ("level_cache", "dataset", "home")),
    *(("central", "inference_thread", thread) for thread in ("own", "shared")),  # shared: the same, but slower
)
"""(group, option, value): what older run folders say that is no option any more, with the values still meant."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def _first_line(error: Exception) -> str:
    """The innermost cause of a structuring error, in one line."""
    where: list[str] = []
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]  # type: ignore[attr-defined]
        where += [note.name for note in getattr(error, "__notes__", ()) if isinstance(note, AttributeValidationNote)]
    if isinstance(error, ForbiddenExtraKeysError):
        known = [f.name for f in fields(error.cl)]
        key = min(error.extra_fields)
        return f"unknown option {key!r} of {error.cl.__name__}; {did_you_mean(key, known)}"
    return "".join([".".join(where), ": " if where else "", str(error).splitlines()[0]])


_converter = make_converter(forbid_extra_keys=True)
_converter.register_unstructure_hook(Path, str)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item() if hasattr(value, "item") else value


def _bool(value: Any, _: Any) -> bool:
    """Not what is merely true, as "false" is."""
    if isinstance(value := _plain(value), bool):
        return value
    raise TypeError(f"{value!r} is neither true nor false")


def _int(value: Any, _: Any) -> int:
    """Also 4.0 and "4", but neither 4.7 nor True."""
    if isinstance(value := _plain(value), bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError(f"{value!r} is no whole number")
    return int(value)


def _str(value: Any, _: Any) -> str:
    """Not "None", which is nobody's name."""
    if value is None:
        raise TypeError("None is no text")
    return str(value)


def _path(value: Any, _: Any) -> Path:
    """Not "", as a variable that is not set: pathlib takes that for the current folder."""
    if not os.fspath(value):
        raise ValueError("an empty path")
    return Path(value)


_converter.register_structure_hook(bool, _bool)
_converter.register_structure_hook(str, _str)
_converter.register_structure_hook(Path, _path)
_converter.register_structure_hook(int, _int)


def option_names() -> dict[str, str]:
    """Each option's name → the group it lives in."""
    return {leaf.name: group for group, kind in get_type_hints(TrainConfig).items() for leaf in fields(kind)}


def short_names() -> dict[str, str]:
    """Each further name of an option → its own: lr → learning_rate."""
    leaves = (leaf for kind in get_type_hints(TrainConfig).values() for leaf in fields(kind))
    return {short.replace("-", "_"): leaf.name for leaf in leaves for short in leaf.metadata.get("short", ())}


_ALL_OPTIONS = "dba3c train --help-all lists them all"


def typed_options(options: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Options by the names of their fields, with values of their fields' types.

    Args:
        options: names may be short ones (`workers`), values what the type can be made of: 1e-3 for a schedule, a class
            for its name.
        others: names that the caller takes himself, to be named where one is mistyped.

    Raises:
        UserError: an option does not exist (the close ones are named), is given twice, or its value is of another type.
    """
    leaves = {leaf.name: (leaf, kind) for kind in get_type_hints(TrainConfig).values() for leaf in fields(kind)}
    names = short_names()
    typed: dict[str, Any] = {}
    for said, value in options.items():
        name = names.get(said, said)
        if name not in leaves:
            close = did_you_mean(said, [*leaves, *names, *others], _ALL_OPTIONS)
            raise UserError(f"unknown option {said!r}; {close}")
        if name in typed:
            raise UserError(f"{name} is given by two of its names")
        kind = get_type_hints(leaves[name][1])[name]
        value = (value,) if isinstance(value, str) and get_origin(kind) is tuple else value
        try:
            typed[name] = _converter.structure(name_of(value) if callable(value) else value, kind)
        except (CattrsError, cattrs.BaseValidationError, ValueError, TypeError, OverflowError) as error:
            words = " or ".join(get_args(kind)) if get_origin(kind) is Literal else ""
            wanted = words or (kind.__name__ if isinstance(kind, type) else kind)
            raise UserError(f"{said} must be {wanted}, not {value!r}") from error
    return typed


def refuse_unread(config: TrainConfig, given: Iterable[str]) -> None:
    """Raise UserError, one line, when a run with this configuration would not read an option whose name was ``given``.

    What nobody gave is not looked at: a preset may well set what another algorithm reads.
    """
    groups = [getattr(config, group.name) for group in fields(config)]
    values = {name: value for group in groups for name, value in vars(group).items()}
    options = [each for group in groups for each in fields(group) if each.name in given]
    values |= {"family": config.environment.family}
    if ":" in config.algorithm.algorithm:
        values["algorithm"] = OWN
    if refusal := refusal_of_unread(options, values):
        raise UserError(refusal)


def replace_options(config: TrainConfig, **options: Any) -> TrainConfig:
    """A copy with some leaf options changed, whichever group they live in.

    Raises:
        UserError: an option does not exist (the close ones are named) or its value is refused.
    """
    groups = option_names()
    changed: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        if name not in groups:
            raise UserError(f"unknown option {name!r}; {did_you_mean(name, groups, _ALL_OPTIONS)}")
        changed.setdefault(groups[name], {})[name] = value
    try:
        changed_groups = {g: replace(getattr(config, g), **values) for g, values in changed.items()}
    except ConfigError as error:
        raise UserError(str(error)) from error
    return replace(config, **changed_groups)
