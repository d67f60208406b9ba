"""The actor's whole life: say what the environments show, do what the learner answers. It holds nothing of the model.

Several groups of environments share one link and take turns: while one is stepped, another's observation is on its way
or being answered. A link that breaks is dialled again within a stated time, further apart each time and jittered; the
games go on where they stood, the learner begins new unrolls with them.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from dba3c.assembly.model import Spaces
from dba3c.assembly.statistics_keeper import StatisticsKeeper
from dba3c.central.wire import CentralKind, CentralRole, GroupShape, group_shape, pack_step
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import (
    EnvironmentFailed,
    Experience,
    Transition,
    VectorEnvironment,
    worker_seed,
)
from dba3c.metrics.writer import MetricsWriter, Sections
from dba3c.roles import RunProcess
from param_servers.errors import BadMessage, PeerLost, Refused, RunStopped
from param_servers.timeouts import AwakeClock, Redial
from param_servers.wire.frames import Event, Joined, Left, Message
from param_servers.wire.handshake import Hello, Peer, Role, new_process_token
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Header, Kind, text_of

Address = tuple[str, int]
Ends = tuple[np.ndarray, np.ndarray, np.ndarray]
OnSteps = Callable[[int, Transition, dict[str, float]], None]
_NAP_S = 0.2
_MOST_REASON_BYTES = 4096


def actor(process: RunProcess) -> str:
    """Step environments as a learner says."""
    config, central, exchange = process.config, process.config.central, process.config.exchange
    learner_rank = process.rank % exchange.num_workers
    metrics = MetricsWriter.of(process, "actor")
    vectors: list[VectorEnvironment] = []
    try:
        for index in range(central.actor_groups):
            group = process.rank * central.actor_groups + index
            seed = worker_seed(config.run.seed, group, process.incarnation)
            vectors.append(make_vector_environment(config.environment, central.envs_per_group, seed))
        keeper = StatisticsKeeper(process, "actor", vectors)
        shape = group_shape(config, Spaces(vectors[0].observation_space, vectors[0].action_space))
        try:
            groups = [ActorGroup(vector, shape) for vector in vectors]
        except EnvironmentFailed as failed:
            for line in failed.failures:
                metrics.record_event("environment_restarted", line)
            raise

        def stepped(version: int, transition: Transition, sections: dict[str, float]) -> None:
            keeper.at(version)
            for episode in transition.episodes:
                metrics.record_episode(version, episode)
            metrics.record_step(version, Experience.of(transition.frames)._asdict(), sections)

        address_of = process.address_until_the_end("learner")
        actor = Actor(
            rank=process.rank,
            incarnation=process.incarnation,
            learner=learner_rank,
            groups=groups,
            resolve=lambda: address_of(learner_rank),
            secret=process.secret,
            join_timeout_s=exchange.timeouts.actor_start_s,
            answer_timeout_s=exchange.timeouts.actor_answer_s,
            reconnect_timeout_s=exchange.timeouts.return_s,
            silence_timeout_s=exchange.timeouts.silence_s,
            on_failure=lambda line: metrics.record_event("environment_restarted", line),
            on_steps=stepped,
        )
        with closing(keeper):
            return actor.run()
    finally:
        for vector in vectors:
            vector.close()
        metrics.close()


class ActorGroup:
    """One group of environments: its newest step as a message, and the actions that answer it."""

    def __init__(self, environments: VectorEnvironment, shape: GroupShape) -> None:
        self.environments, self.shape = environments, shape
        size = environments.num_envs
        self.actions = np.zeros((size, *shape.action_shape), shape.action_dtype)
        self.sequence = 0
        self._observation = environments.reset()
        self._message = np.zeros(shape.most_bytes, np.uint8)
        self.begin_link()

    def step(self) -> Transition:
        """Do ``actions``."""
        transition = self.environments.step(self.actions)
        self._observation = transition.observation
        ends = (transition.terminated, transition.truncated, transition.valid)
        # only a new game's stack is not the last one shifted by one frame
        self._pack(transition.reward, ends, transition.first)
        self.sequence += 1
        return transition

    def begin_link(self) -> None:
        """The learner knows nothing of this group: the present observation is said whole, as the first of a link."""
        self.sequence = 0
        nothing = np.zeros(self.environments.num_envs, bool)
        self._pack(np.zeros(len(nothing), np.float32), (nothing, nothing, nothing), ~nothing)

    @property
    def message(self) -> memoryview:
        """The newest step, constant until the next one."""
        return self._message.data[: self._length]

    def _pack(self, reward: np.ndarray, ends: Ends, whole: np.ndarray) -> None:
        self._length = pack_step(self.shape, self._message, self._observation, reward, ends, whole)


class Actor:
    """Steps its groups of environments and asks the learner for their actions, until the run ends.

    Args:
        rank, incarnation: of this actor; an older incarnation is turned away.
        learner: the rank of the learner that is dialled.
        resolve: where the learner listens now, None while unknown; asked before every attempt. Raises RunStopped: the
            run was asked to end, and there is no learner to say so.
        join_timeout_s: longest wait for the learner at the start.
        answer_timeout_s: for an answer of a learner that is connected, which may itself be waiting for its servers.
        reconnect_timeout_s: for a learner that was lost.
        on_failure: told one line of each environment that broke.
        on_steps: told (newest version heard of, what a group's environments did, seconds by section) after each step.
            Here steps and games are counted, even where the learner never makes an unroll of them.
    """

    def __init__(
        self,
        *,
        rank: int,
        incarnation: int,
        learner: int,
        groups: list[ActorGroup],
        resolve: Callable[[], Address | None],
        secret: bytes,
        join_timeout_s: float,
        answer_timeout_s: float,
        reconnect_timeout_s: float,
        silence_timeout_s: float = 60.0,
        on_failure: Callable[[str], None] = lambda line: None,
        on_steps: OnSteps = lambda version, transition, sections: None,
    ) -> None:
        self._groups, self._resolve, self._on_failure, self._on_steps = groups, resolve, on_failure, on_steps
        self._answer_timeout_s, self._reconnect_timeout_s = answer_timeout_s, reconnect_timeout_s
        fingerprint, token = groups[0].shape.fingerprint, new_process_token()
        self._hello = Hello(CentralRole.ACTOR, rank, incarnation, learner, fingerprint, process_token=token)
        self._learner = Peer(Role.SERVER, learner)
        self._hub = Hub(secret, self._receive_into, silence_timeout_s=silence_timeout_s)
        self._redial = Redial(join_timeout_s, random.Random(f"{rank}:{incarnation}").getrandbits(32))
        self._now_s = AwakeClock(answer_timeout_s).now_s
        self._heard_s = self._now_s()
        self._reason = bytearray(_MOST_REASON_BYTES)
        self._sections = Sections()

    def run(self) -> str:
        """Act until the learner, or the run's folder without one, says that the run is over; the reason it gives.

        Raises:
            PeerLost: the learner could not be reached, or did not answer, within the stated time.
            Refused: the learner turned this actor away.
            EnvironmentFailed: an environment broke too often.
        """
        try:
            while True:
                self._keep_in_touch(self._now_s())
                with self._sections("waiting"):
                    events = deque(self._hub.poll(_NAP_S))
                while events:
                    stopped = self._handle(events.popleft())
                    if stopped is not None:
                        return stopped
                    events.extend(self._hub.poll(0.0))  # what was just said leaves before the next group is stepped
        except RunStopped as over:
            return over.reason
        finally:
            self._hub.shut()

    def _keep_in_touch(self, now_s: float) -> None:
        name = f"learner {self._hello.shard}"
        if self._hub.connected(self._learner):
            if now_s - self._heard_s > self._answer_timeout_s:
                raise PeerLost(f"{name} is connected but has not answered for {self._answer_timeout_s:.0f} s")
            return
        address = self._redial.attempt(self._resolve, now_s, f"this actor cannot reach {name}")
        if address is not None:
            self._hub.dial(address, self._hello)

    def _handle(self, event: Event) -> str | None:
        """Do what one event asks for; the reason when it ends the run."""
        if isinstance(event, Joined):
            self._heard_s = self._now_s()
            self._redial.succeeded(self._reconnect_timeout_s)
            for group in self._groups:
                group.begin_link()
            for index in range(len(self._groups)):
                self._say(index)
        elif isinstance(event, Left):
            self._redial.failed(event.reason, self._now_s())
            if event.refused:
                raise Refused(f"learner {self._hello.shard} turned this actor away: {event.reason}")
        elif isinstance(event, Message):
            self._heard_s = self._now_s()
            if event.header.kind == Kind.STOP:
                return text_of(event.payload)
            if event.header.sequence == self._groups[event.header.term].sequence:
                self._step(event.header)
        return None

    def _step(self, header: Header) -> None:
        group = self._groups[header.term]
        try:
            with self._sections("environment"):
                transition = group.step()
        except EnvironmentFailed as failed:
            self._tell(failed.failures)
            raise
        self._tell(transition.failures)
        self._say(header.term)
        self._on_steps(header.step, transition, self._sections.take())

    def _tell(self, failures: Sequence[str]) -> None:
        for line in failures:
            self._on_failure(line)

    def _say(self, index: int) -> None:
        group = self._groups[index]
        hello = self._hello
        header = Header(CentralKind.OBSERVATION, hello.rank, hello.incarnation, index, sequence=group.sequence)
        self._hub.send(self._learner, header, group.message)

    def _receive_into(self, peer: Peer, header: Header) -> memoryview:
        if header.kind == Kind.STOP and header.length <= _MOST_REASON_BYTES:
            return memoryview(self._reason)[: header.length]
        if header.kind != CentralKind.ACTION or header.term >= len(self._groups):
            raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
        actions = self._groups[header.term].actions.data.cast("B")
        if header.length != len(actions):
            raise BadMessage(f"actions of {header.length} bytes instead of {len(actions)}")
        return actions
