"""The learner's side of the links: takes observations, answers them in batches, fills the unroll store.

    1. an actor joins: each of its groups begins an unroll, a former life's partial unrolls are dropped;
    2. a group's observation is received straight into its unroll and offered to the batch;
    3. when the batch is due, its stacks are rebuilt, the policy decides, and every group gets its actions;
    4. an actor leaves or breaks the rules: its groups are dropped, nobody waits.

A batch is due when it has reached its target size, or its oldest observation has waited for the timeout, or when
nobody is left who could still add to it: a dead actor makes batches smaller, a frozen one costs them the timeout at
most, and neither blocks anybody.

One thread owns all of this; it never blocks longer than it is told to.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dba3c.algorithms.policies import Asked, Policy
from dba3c.central.unrolls import GroupKey, GroupUnroll, UnrollStore, stack_states
from dba3c.central.wire import WHOLE, CentralKind, CentralRole
from dba3c.metrics.writer import Sections
from dba3c.networks import State, reset_state
from param_servers.errors import BadMessage
from param_servers.wire.frames import Event, Joined, Left, Message, Rejected
from param_servers.wire.handshake import Hello, Lives, Peer
from param_servers.wire.hub import Hub
from param_servers.wire.messages import HEADER_BYTES, Header, Kind, bytes_of

MOST_ACTORS = 4096
_LAST_WORDS_S = 2.0


class Batcher:
    """Observations by group.

    Args:
        target: environments that make a full batch.
        timeout_s: longest wait of an observation.
    """

    def __init__(self, target: int, timeout_s: float) -> None:
        self.target, self.timeout_s = target, timeout_s
        self._sizes: dict[GroupKey, int] = {}
        self._waiting: dict[GroupKey, float] = {}
        """Arrival of each unanswered observation, oldest first."""
        self.queued = 0
        """Environments that wait for an answer."""

    @property
    def environments(self) -> int:
        """Environments of all groups that have joined."""
        return sum(self._sizes.values())

    def join(self, key: GroupKey, size: int) -> None:
        """A group of ``size`` environments appeared; a second time it begins anew."""
        self.leave(key)
        self._sizes[key] = size

    def leave(self, key: GroupKey) -> None:
        """A group is gone, with what it had in the batch. Harmless when it never was there."""
        if self._waiting.pop(key, None) is not None:
            self.queued -= self._sizes[key]
        self._sizes.pop(key, None)

    def offer(self, key: GroupKey, now_s: float) -> None:
        """An observation of a joined group, which has none here, has come. Raises KeyError for a stranger."""
        self.queued += self._sizes[key]
        self._waiting[key] = now_s

    def waits(self, key: GroupKey) -> bool:
        """Whether the group's observation is unanswered."""
        return key in self._waiting

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until a batch is due even if nothing more arrives; None when nothing waits."""
        if not self._waiting:
            return None
        if self.queued >= self.target or len(self._waiting) == len(self._sizes):
            return 0.0
        oldest_s = next(iter(self._waiting.values()))
        return max(0.0, oldest_s + self.timeout_s - now_s)

    def take(self, now_s: float) -> dict[GroupKey, float]:
        """The due batch: groups and how long each waited, oldest first; empty when none is due."""
        if self.wait_s(now_s) != 0.0:
            return {}
        taken = {key: now_s - arrived_s for key, arrived_s in self._waiting.items()}
        self._waiting.clear()
        self.queued = 0
        return taken


class InferenceReport:
    """Latencies and batch sizes since the last ``take``, which another thread may ask for."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, float, list[float]]] = deque()

    def batch(self, size: int, environments: int, latencies_s: list[float]) -> None:
        """One batch of ``size`` of the ``environments`` here; each group's time from arrival to answer."""
        self._batches.append((size, size / max(environments, 1), latencies_s))

    def take(self) -> dict[str, float]:
        """Metrics by their names in the registry, {} when there was no batch."""
        batches = [self._batches.popleft() for _ in range(len(self._batches))]
        if not batches:
            return {}
        sizes, occupancies, latencies_s = zip(*batches, strict=True)
        p50, p99 = np.percentile(np.concatenate(latencies_s), (50, 99)) * 1000
        return {
            "inference_batch": float(np.mean(sizes)),
            "inference_occupancy": float(np.mean(occupancies)),
            "inference_latency_p50_ms": float(p50),
            "inference_latency_p99_ms": float(p99),
        }


@dataclass
class _Group:
    """One group of environments of an actor that is here."""

    state: State
    numbers: np.ndarray
    """Of its environments, in the whole run."""
    sequence: int = 0
    """The number that its next observation must bear."""


class InferenceService:
    """Answers the actors of one learner.

    Args:
        secret: the run's, which actors must prove to know.
        rank: of the learner.
        on_event: told (event, one line) of actors that come, leave or are turned away.
        silence_timeout_s: an actor's host that acknowledges no bytes for this long is gone.
        most_actors: only lower ranks are let in.
    """

    def __init__(
        self,
        secret: bytes,
        rank: int,
        policy: Policy,
        store: UnrollStore,
        batcher: Batcher,
        groups_per_actor: int,
        on_event: Callable[[str, str], None] = lambda event, line: None,
        silence_timeout_s: float = 60.0,
        most_actors: int = MOST_ACTORS,
    ) -> None:
        self.hub = Hub(secret, self._receive_into, shard=rank, admit=self._admits, silence_timeout_s=silence_timeout_s)
        self.policy, self.store, self.report = policy, store, InferenceReport()
        self._rank, self._batcher, self._groups_per_actor, self._on_event = rank, batcher, groups_per_actor, on_event
        self._lives = Lives()
        self._incarnations: dict[int, int] = {}
        """The newest incarnation of every actor that was ever here."""
        self.actors: set[int] = set()
        """Ranks of the actors that are here."""
        self._groups: dict[GroupKey, _Group] = {}
        self._batch = np.empty((0,), np.uint8)
        self._most_actors = most_actors

    def turn(self, patience_s: float, sections: Sections) -> None:
        """Answer the batch that is due, then move bytes, waiting for at most ``patience_s`` when there are none."""
        now_s = time.monotonic()
        if self._batcher.wait_s(now_s) == 0.0:
            with sections("inference"):
                self._answer(now_s)
        wait_s = self._batcher.wait_s(time.monotonic())
        with sections("waiting"):
            events = self.hub.poll(patience_s if wait_s is None else min(wait_s, patience_s))
        with sections("serving"):
            self._handle(events)

    def close(self, reason: str | None) -> None:
        """Tell every actor that the run is over and why; None only drops the links. Safe to call twice."""
        if reason is not None:
            stop, text = Header(Kind.STOP, self._rank), memoryview(bytes_of(reason))
            for actor in sorted(self.actors):
                self.hub.send(Peer(CentralRole.ACTOR, actor), stop, text)
            self.hub.drain(_LAST_WORDS_S, lambda peer: self.hub.send(peer, stop, text))
        self.actors.clear()
        self.hub.shut()

    # -- what arrives --------------------------------------------------------------------------------------------

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                try:
                    self._hear(event)
                except BadMessage as error:
                    self.hub.close(event.peer)
                    self._forget(event.peer.rank, str(error))
            elif isinstance(event, Joined):
                self._welcome(event.hello)
            elif isinstance(event, Left):
                self._forget(event.peer.rank, event.reason)
            elif isinstance(event, Rejected):
                self._on_event("rejected", event.reason)

    def _admits(self, hello: Hello) -> str:
        if hello.role is not CentralRole.ACTOR or hello.rank >= self._most_actors:
            return f"a learner answers actors 0 to {self._most_actors - 1}, not {hello.peer}"
        if hello.fingerprint != self.store.shape.fingerprint:
            return f"its environments are not this learner's, which have {self.store.shape}"
        return self._lives.admits(hello)

    def _keys(self, actor: int) -> list[GroupKey]:
        incarnation = self._incarnations.get(actor, 0)
        return [GroupKey(actor, incarnation, group) for group in range(self._groups_per_actor)]

    def _welcome(self, hello: Hello) -> None:
        self._incarnations[hello.rank] = hello.incarnation
        self.actors.add(hello.rank)
        size = self.store.shape.num_envs
        for key in self._keys(hello.rank):
            first = (key.actor * self._groups_per_actor + key.group) * size
            group = self._groups[key] = _Group(self.policy.initial_state(size), np.arange(first, first + size))
            self.store.begin(key, group.state)
            self._batcher.join(key, size)
        self.hub.expect(hello.peer, HEADER_BYTES + self.store.shape.fixed_bytes)  # one wake-up for a whole message
        self._on_event("joined", f"actor {hello.rank} (incarnation {hello.incarnation})")

    def _forget(self, actor: int, reason: str) -> None:
        self.actors.discard(actor)
        for key in self._keys(actor):
            self.store.drop(key)
            self._batcher.leave(key)
            self._groups.pop(key, None)
        self._on_event("left", f"actor {actor}: {reason}")

    def _receive_into(self, peer: Peer, header: Header) -> memoryview:
        """The next row of the group's unroll, or BadMessage: no memory is taken on an actor's word."""
        key = GroupKey(peer.rank, header.incarnation, header.term)
        group = self._groups.get(key)
        if header.kind != CentralKind.OBSERVATION or group is None:
            raise BadMessage(f"an unexpected {header.kind.name} of group {header.term}")
        self._check_turn(key, group, header)
        return self.store.of(key).place(header.length)

    def _check_turn(self, key: GroupKey, group: _Group, header: Header) -> None:
        if self._batcher.waits(key) or header.sequence != group.sequence:
            raise BadMessage(f"observation {header.sequence} out of turn, {group.sequence} is awaited")

    def _hear(self, message: Message) -> None:
        header = message.header
        if header.kind != CentralKind.OBSERVATION or header.length == 0:
            raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
        key = GroupKey(message.peer.rank, header.incarnation, header.term)
        group = self._groups.get(key)
        if group is None:
            return  # its actor broke the rules earlier in the same poll
        self._check_turn(key, group, header)  # again: the first of two in one poll was not yet heard then
        unroll = self.store.of(key)
        if group.state:
            first = torch.from_numpy(unroll.flags[unroll.time] & WHOLE != 0)
            group.state = reset_state(group.state, first)
        self.store.arrived(key, header.length, group.state)
        self._batcher.offer(key, time.monotonic())

    # -- what is answered ----------------------------------------------------------------------------------------

    def _answer(self, now_s: float) -> None:
        queued = self._batcher.queued
        waited_s = self._batcher.take(now_s)
        keys, size = list(waited_s), self.store.shape.num_envs
        unrolls, groups = [self.store.of(key) for key in keys], [self._groups[key] for key in keys]
        decision = self.policy.act(
            Asked(
                observation=self._observations(unrolls),
                state=stack_states([group.state for group in groups]),
                reward=np.concatenate([unroll.rewards[unroll.time] for unroll in unrolls]),
                environments=np.concatenate([group.numbers for group in groups]),
            )
        )
        for i, (key, unroll, group) in enumerate(zip(keys, unrolls, groups, strict=True)):
            part, at, version = slice(i * size, (i + 1) * size), unroll.time, self.policy.version
            group.state = tuple(whole[part] for whole in decision.state)
            unroll.answer(decision.actions[part], decision.log_probs[part], version)
            header = Header(CentralKind.ACTION, self._rank, 0, key.group, version, group.sequence)
            group.sequence += 1
            # the unroll keeps the actions' bytes as they are until long after they are sent
            self.hub.send(Peer(CentralRole.ACTOR, key.actor), header, unroll.actions[at].data.cast("B"))
        took_s = time.monotonic() - now_s
        self.report.batch(queued, self._batcher.environments, [wait_s + took_s for wait_s in waited_s.values()])

    def _observations(self, unrolls: list[GroupUnroll]) -> np.ndarray:
        """[N, ...] of their newest messages."""
        shape, size = self.store.shape, self.store.shape.num_envs
        if len(self._batch) < len(unrolls) * size:  # else the memory is used again
            self._batch = np.empty((len(unrolls) * size, *shape.observation_shape), shape.dtype)
        for i, unroll in enumerate(unrolls):
            unroll.observation_into(self._batch[i * size : (i + 1) * size])
        return self._batch[: len(unrolls) * size]
