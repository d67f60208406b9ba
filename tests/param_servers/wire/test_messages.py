"""The decoder believes nothing that a peer would not write."""

from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from param_servers.errors import BadMessage
from param_servers.wire.messages import (
    HEADER_BYTES,
    KINDS,
    PROTOCOL_VERSION,
    Code,
    Header,
    Kind,
    Row,
    pack_header,
    pack_rows,
    unpack_header,
    unpack_rows,
)

unsigned = st.integers(0, 2**32 - 1)
headers = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    sender=unsigned,
    incarnation=unsigned,
    term=unsigned,
    step=st.integers(-(2**63), 2**63 - 1),
    sequence=unsigned,
    data_points=st.integers(0, 2**63 - 1),
    code=st.sampled_from(Code),
    length=st.integers(0, 2**64 - 1),
)


@given(headers)
def test_a_header_reads_back_as_written(header: Header) -> None:
    assert unpack_header(pack_header(header)) == header
    assert len(pack_header(header)) == HEADER_BYTES == 64


@given(st.binary(max_size=128))
def test_any_bytes_are_a_header_or_a_bad_message(data: bytes) -> None:
    try:
        header = unpack_header(data)
    except BadMessage:
        return
    assert pack_header(header) == data


@given(headers, st.integers(0, 63), st.integers(0, 255))
def test_a_header_with_one_byte_changed_is_read_or_refused(header: Header, where: int, value: int) -> None:
    data = bytearray(pack_header(header))
    data[where] = value
    try:
        unpack_header(data)
    except BadMessage as error:
        assert "\n" not in str(error)


def test_another_version_is_named() -> None:
    data = bytearray(pack_header(Header(Kind.PULL)))
    data[4] = PROTOCOL_VERSION + 1
    with pytest.raises(BadMessage, match=f"version {PROTOCOL_VERSION + 1}, this side speaks {PROTOCOL_VERSION}"):
        unpack_header(data)


@given(st.lists(st.builds(Row, unsigned, unsigned, unsigned, unsigned)))
def test_a_table_reads_back_as_written(rows: list[Row]) -> None:
    assert unpack_rows(pack_rows(rows)) == rows


def test_a_table_cut_off_in_a_row_is_refused() -> None:
    with pytest.raises(BadMessage, match="whole number of rows"):
        unpack_rows(pack_rows([Row(1, 2, 3)])[:-1])


class OtherKind(IntEnum):
    CHEER = 255


def test_another_package_s_kinds_are_read_once_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack_header(Header(OtherKind.CHEER))
    with pytest.raises(BadMessage, match="kind 255"):
        unpack_header(data)
    monkeypatch.setitem(KINDS, 255, OtherKind.CHEER)
    assert unpack_header(data).kind is OtherKind.CHEER
