"""The one object in which the ways of training differ.

    while True:                                     # until RunStopped
        parameters, step, _ = exchange.pull()
        gradient = ...                              # computed on exactly these parameters
        receipt = exchange.push(gradient, step, data_points)

Sharded servers, all-reduce and the exchange of a single process all implement `GradientExchange`, so a worker's loop is
written once.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from param_servers.errors import HAS_DIVERGED, ConfigError, Diverged, ParamServersError
from param_servers.errors import RunStopped as RunStopped

Resolve = Callable[[int], tuple[str, int] | None]
"""Server number, or rank -> where it listens, or None while that is not known. Asked again before every attempt."""
Publish = Callable[[str, int], None]
"""Makes (host, port) known, where this process listens."""
ShouldStop = Callable[[int, int], str | None]
"""(step, data points) -> why the run should end now, or None."""
OnEvent = Callable[[dict[str, Any]], None]
"""Hears {"event", "message"}, and "step" where it is of one; the message is one line for a person."""
OnReport = Callable[[dict[str, Any]], None]
"""Hears figures, about once a second."""


def never(step: int, data_points: int) -> str | None:
    """A ShouldStop that lets the run go on."""
    return None


def whole(value: Any, name: str = "data_points") -> int:
    """As a plain number: NumPy's and a tensor's are whole, too, but neither JSON nor a frame's header takes them.

    Raises:
        ConfigError: it is no whole number, or less than none.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(f"{name} must be a whole number from 0 on, got {value!r}")
    return number


def unread(figures: dict[str, Any]) -> None:
    """An OnEvent or OnReport to which nobody listens."""


class Pull(NamedTuple):
    """The newest committed parameters."""

    parameters: Tensor
    """[P] float32, the exchange's own buffer: read only, valid and constant until the next `pull`."""
    step: int
    """Number of updates committed before these parameters."""
    data_points: int
    """Data points that entered those updates, in the whole run."""


class Receipt(NamedTuple):
    """The answer to one push."""

    accepted: bool
    """True when the gradient entered the update of its step."""
    step: int
    """The newest step known when the answer was given."""
    reason: str = ""
    """"" when accepted; else "stale", "non-finite" (or an element beyond ±1e18) or "wrong-length"."""
    norms: tuple[float, float] | None = None
    """The gradient's L2 norm as it was offered and as it was clipped, where this process clips it."""


class GradientExchange(Protocol):
    """Pull parameters, push gradients. One caller, one thread; every wait is bounded."""

    def pull(self) -> Pull:
        """Wait for the newest committed parameters. Asynchronous servers tell a worker of newer ones with the answer to
        its push alone: who pushes nothing is given the same again.

        Raises:
            RunStopped: the run has ended as asked.
            ParamServersError: it broke; the message names who is missing.
        """
        ...

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """Offer a gradient and wait for the answer.

        Args:
            gradient: [P] float32, contiguous; the caller may reuse it when this returns.
            step: the step of the `Pull` it was computed on.
            data_points: agent steps (samples) that this gradient brings into an update for the first time, a whole
                number from 0 on; schedules and `should_stop` go by their sum. Fewer than it averages over where steps
                are used again (0 in a later epoch of PPO). At most 2³² with servers or a majority, 2²⁴ − 1 in an
                all-reduce.

        Raises: as `pull`; ConfigError: `data_points` is no whole number from 0 on, before anything has changed;
            ParamServersError: it is above that bound.
        """
        ...

    def close(self) -> None:
        """Leave the run. Safe to call twice.

        Raises:
            LastStepsLost: of a run in this process alone that nobody asked to stop, the last steps cannot be saved.
        """
        ...


MOST_REJECTED = 100
"""Gradients in a row that were not finite; the next one would not be, either."""


def check_rejected(in_a_row: int, step: int, error: type[ParamServersError] = Diverged) -> None:
    """Raise `error` when no gradient has been finite for too long; `step`: of the newest."""
    if in_a_row >= MOST_REJECTED:
        raise error(f"none of the last {in_a_row} gradients was finite, the newest of step {step}: {HAS_DIVERGED}")
