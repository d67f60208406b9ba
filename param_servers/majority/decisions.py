"""What the majority's coordinator can decide; `Expel`, `Commit`, `Stop` and `Note` are those of `decisions`."""

from typing import NamedTuple

from param_servers.servers.decisions import Commit, Expel, Note, Stop


class LeaveGroup(NamedTuple):
    """All connected ranks leave their group of `generation`, if they are in one, and say how far they are."""

    generation: int


class FormGroup(NamedTuple):
    """The members form a group and take over the state of `source`, which is at (`step`, `data_points`)."""

    generation: int
    members: tuple[int, ...]
    """Ranks, ascending."""
    source: int
    step: int
    data_points: int


class Began(NamedTuple):
    """All members hold the same state: steps can be taken."""

    message: str


MajorityDecision = LeaveGroup | FormGroup | Began | Commit | Expel | Stop | Note
