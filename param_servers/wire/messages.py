"""What is said on a link: a fixed header of 64 bytes, then `length` raw bytes. Nothing is pickled.

Who says what:

    worker -> shard     PULL        send me the newest parameters (to shard 0 only, which orders all shards to)
                        GRADIENT    my slice for `step`; `sequence` numbers this worker's pushes, alike on every shard
    shard -> worker     PARAMETERS  slice of version `step`; `sequence`, `code` answer this worker's last decided push
                        STEP        version `step` exists (header only, for a worker still busy with older ones)
                        RECEIPT     push `sequence` was rejected, `code` says why
                        SEALED      the PARAMETERS just streamed are committed (cut-through); ABORTED: they are void
                        EXPELLED    you are out, the payload says why; the link closes
                        STOP        the run is over, the payload says why; code FAILED when it broke
    shard i -> shard 0  ALIVE       I am here
                        ARRIVED     rows of slices now complete (code NONE) or rejected on this shard
                        READY       restored to (term, step)
                        WRITTEN     slice of checkpoint `step` is on disk; payload: JSON, an entry or an error
    shard 0 -> shard i  COMMIT      average exactly the rows marked MEMBER, apply, send to the rows marked RECIPIENT
                        GIVE        send the current version to these rows
                        EXPEL       forget what worker `sequence`, `incarnation` pushed, close its link; payload: why
                        CHECKPOINT  write the slice of version `step`
                        RESTORE     load version `step` (0 may mean the initial parameters) under a new term
                        ALIVE       the answer to one
                        STOP

`step` numbers a version within its term: the updates committed before it. `term` grows each time the servers roll back.
Whoever says other things than these adds kinds of its own to `KINDS`.
"""

import struct
from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import NamedTuple

from param_servers.errors import BadMessage

MAGIC = b"D3PS"
PROTOCOL_VERSION = 5
_HEADER = struct.Struct("<4sHBB4xIIIIqqQQ4x")
HEADER_BYTES = _HEADER.size
MOST_CONTROL_BYTES = 1 << 20
"""Of a frame that carries no tensor."""
MOST_RANK = (1 << 32) - 1
"""Of a sender, in 32 bits of a header."""
MOST_DATA_POINTS = 1 << 32
"""Of one gradient: a run's sum of them, signed 64 bit, has room for 2³¹ such."""
FIRST_FREE = 64
"""Kinds of frames and roles of peers from here on are not this package's."""
_ROW = struct.Struct("<IIII")
Version = tuple[int, int]
"""(term, step)"""


class Kind(IntEnum):
    """What a frame says; see the table above."""

    PULL = 1
    GRADIENT = 2
    PARAMETERS = 3
    STEP = 4
    RECEIPT = 5
    SEALED = 6
    ABORTED = 7
    EXPELLED = 8
    STOP = 9
    ARRIVED = 10
    READY = 11
    WRITTEN = 12
    COMMIT = 13
    GIVE = 14
    EXPEL = 15
    CHECKPOINT = 16
    RESTORE = 17
    ALIVE = 18


class Code(IntEnum):
    """The answer to a push, how a run ended, or (STREAMED) that PARAMETERS count only once SEALED comes."""

    NONE = 0
    ACCEPTED = 1
    STALE = 2
    NON_FINITE = 3
    FAILED = 4
    STREAMED = 5


REASONS = {Code.ACCEPTED: "", Code.STALE: "stale", Code.NON_FINITE: "non-finite"}


KINDS: dict[int, IntEnum] = {int(kind): kind for kind in Kind}
"""By number; another package adds its own, from `FIRST_FREE` to 255."""
_CODES = {int(code): code for code in Code}


class Header(NamedTuple):
    """The fixed part of a frame: unsigned 32 bit numbers, but signed 64 `step`, `data_points`, unsigned 64 `length`."""

    kind: IntEnum
    """A `Kind`, or a registered one."""
    sender: int = 0
    incarnation: int = 0
    term: int = 0
    step: int = 0
    sequence: int = 0
    data_points: int = 0
    code: Code = Code.NONE
    length: int = 0


class Row(NamedTuple):
    """One worker in a table: (worker, incarnation, sequence) names a push; `mark` is a Code or the bits below."""

    worker: int
    incarnation: int
    sequence: int
    mark: int = 0


MEMBER = 1
"""Bit of `Row.mark` in COMMIT: this push is averaged."""
RECIPIENT = 2
"""Bit of `Row.mark` in COMMIT: this worker is sent the parameters; in a majority's RESTORE: this rank takes over the
state. In GIVE `mark` is a `Code`."""


def pack_header(header: Header, length: int | None = None) -> bytes:
    """The `HEADER_BYTES` bytes of a header; `length`, if given, instead of its own."""
    kind, sender, incarnation, term, step, sequence, data_points, code, own_length = header
    length = own_length if length is None else length
    return _HEADER.pack(
        MAGIC, PROTOCOL_VERSION, kind, code, sender, incarnation, term, sequence, step, data_points, length, 0
    )


def unpack_header(data: bytes | bytearray | memoryview) -> Header:
    """Read a header.

    Raises:
        BadMessage: wrong size, magic, protocol version, or a kind or code that does not exist.
    """
    if len(data) != HEADER_BYTES:
        raise BadMessage(f"a header of {len(data)} bytes instead of {HEADER_BYTES}")
    magic, version, kind, code, sender, incarnation, term, sequence, step, data_points, length, zero = _HEADER.unpack(
        data
    )
    if magic != MAGIC:
        raise BadMessage(f"not a param_servers frame (it begins with {bytes(magic)!r})")
    if version != PROTOCOL_VERSION:
        raise BadMessage(f"protocol version {version}, this side speaks {PROTOCOL_VERSION}")
    if kind not in KINDS or code not in _CODES or zero:
        raise BadMessage(f"a header that no peer writes (kind {kind}, code {code})")
    return Header(KINDS[kind], sender, incarnation, term, step, sequence, data_points, _CODES[code], length)


def check_data_points(data_points: int) -> None:
    """Whether one gradient may bring so many.

    Raises:
        BadMessage: it may not; the sums that are sent on would be nonsense, or soon not fit into a header.
    """
    if not 0 <= data_points <= MOST_DATA_POINTS:
        raise BadMessage(f"a gradient over {data_points} data points")


def control_payload(header: Header, allowed: Collection[Kind]) -> memoryview:
    """A place for the payload of a short frame. Raises BadMessage where another kind, or so much, may not come."""
    if header.kind not in allowed or header.length > MOST_CONTROL_BYTES:
        raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
    return memoryview(bytearray(header.length))


def bytes_of(text: str) -> bytes:
    """What is said to a person, as `text_of` reads it; also where a file's name in it is no text."""
    return text.encode(errors="backslashreplace")


def text_of(payload: bytes | memoryview) -> str:
    """What a peer says to a person."""
    return bytes(payload).decode("utf-8", "replace")


def pack_rows(rows: Iterable[Row]) -> bytes:
    """A table of workers, 16 bytes a row."""
    return b"".join(_ROW.pack(*row) for row in rows)


def unpack_rows(data: bytes | bytearray | memoryview) -> list[Row]:
    """Read a table written by `pack_rows`.

    Raises:
        BadMessage: the length is not a whole number of rows.
    """
    if len(data) % _ROW.size:
        raise BadMessage(f"a table of {len(data)} bytes is not a whole number of rows of {_ROW.size}")
    return [Row(*fields) for fields in _ROW.iter_unpack(data)]
