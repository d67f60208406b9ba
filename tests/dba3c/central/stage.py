"""The inference service over real sockets, its actors driven step by step in the same thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dba3c.algorithms.policies import Asked, Decision
from dba3c.central.service import Batcher, InferenceService
from dba3c.central.unrolls import GroupKey, UnrollStore
from dba3c.central.wire import CentralKind, CentralRole, GroupShape, pack_step
from dba3c.metrics.writer import Sections
from param_servers.wire.frames import Joined, Left, Message
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Header, Kind

SHAPE = GroupShape(2, 1, (1,), "float32", (), "int64")
SECRET = b"0123456789abcdef"
PATIENCE_S = 20.0
B = SHAPE.num_envs


class CountingPolicy:
    """Answers the observation's number; its state counts the steps of an episode."""

    version = 3

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def initial_state(self, num_envs: int) -> tuple[Tensor, ...]:
        return (torch.zeros(num_envs, 1),)

    def load(self, parameters: Tensor, version: int) -> None: ...

    def act(self, asked: Asked) -> Decision:
        self.asked.append(asked)
        actions = asked.observation[:, 0].astype(np.int64)
        return Decision(actions, -actions.astype(np.float32), (asked.state[0] + 1,))


class ScriptedActor:
    """Says what it is told to say."""

    def __init__(self, port: int, rank: int, incarnation: int = 0, secret: bytes = SECRET) -> None:
        self.hub = Hub(secret, self.receive_into)
        self.rank, self.incarnation = rank, incarnation
        self.events: list[object] = []
        self.answers: list[tuple[int, int, list[int]]] = []
        self.buffers: dict[int, np.ndarray] = {}
        self.hub.dial(("127.0.0.1", port), Hello(CentralRole.ACTOR, rank, incarnation, 0, SHAPE.fingerprint))

    def receive_into(self, peer: Peer, header: Header) -> memoryview:
        if header.kind == Kind.STOP:
            return memoryview(bytearray(header.length))
        return self.buffers.setdefault(header.term, np.zeros(B, np.int64)).data.cast("B")

    def say(
        self,
        group: int,
        sequence: int,
        value: float,
        *,
        first: bool = False,
        extra: bytes = b"",
    ) -> None:
        row, nothing = np.zeros(SHAPE.most_bytes, np.uint8), np.zeros(B, bool)
        observation, ends = np.full((B, 1), value, np.float32), (nothing, nothing, np.full(B, not first))
        length = pack_step(SHAPE, row, observation, np.zeros(B, np.float32), ends, np.full(B, first))
        payload = memoryview(row[:length].tobytes() + extra)
        self.hub.send(
            Peer(Role.SERVER, 0),
            Header(CentralKind.OBSERVATION, self.rank, self.incarnation, group, sequence=sequence),
            payload,
        )

    def poll(self) -> None:
        for event in self.hub.poll(0.0):
            self.events.append(event)
            if isinstance(event, Message) and event.header.kind == CentralKind.ACTION:
                actions = self.buffers[event.header.term].tolist()
                self.answers.append((event.header.term, event.header.sequence, actions))

    @property
    def joined(self) -> bool:
        return any(isinstance(event, Joined) for event in self.events)

    @property
    def left(self) -> list[Left]:
        return [event for event in self.events if isinstance(event, Left)]


class Stage:
    """A service and its actors."""

    def __init__(self, target: int, timeout_s: float) -> None:
        self.policy, self.events = CountingPolicy(), []
        self.batcher: Batcher[GroupKey] = Batcher(target, timeout_s)
        self.service = InferenceService(
            SECRET,
            0,
            self.policy,
            UnrollStore(SHAPE, 3),
            self.batcher,
            2,
            lambda e, line: self.events.append((e, line)),
        )
        self.port = self.service.hub.listen("127.0.0.1")[1]
        self.actors: list[ScriptedActor] = []

    def actor(self, rank: int, incarnation: int = 0, secret: bytes = SECRET) -> ScriptedActor:
        actor = ScriptedActor(self.port, rank, incarnation, secret)
        self.actors.append(actor)
        self.until(lambda: actor.joined or bool(actor.left))
        return actor

    def kill(self, actor: ScriptedActor) -> None:
        """Its process is gone; the service has not looked yet."""
        self.actors.remove(actor)
        actor.hub.shut()

    def until(self, happened: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s; events: {self.events}"
            self.service.turn(0.001, Sections())
            for actor in self.actors:
                actor.poll()
