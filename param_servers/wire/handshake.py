"""How two processes of one run prove to each other that they belong to it, before any frame is believed.

    dialer   -> listener  HELLO      who I am, whom I want, my layout, a nonce
    listener -> dialer    CHALLENGE  a nonce, HMAC-SHA256(secret, "listener" | HELLO | nonce)
    dialer   -> listener  PROOF      HMAC-SHA256(secret, "dialer" | HELLO | CHALLENGE)
    listener -> dialer    VERDICT    welcome, or one line why not

All four have a fixed size, so a stranger costs a bounded number of bytes; the hub bounds the time. Both machines here
are pure: bytes in, bytes out, no sockets and no clock.
"""

import hmac
import secrets
import struct
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from param_servers.errors import BadMessage, ConfigError, Refused
from param_servers.wire.messages import PROTOCOL_VERSION, text_of

_HELLO = struct.Struct("<4sHBxIIIIQ16s32s")
_CHALLENGE = struct.Struct("<4sHxxI32s32s")
_PROOF_BYTES = 32
_VERDICT = struct.Struct("<4sB3x248s")
HELLO_BYTES = _HELLO.size
_HELLO_MAGIC, _CHALLENGE_MAGIC, _VERDICT_MAGIC = b"D3HI", b"D3CH", b"D3OK"
LEAST_SECRET_BYTES = 16
MOST_TERM = (1 << 31) - 1
"""The newest term that a process may claim to have seen: servers go on from it, and must never reach 2³²."""
_MOST_INCARNATION = (1 << 32) - 1
_EPOCH_S = 1_735_689_600  # 2025 began
_newest_incarnation, _drawing = 0, threading.Lock()


def check_secret(secret: bytes) -> None:
    """Raises ConfigError when it is so short that it could be guessed."""
    if len(secret) < LEAST_SECRET_BYTES:
        raise ConfigError(f"a run's secret must have at least {LEAST_SECRET_BYTES} bytes, got {len(secret)}")


def incarnation_or_new(given: int | None) -> int:
    """`given`; else, for a process that nobody has numbered, quarters of a second since 2025: a later life's is higher.

    Within one process each call's is higher than the last. Two processes that began in the same quarter are told apart
    by their `Hello.process_token`. Raises ConfigError when no `Hello` has room for `given`.
    """
    global _newest_incarnation
    if given is None:
        with _drawing:
            _newest_incarnation = max(_newest_incarnation + 1, int(4 * (time.time() - _EPOCH_S)))
            return _newest_incarnation
    if not 0 <= given <= _MOST_INCARNATION:
        raise ConfigError(f"an incarnation is a number from 0 to {_MOST_INCARNATION}, got {given}")
    return given


def new_process_token() -> int:
    """A number that no other process has drawn."""
    return secrets.randbits(64)


class Role(IntEnum):
    """What a process is in the run. Whoever knows others adds them to `ROLES`."""

    WORKER = 1
    SERVER = 2


ROLES: dict[int, IntEnum] = {int(role): role for role in Role}


class Peer(NamedTuple):
    """Who is at the other end of a link."""

    role: IntEnum
    rank: int

    def __str__(self) -> str:
        return f"{self.role.name.lower()} {self.rank}"


class Hello(NamedTuple):
    """What a process says of itself when it dials."""

    role: IntEnum
    rank: int
    incarnation: int
    """Grows with each restart of this rank."""
    shard: int
    """The server that is wanted at the other end."""
    fingerprint: str
    """16 characters that are equal where the layout and the cut into shards are."""
    term: int = 0
    """The newest term this process has seen."""
    process_token: int = 0
    """`new_process_token` of this one: by it one that dials again is told from another of the same incarnation."""

    @property
    def peer(self) -> Peer:
        return Peer(self.role, self.rank)


class Lives:
    """Who has been here: a name (role, rank, incarnation) belongs to the process that first came with it."""

    def __init__(self) -> None:
        self._newest: dict[Peer, tuple[int, int]] = {}
        """(incarnation, process token)"""

    def admits(self, hello: Hello) -> str:
        """ "" or one line why this process may not join; one that may has its name from now on."""
        incarnation, token = self._newest.get(hello.peer, (hello.incarnation, hello.process_token))
        if hello.incarnation < incarnation:
            return f"a newer incarnation of {hello.peer} is here: {incarnation}; this is {hello.incarnation}"
        if hello.incarnation == incarnation and hello.process_token != token:
            return f"another process is or was {hello.peer}, incarnation {incarnation}: a new one needs a higher number"
        self._newest[hello.peer] = (hello.incarnation, hello.process_token)
        return ""


class Dialer:
    """The side that connects. `outgoing` is to be sent at once; then `feed` what arrives, `wants` bytes at a time."""

    def __init__(self, secret: bytes, hello: Hello) -> None:
        self._secret, self.hello = secret, hello
        self.outgoing = self._hello = pack_hello(hello, secrets.token_bytes(32))
        self.wants = _CHALLENGE.size
        self.peer = Peer(Role.SERVER, hello.shard)
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """Take exactly `wants` bytes; return what is to be sent.

        Raises:
            BadMessage: the other side is no param_servers server, of another version, or does not know the secret.
            Refused: it does, and turns this process away.
        """
        if self.wants == _CHALLENGE.size:
            magic, version, shard, nonce, proof = _CHALLENGE.unpack(data)
            if magic != _CHALLENGE_MAGIC:
                raise BadMessage("it is not a parameter server")
            if version != PROTOCOL_VERSION:
                raise BadMessage(f"it speaks protocol version {version}, this process {PROTOCOL_VERSION}")
            if not hmac.compare_digest(proof, _mac(self._secret, b"listener", self._hello, nonce)):
                raise BadMessage("it does not know this run's secret")
            if shard != self.hello.shard:
                raise BadMessage(f"it is server {shard}, but server {self.hello.shard} was wanted")
            self.wants = _VERDICT.size
            return _mac(self._secret, b"dialer", self._hello, data)
        magic, welcome, text = _VERDICT.unpack(data)
        if magic != _VERDICT_MAGIC:
            raise BadMessage("it broke off the handshake")
        if not welcome:
            raise Refused(text_of(text.rstrip(b"\0")))
        self.wants, self.done = 0, True
        return b""


class Listener:
    """The side that accepts. `admit(hello)` answers "" or one line why this peer may not join."""

    outgoing = b""

    def __init__(self, secret: bytes, shard: int, admit: Callable[[Hello], str]) -> None:
        self._secret, self._shard, self._admit = secret, shard, admit
        self._hello_bytes = self._challenge = b""
        self.wants = HELLO_BYTES
        self.hello: Hello | None = None
        self.refusal = ""
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """Take exactly `wants` bytes; return what is to be sent. After `done`, a non-empty `refusal` ends the link.

        Raises:
            BadMessage: not a peer of this run.
        """
        if self.hello is None:
            self.hello = unpack_hello(data)
            self._hello_bytes = data
            nonce = secrets.token_bytes(32)
            proof = _mac(self._secret, b"listener", data, nonce)
            self._challenge = _CHALLENGE.pack(_CHALLENGE_MAGIC, PROTOCOL_VERSION, self._shard, nonce, proof)
            self.wants = _PROOF_BYTES
            return self._challenge
        if not hmac.compare_digest(data, _mac(self._secret, b"dialer", self._hello_bytes, self._challenge)):
            raise BadMessage(f"whoever calls itself {self.hello.peer} does not know this run's secret")
        wanted = self.hello.shard
        self.refusal = self._admit(self.hello) if wanted == self._shard else f"this is {self._shard}, not {wanted}"
        self.wants, self.done = 0, True
        return _VERDICT.pack(_VERDICT_MAGIC, not self.refusal, self.refusal.encode()[:248])


def pack_hello(hello: Hello, nonce: bytes) -> bytes:
    """The bytes of HELLO."""
    fields = hello.role, hello.rank, hello.incarnation, hello.term, hello.shard, hello.process_token
    return _HELLO.pack(_HELLO_MAGIC, PROTOCOL_VERSION, *fields, hello.fingerprint.encode()[:16], nonce)


def unpack_hello(data: bytes) -> Hello:
    """Read HELLO.

    Raises:
        BadMessage: it is none, of another version, or says what no process of a run says.
    """
    magic, version, role, rank, incarnation, term, shard, token, fingerprint, _ = _HELLO.unpack(data)
    if magic != _HELLO_MAGIC:
        raise BadMessage("a stranger spoke (no handshake)")
    if version != PROTOCOL_VERSION:
        raise BadMessage(f"a peer speaks protocol version {version}, this server {PROTOCOL_VERSION}")
    if role not in ROLES:
        raise BadMessage(f"a peer claims the unknown role {role}")
    if term > MOST_TERM:
        raise BadMessage(f"a peer claims to have seen term {term}, which no run reaches")
    text = fingerprint.rstrip(b"\0").decode("ascii", "replace")
    if not text.isprintable():
        raise BadMessage(f"a peer has a layout that no run has, {text!r}")
    return Hello(ROLES[role], rank, incarnation, shard, text, term, token)


def _mac(secret: bytes, label: bytes, hello: bytes, rest: bytes) -> bytes:
    return hmac.digest(secret, label + hello + rest, "sha256")
