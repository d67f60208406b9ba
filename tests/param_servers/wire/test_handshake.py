"""Both sides prove the secret before either believes a frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from param_servers.errors import BadMessage, ConfigError, Refused
from param_servers.wire.handshake import (
    HELLO_BYTES,
    Dialer,
    Hello,
    Listener,
    Role,
    _mac,
    incarnation_or_new,
    pack_hello,
    unpack_hello,
)
from param_servers.wire.hub import Hub

SECRET = b"s" * 32
HELLO = Hello(Role.WORKER, 3, 1, shard=2, fingerprint="0123456789abcdef", term=7)


def shake(dialer: Dialer, listener: Listener) -> None:
    """Carry bytes between the two until both are done."""
    data = listener.feed(dialer.outgoing)
    data = dialer.feed(data)
    dialer.feed(listener.feed(data))


def test_two_of_one_run_find_each_other() -> None:
    dialer, listener = Dialer(SECRET, HELLO), Listener(SECRET, 2, lambda hello: "")
    shake(dialer, listener)
    assert dialer.done and listener.done and listener.hello == HELLO


def test_a_dialer_without_the_secret_is_turned_away() -> None:
    dialer, listener = Dialer(b"guess" * 8, HELLO), Listener(SECRET, 2, lambda hello: "")
    with pytest.raises(BadMessage, match="does not know this run's secret"):
        shake(dialer, listener)
    listener = Listener(SECRET, 2, lambda hello: "")
    listener.feed(dialer.outgoing)
    with pytest.raises(BadMessage, match="worker 3 does not know"):
        listener.feed(bytes(32))


def test_a_proof_cannot_be_used_again() -> None:
    dialer, listener = Dialer(SECRET, HELLO), Listener(SECRET, 2, lambda hello: "")
    proof = dialer.feed(listener.feed(dialer.outgoing))
    later = Listener(SECRET, 2, lambda hello: "")
    later.feed(dialer.outgoing)
    with pytest.raises(BadMessage):
        later.feed(proof)


def test_a_challenge_sent_back_is_no_proof() -> None:
    listener = Listener(SECRET, 2, lambda hello: "")
    challenge = listener.feed(pack_hello(HELLO, bytes(32)))
    with pytest.raises(BadMessage):
        listener.feed(challenge[-32:])


def test_a_refusal_is_told_in_one_line() -> None:
    dialer, listener = Dialer(SECRET, HELLO), Listener(SECRET, 2, lambda hello: "an older incarnation " + "x" * 500)
    with pytest.raises(Refused, match="an older incarnation x"):
        shake(dialer, listener)
    assert listener.refusal


def test_the_wrong_server_is_noticed() -> None:
    with pytest.raises(BadMessage, match="server 1, but server 2 was wanted"):
        shake(Dialer(SECRET, HELLO), Listener(SECRET, 1, lambda hello: ""))


def test_another_version_is_named_on_both_sides() -> None:
    data = bytearray(pack_hello(HELLO, bytes(32)))
    data[4] = 9
    with pytest.raises(BadMessage, match="protocol version 9"):
        unpack_hello(bytes(data))
    challenge = bytearray(Listener(SECRET, 2, lambda hello: "").feed(pack_hello(HELLO, bytes(32))))
    challenge[4] = 9
    with pytest.raises(BadMessage, match="protocol version 9"):
        Dialer(SECRET, HELLO).feed(bytes(challenge))


@given(st.integers(0, HELLO_BYTES - 1), st.integers(1, 255))
def test_a_hello_with_any_byte_changed_lets_nobody_in(where: int, bits: int) -> None:
    dialer, listener = Dialer(SECRET, HELLO), Listener(SECRET, 2, lambda hello: "")
    data = bytearray(dialer.outgoing)
    data[where] ^= bits
    with pytest.raises(BadMessage):
        challenge = listener.feed(bytes(data))
        listener.feed(_mac(SECRET, b"dialer", dialer.outgoing, challenge))  # of a dialer that does not look


@given(st.integers(0, Dialer(SECRET, HELLO).wants - 1), st.integers(1, 255))
def test_a_challenge_with_any_byte_changed_lets_nobody_in(where: int, bits: int) -> None:
    dialer, listener = Dialer(SECRET, HELLO), Listener(SECRET, 2, lambda hello: "")
    data = bytearray(listener.feed(dialer.outgoing))
    data[where] ^= bits
    with pytest.raises(BadMessage):
        listener.feed(dialer.feed(bytes(data)))


@pytest.mark.parametrize("secret", [b"", b"x" * 15])
def test_no_link_is_made_with_a_secret_that_could_be_guessed(secret: bytes) -> None:
    with pytest.raises(ConfigError, match=f"at least 16 bytes, got {len(secret)}"):
        Hub(secret, lambda peer, header: memoryview(b""))


@pytest.mark.parametrize("given", [-1, 1 << 32])
def test_an_incarnation_that_no_hello_has_room_for_is_refused(given: int) -> None:
    with pytest.raises(ConfigError, match=f"^an incarnation is a number from 0 to 4294967295, got {given}$"):
        incarnation_or_new(given)


def test_who_is_not_numbered_is_newer_each_time() -> None:
    assert incarnation_or_new(7) == 7
    assert incarnation_or_new(None) < incarnation_or_new(None) < 1 << 32
