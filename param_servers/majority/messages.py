"""What ranks of a majority all-reduce and their chief say to each other, over the links of `hub`.

rank -> chief   ABORTED   I am in no group (or mine broke); `step`, `data_points`: how far I am
                READY     I am in the group of generation `term` and hold its state
                GRADIENT  my gradient of `step` over `data_points` is ready; `sequence` numbers my pushes. No payload
chief -> rank   ABORTED   leave your group and say how far you are
                RESTORE   form generation `term` at `step`; payload: `Formation`
                COMMIT    sum step `step` now; payload: the rows of its members; `data_points`: in the run, with it
                EXPELLED  you are out, the payload says why
                STOP      the run is over, the payload says why; code FAILED when it broke
                ALIVE     I am here (several times within the step timeout)
"""

import json
from typing import NamedTuple

from param_servers.errors import BadMessage
from param_servers.wire.handshake import Peer
from param_servers.wire.messages import Dtype, Header, Kind, check_data_points

MOST_BYTES = 1 << 20
_MOST_STEP = 1 << 62


class Formation(NamedTuple):
    """A group to be formed."""

    members: list[int]
    """Ranks, ascending."""
    source: int
    """The member whose state all take over."""
    store: tuple[str, int]
    """Where the key-value store listens."""


def pack_formation(formation: Formation) -> bytes:
    """JSON."""
    return json.dumps(formation._asdict()).encode()


def unpack_formation(data: bytes) -> Formation:
    """Read what `pack_formation` wrote.

    Raises:
        BadMessage: it is something else.
    """
    try:
        found = json.loads(data)
        members = [int(rank) for rank in found["members"]]
        host, port = found["store"]
        return Formation(members, int(found["source"]), (str(host), int(port)))
    except (ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"a formation that cannot be read ({type(error).__name__})") from error


def check_standing(header: Header) -> None:
    """Whether a rank can be where it says it is, or give what it says it gives.

    Raises:
        BadMessage: it cannot; the chief would hand on numbers that do not fit into a header.
    """
    if not (0 <= header.step <= _MOST_STEP and 0 <= header.data_points <= _MOST_STEP):
        raise BadMessage(f"it claims to be at step {header.step} with {header.data_points} data points")
    if header.kind == Kind.GRADIENT:
        check_data_points(header.data_points)


def no_payload(peer: Peer, header: Header) -> memoryview:
    """The chief's `receive_into`: ranks only send headers."""
    raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")


def small_payload(peer: Peer, header: Header) -> memoryview:
    """A rank's `receive_into`: orders of the chief."""
    allowed = (Kind.RESTORE, Kind.COMMIT, Kind.EXPELLED, Kind.STOP)
    if header.kind not in allowed or header.dtype != Dtype.BYTES or header.length > MOST_BYTES:
        raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
    return memoryview(bytearray(header.length))
