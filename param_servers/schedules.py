"""Values that change as training goes on, written as short text.

    7e-4, constant:7e-4            always 7e-4
    linear:7e-4->0@20e6            a straight line from 7e-4 to 0 at 20 million data points, then constant
    piecewise:1e-3@0,5e-4@1e6      1e-3 from 0 data points on, 5e-4 from 1 million on

A data point is one agent step that entered an update. `parse_schedule(str(schedule)) == schedule`, exactly.
"""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from param_servers.errors import ConfigError

FORMS = "7e-4, constant:7e-4, linear:7e-4->0@20e6 or piecewise:1e-3@0,5e-4@1e6"
Point = tuple[float, float]  # (data points, value)


@dataclass(frozen=True)
class Schedule:
    """A value as a function of data points; make one with `parse_schedule`.

    `points` are (data points, value) with growing data points, the first at 0.
    """

    kind: Literal["constant", "linear", "piecewise"]
    points: tuple[Point, ...]

    def __call__(self, data_points: int | float) -> float:
        if self.kind == "linear":
            (_, start), (horizon, end) = self.points
            return end if data_points >= horizon else start + (end - start) * (data_points / horizon)
        return [value for since, value in self.points if since <= max(data_points, 0)][-1]

    def __str__(self) -> str:
        if self.kind == "constant":
            return f"constant:{_text(self.points[0][1])}"
        if self.kind == "linear":
            (_, start), (horizon, end) = self.points
            return f"linear:{_text(start)}->{_text(end)}@{_text(horizon)}"
        return "piecewise:" + ",".join(f"{_text(value)}@{_text(since)}" for since, value in self.points)


def parse_schedule(text: str | float) -> Schedule:
    """Parse one of the forms above; a number is a constant.

    Raises:
        ConfigError: text of another form, a value that is not finite, or data points that do not grow from 0.
    """
    kind, _, rest = str(text).strip().rpartition(":")
    if kind in ("", "constant"):
        return Schedule("constant", ((0.0, _number(rest, text)),))
    if kind == "linear":
        found = re.fullmatch(r"(.+)->(.+)@(.+)", rest)
        if found is None:
            raise _bad(text, "linear needs start->end@data_points")
        start, end, horizon = (_number(part, text) for part in found.groups())
        if horizon <= 0:
            raise _bad(text, "a linear schedule must end after 0 data points")
        return Schedule("linear", ((0.0, start), (horizon, end)))
    if kind == "piecewise":
        pieces = [piece.split("@") for piece in rest.split(",")]
        if any(len(piece) != 2 for piece in pieces):
            raise _bad(text, "each piece needs value@data_points")
        points = tuple((_number(since, text), _number(value, text)) for value, since in pieces)
        data_points = [since for since, _ in points]
        if data_points[0] != 0 or any(a >= b for a, b in pairwise(data_points)):
            raise _bad(text, "pieces must start at 0 data points and grow")
        return Schedule("piecewise", points)
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
