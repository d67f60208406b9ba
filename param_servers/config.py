"""Settings of the optimizer and of the exchange of gradients, and how an option is declared: once, as a field of a
configuration, whose metadata say its short names, its bounds and who reads it. Field names double as command-line
options.

A schedule is a setting that changes as training goes on, written as short text:

    7e-4, constant:7e-4            always 7e-4
    linear:7e-4->0@20e6            a straight line from 7e-4 to 0 at 20 million data points, then constant

A data point is one agent step that entered an update. `parse_schedule(str(schedule)) == schedule`, exactly.
"""

import math
import numbers
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from param_servers.errors import ConfigError
from param_servers.timeouts import LONGEST_S, Timeouts

BOUNDS = {
    "least": (operator.ge, "at least"),
    "above": (operator.gt, "greater than"),
    "most": (operator.le, "at most"),
    "below": (operator.lt, "less than"),
}
"""What an option declares as its bound: what holds between a value and that, and how it is said."""
KINDS: dict[type, tuple[type, str]] = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "text"),
}
"""What belongs into an option of each kind, NumPy's numbers too, and how that is said."""


def option(default: Any = MISSING, *, short: str = "", **said: Any) -> Any:
    """A dataclass field, as `field(default=default)`.

    Args:
        short: further names on the command line: ``option(1, short="workers learners")``.
        said: its `BOUNDS`: ``option(0.9, least=0, below=1)``, with ``below=math.inf`` where it must be finite; and with
            which values of other options somebody reads this one: ``option(None, exchange="async")``,
            ``option(40, algorithm="r2d2 sac")``, ``option(5, recorders="")`` of any but 0, False and None. All of
            several have to hold.
    """
    bounds = {name: said.pop(name) for name in BOUNDS if name in said}
    readers = {name: tuple(values.split()) for name, values in said.items()}
    return field(default=default, metadata={"short": tuple(short.split()), "read_by": readers, "bounds": bounds})


def check_options(config: Any, refusal: type[Exception] = ConfigError) -> None:
    """Raise `refusal` where an option is none of its type's words, no number or text where one belongs, or out of its
    bounds: NaN is out of any, None is where it is not the default. NumPy's numbers become Python's."""
    kinds = get_type_hints(type(config))
    for each in fields(config):
        value, kind, bounds = getattr(config, each.name), kinds[each.name], each.metadata.get("bounds", {})
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise refusal(f"{each.name} must be {' or '.join(get_args(kind))}, got {value!r}")
        for plain, (of, said) in KINDS.items():
            fits = isinstance(value, of) and not isinstance(value, bool)
            if kind in (plain, plain | None) and not fits and (value is not None or (kind is plain and not bounds)):
                raise refusal(f"{each.name} must be {said}, got {value!r}")
            if kind in (plain, plain | None) and fits and type(value) not in (int, float, str):
                object.__setattr__(config, each.name, value := plain(value))
        inside = (value is not None and BOUNDS[name][0](value, bound) for name, bound in bounds.items())
        if (value is not None or each.default is not None) and not all(inside):
            wanted = " and ".join(f"{BOUNDS[name][1]} {bound}" for name, bound in bounds.items())
            raise refusal(f"{each.name} must be {wanted}, got {value}")


def refusal_of_unread(options: Iterable[Field[Any]], values: Mapping[str, object]) -> str:
    """One line about those of these options that nobody reads, and whose they are; "" when all are read.

    Args:
        values: of the options that `read_by` speaks of; one that is not among them is not asked for.
    """
    unread: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for each in options:
        asked = {name: them for name, them in each.metadata.get("read_by", {}).items() if name in values}
        if any(values[name] not in them if them else not values[name] for name, them in asked.items()):
            readers = " and ".join(f"{name} {' or '.join(them)}".strip() for name, them in asked.items())
            unread.setdefault(readers, []).append(each.name)
            given[readers] = " and ".join(f"{name} is {values[name]}" for name in asked)
    for readers, names in unread.items():
        what = "an option" if len(names) == 1 else "options"
        return f"{', '.join(sorted(names))}: {what} of {readers} only, and this run's {given[readers]}"
    return ""


FORMS = "7e-4, constant:7e-4 or 'linear:7e-4->0@20e6' (quoted in a shell)"


@dataclass(frozen=True)
class Schedule:
    """A value as a function of data points: `end` from `horizon` on; make one with `parse_schedule`."""

    start: float
    end: float
    horizon: float = 0.0

    def __call__(self, data_points: int | float) -> float:
        after = data_points >= self.horizon
        return self.end if after else self.start + (self.end - self.start) * (data_points / self.horizon)

    def __str__(self) -> str:
        if not self.horizon:
            return f"constant:{_text(self.end)}"
        return f"linear:{_text(self.start)}->{_text(self.end)}@{_text(self.horizon)}"


def parse_schedule(text: str | float) -> Schedule:
    """Parse one of the forms above; a number is a constant.

    Raises:
        ConfigError: text of another form, a value that is not finite, or an end at no data points.
    """
    kind, _, rest = str(text).strip().rpartition(":")
    if kind in ("", "constant"):
        value = _number(rest, text)
        return Schedule(value, value)
    if kind == "linear":
        found = re.fullmatch(r"(.+)->(.+)@(.+)", rest)
        if found is None:
            raise _bad(text, "linear needs start->end@data_points")
        start, end, horizon = (_number(part, text) for part in found.groups())
        if horizon <= 0:
            raise _bad(text, "a linear schedule must end after 0 data points")
        return Schedule(start, end, horizon)
    raise _bad(text, f"unknown kind {kind!r}")


def _number(part: str, text: str | float) -> float:
    try:
        number = float(part)
    except ValueError:
        raise _bad(text, f"{part.strip()!r} is not a number") from None
    if not math.isfinite(number):
        raise _bad(text, f"{part.strip()} is not finite")
    return number


def _bad(text: str | float, why: str) -> ConfigError:
    return ConfigError(f"bad schedule {str(text)!r}: {why}; write {FORMS}")


def _text(number: float) -> str:
    """The shortest text that reads back as the same float, without a trailing '.0'."""
    return repr(number).removesuffix(".0")


OptimizerName = Literal["rmsprop", "adam", "sgd", "momentum", "adagrad", "adadelta"]
ClipRule = Literal["global", "average_per_tensor", "none"]
ExchangeName = Literal["local", "servers", "async", "allreduce", "majority"]
CollectiveBackend = Literal["torch", "horovod", "mpi"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How a mean gradient becomes an update, and how each worker clips its own gradient before it is sent."""

    optimizer: OptimizerName = "rmsprop"
    """Update rule, as in torch.optim; momentum is SGD with momentum."""

    learning_rate: str = option("7e-4", short="lr")
    """Schedule over data points: 7e-4 or linear:7e-4->0@20e6."""

    beta1: float = option(0.9, least=0, below=1, optimizer="adam")
    """adam: decay of the mean of gradients."""

    beta2: float = option(0.999, least=0, below=1, optimizer="adam")
    """adam: decay of the mean of squared gradients."""

    epsilon: float = option(1e-5, above=0, below=math.inf, optimizer="adam rmsprop adagrad adadelta")
    """adam, rmsprop, adagrad: added to the denominator; adadelta: added under both roots."""

    decay: float = option(0.99, least=0, below=1, optimizer="rmsprop adadelta")
    """rmsprop (alpha), adadelta (rho): decay of the mean of squared gradients."""

    momentum_coefficient: float = option(0.9, least=0, below=1, optimizer="momentum")
    """momentum: decay of the sum of gradients."""

    clip_rule: ClipRule = "global"
    """global: L2 norm of the whole gradient; average_per_tensor: each tensor's L2 norm / elements; none."""

    clip_norm: float = option(0.5, above=0, below=math.inf, clip_rule="global average_per_tensor")
    """Largest norm that the clip rule lets through; each worker clips its own gradient before it is averaged."""

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "learning_rate", str(parse_schedule(self.learning_rate)))
        if min(self.schedule.start, self.schedule.end) < 0:  # it would climb
            raise ConfigError(f"learning_rate must never be less than 0, got {self.learning_rate}")

    @property
    def schedule(self) -> Schedule:
        """The learning rate as a function of data points."""
        return parse_schedule(self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig:
    """How workers exchange gradients: which exchange, how many take part, what happens when some are lost."""

    exchange: ExchangeName = "local"
    """local: one worker, without servers; servers: sharded parameter servers; async: servers that apply each gradient
    on arrival; allreduce: every rank averages with every other; majority: all-reduce with backup workers."""

    collective_backend: CollectiveBackend = option("torch", exchange="allreduce")
    """allreduce: who carries the sum."""

    num_workers: int = option(1, least=1, short="workers learners")
    """Workers at the start of the run: num_gradients + num_backup_workers."""

    num_gradients: int | None = option(None, least=1, short="gradients")
    """g, gradients from distinct workers that make one update. None: all workers but the backup workers."""

    num_backup_workers: int | None = option(None, least=0, short="backup-workers")
    """b, workers whose gradient an update need not wait for. None: what num_gradients leaves over."""

    num_servers: int = option(1, least=1, short="servers", exchange="servers async")
    """servers, async: processes that hold one shard of the parameters each."""

    max_staleness: int | None = option(None, least=0, exchange="async")
    """async: steps by which a gradient may be late and still count. None: any."""

    step_timeout_s: float = option(60.0, above=0, most=LONGEST_S)
    """Longest wait for a step to end; then the missing workers are lost, and with fewer than
    min_workers left the run."""

    join_timeout_s: float = option(300.0, above=0, most=LONGEST_S)
    """Longest wait at the start for the others to appear."""

    reconnect_timeout_s: float = option(300.0, above=0, most=LONGEST_S)
    """servers, async: longest wait for a lost server; central inference: an actor's for its learner to come back."""

    checkpoint_timeout_s: float = option(120.0, above=0, most=LONGEST_S)
    """Longest wait for the disks: to load the checkpoint that is gone on from, and to write the last one."""

    min_workers: int = option(1, least=1, exchange="servers majority")
    """With fewer than num_gradients workers left a step averages fewer; with fewer than this many, at most
    num_gradients, the run stops with a checkpoint."""

    checkpoint_every_steps: int = option(1000, least=0)
    """Steps between checkpoints; 0: only at the end."""

    keep_checkpoints: int = option(5, least=1)
    """Newest checkpoints kept; older ones are deleted. With servers two at least."""

    interface: str | None = None
    """Network interface for tensors, e.g. eth0. None: found from listen_host."""

    listen_host: str = "127.0.0.1"
    """Address to listen on; the default lets no other machine in."""

    port: int = option(0, least=0, most=65535)
    """Port to listen on; 0: any free one."""

    def __post_init__(self) -> None:
        check_options(self)
        given = ("collective_backend", "max_staleness")
        changed = [each for each in fields(self) if each.name in given and getattr(self, each.name) != each.default]
        if refusal := refusal_of_unread(changed, vars(self)):  # a setting that would be ignored is a misunderstanding
            raise ConfigError(refusal)
        self._check_workers()

    @property
    def checkpoints_kept(self) -> int:
        """Where servers go back while a checkpoint is being published, they need the one before."""
        return max(2, self.keep_checkpoints) if self.has_servers else self.keep_checkpoints

    def _check_workers(self) -> None:
        if self.min_workers > max(1, self.gradients_per_step):
            raise ConfigError(
                f"min_workers is {self.min_workers}, but a step waits for no more workers than its gradients: "
                f"num_gradients is {self.gradients_per_step}"
            )
        if self.exchange == "local" and self.num_workers != 1:
            raise ConfigError(f"exchange local is one worker, but {self.num_workers} were given")
        if self.exchange == "async":
            if self.num_gradients not in (None, 1) or self.num_backup_workers:
                raise ConfigError("exchange async applies each gradient on arrival: num_gradients is 1, with no backup")
            return
        gradients, backup = self.gradients_per_step, self.backup_workers
        if gradients < 1 or backup < 0 or gradients + backup != self.num_workers:
            raise ConfigError(self._arithmetic())
        if self.exchange == "allreduce" and backup:
            raise ConfigError(
                f"exchange allreduce waits for all its workers, but {backup} of {self.num_workers} "
                "would be backup workers: choose exchange majority"
            )

    def _arithmetic(self) -> str:
        gradients, backup = self.num_gradients, self.num_backup_workers
        if gradients is None:
            return f"{backup} backup of {self.num_workers} workers leave no gradient for an update"
        if backup is None:
            return f"{gradients} gradients need {gradients} workers, but {self.num_workers} were given"
        return (
            f"{gradients} gradients + {backup} backup = {gradients + backup} workers, but {self.num_workers} were given"
        )

    @property
    def timeouts(self) -> Timeouts:
        """Who waits how long for whom."""
        return Timeouts(
            step_timeout_s=self.step_timeout_s,
            join_timeout_s=self.join_timeout_s,
            reconnect_timeout_s=self.reconnect_timeout_s,
            checkpoint_timeout_s=self.checkpoint_timeout_s,
            told_once=self.exchange == "allreduce" and self.collective_backend == "horovod",
        )

    @property
    def has_servers(self) -> bool:
        """Whether gradients go through parameter servers."""
        return self.exchange in ("servers", "async")

    def of_servers(self) -> "ExchangeConfig":
        """These settings where parameter servers are started by hand; `local`, the default, then means `servers`.

        Raises:
            ConfigError: another exchange was chosen, whose backup workers or sums would not be there.
        """
        if self.exchange == "local":
            return replace(self, exchange="servers")
        if not self.has_servers:
            raise ConfigError(f"parameter servers are of exchange servers or async, got {self.exchange}")
        return self

    @property
    def gradients_per_step(self) -> int:
        """g, resolved: what was given, else the workers that are not backup (async: 1)."""
        if self.exchange == "async":
            return 1
        return self.num_workers - (self.num_backup_workers or 0) if self.num_gradients is None else self.num_gradients

    @property
    def backup_workers(self) -> int:
        """b, resolved: what was given, else the workers beyond g (async: 0)."""
        if self.exchange == "async":
            return 0
        return (
            self.num_workers - self.gradients_per_step if self.num_backup_workers is None else self.num_backup_workers
        )
