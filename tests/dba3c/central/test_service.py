"""The inference service over real sockets: what it answers, whom it turns away; and when a batch is due."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import build_model, spaces_of
from dba3c.central.learner import build_serving
from dba3c.central.service import Batcher
from dba3c.central.unrolls import observations_of
from dba3c.central.wire import CentralRole
from dba3c.central_config import CentralConfig
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.metrics.writer import Sections
from param_servers.config import ExchangeConfig
from param_servers.wire.frames import Event, Joined, Message
from param_servers.wire.handshake import Hello, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Kind
from tests.dba3c.central.stage import PATIENCE_S, SECRET, SHAPE, B, Stage


def test_an_observation_is_answered_under_its_own_number(stage: Callable[..., Stage]) -> None:
    on = stage()
    actor = on.actor(0)
    actor.say(group=1, sequence=0, value=5.0)
    on.until(lambda: actor.answers == [(1, 0, [5, 5])])


def test_groups_of_several_actors_share_a_batch(stage: Callable[..., Stage]) -> None:
    on = stage(target=2 * B)
    first, second = on.actor(0), on.actor(1)
    first.say(0, 0, 1.0)
    second.say(1, 0, 2.0)
    on.until(lambda: bool(first.answers and second.answers))
    assert len(on.policy.asked) == 1
    assert sorted(on.policy.asked[0].environments.tolist()) == [0, 1, 6, 7]


def test_a_dead_actor_costs_no_more_than_the_timeout(stage: Callable[..., Stage]) -> None:
    on = stage(target=100, timeout_s=0.05)
    actor, _ = on.actor(0), on.actor(1)  # actor 1 never says a word
    actor.say(0, 0, 1.0)
    on.until(lambda: bool(actor.answers))


def test_an_actor_restarted_inside_a_pending_batch_begins_anew(stage: Callable[..., Stage]) -> None:
    on = stage(target=2 * B)
    first, other = on.actor(0), on.actor(1)
    first.say(0, 0, 1.0)
    on.until(lambda: on.batcher.queued == B)
    again = on.actor(0, incarnation=1)  # the first one's link still stands
    on.until(lambda: bool(first.left))
    assert on.batcher.queued == 0
    again.say(0, 0, 7.0)
    other.say(0, 0, 8.0)
    on.until(lambda: again.answers == [(0, 0, [7, 7])] and other.answers == [(0, 0, [8, 8])])
    assert first.answers == []


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Hello(CentralRole.ACTOR, 0, 0, 0, "another's prints"), "its environments are not this learner's"),
        (Hello(Role.WORKER, 0, 0, 0, SHAPE.fingerprint), "a learner answers actors"),
        (Hello(CentralRole.ACTOR, 99999, 0, 0, SHAPE.fingerprint), "a learner answers actors"),
    ],
)
def test_whoever_is_no_actor_of_this_learner_is_told_so(stage: Callable[..., Stage], hello: Hello, why: str) -> None:
    on, hub, events = stage(), Hub(SECRET, lambda peer, header: memoryview(b"")), []
    hub.dial(("127.0.0.1", on.port), hello)
    on.until(lambda: bool(events.extend(hub.poll(0.0)) or events))
    hub.shut()
    assert events[0].refused
    assert why in events[0].reason


@pytest.mark.parametrize(("algorithm", "welcome"), [("r2d2", False), ("vtrace", True)])
def test_only_who_keeps_a_replay_turns_away_actors_that_were_not_announced(algorithm: str, welcome: bool) -> None:
    central = CentralConfig(mode="central", actors=1, envs_per_actor=4, unroll_length=80)
    config = TrainConfig(
        environment=EnvironmentConfig(env_id="CartPole-v1"),
        network=NetworkConfig(network="mlp"),
        algorithm=AlgorithmConfig(algorithm=algorithm),
        exchange=ExchangeConfig(exchange="local"),
        central=central,
    )
    process: Any = SimpleNamespace(config=config, secret=SECRET, rank=0)
    metrics: Any = SimpleNamespace(record_event=lambda event, line: None)
    spaces = spaces_of(config)
    service = build_serving(process, build_model(config, spaces).network, spaces, 0, 1, metrics).service
    hub, events = Hub(SECRET, lambda peer, header: memoryview(b"")), list[Event]()
    second = Hello(CentralRole.ACTOR, 1, 0, 0, service.store.shape.fingerprint)
    hub.dial(service.hub.listen("127.0.0.1"), second)
    deadline_s = time.monotonic() + PATIENCE_S
    while not events and time.monotonic() < deadline_s:
        service.turn(0.001, Sections())
        events += hub.poll(0.0)
    hub.shut()
    service.close(None)
    (event,) = events
    assert isinstance(event, Joined) if welcome else "a learner answers actors 0 to 0" in event.reason


def test_a_strangers_garbage_is_turned_away_and_nobody_is_harmed(stage: Callable[..., Stage]) -> None:
    on = stage()
    actor = on.actor(0)
    with socket.create_connection(("127.0.0.1", on.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        on.until(lambda: any(event == "rejected" for event, _ in on.events))
    actor.say(0, 0, 4.0)
    on.until(lambda: actor.answers == [(0, 0, [4, 4])])


def test_whoever_does_not_know_the_secret_is_turned_away(stage: Callable[..., Stage]) -> None:
    on = stage()
    stranger = on.actor(0, secret=b"another secret, just as long")
    assert stranger.left and not stranger.joined
    assert on.service.actors == set()


def test_an_oversized_observation_ends_its_actors_link_and_nobody_elses(stage: Callable[..., Stage]) -> None:
    on = stage()
    big, good = on.actor(0), on.actor(1)
    big.say(0, 0, 1.0, extra=bytes(10_000_000))
    on.until(lambda: bool(big.left))
    assert ("left", "actor 0: an observation of 10000020 bytes, which should have 20") in on.events
    good.say(0, 0, 2.0)
    on.until(lambda: bool(good.answers))
    assert on.service.actors == {1}


def test_an_observation_that_is_malformed_inside_ends_its_actors_link(stage: Callable[..., Stage]) -> None:
    on = stage()
    bad, good = on.actor(0), on.actor(1)
    bad.say(0, 0, 1.0, extra=b"12345")  # no whole row
    on.until(lambda: bool(bad.left))
    good.say(0, 0, 2.0)
    on.until(lambda: bool(good.answers))


def test_a_second_observation_before_the_answer_ends_the_link(stage: Callable[..., Stage]) -> None:
    on = stage(target=100)
    on.actor(1)
    hasty = on.actor(0)
    hasty.say(0, 0, 1.0)
    hasty.say(0, 1, 1.0)
    on.until(lambda: bool(hasty.left))
    assert on.batcher.queued == 0


def test_an_observation_that_is_said_twice_at_once_ends_its_actors_link_and_nobody_elses(
    stage: Callable[..., Stage],
) -> None:
    on = stage(target=2 * B)
    hasty, good = on.actor(0), on.actor(1)
    hasty.say(0, 0, 1.0)
    hasty.say(0, 0, 1.0)  # both are here when the service looks
    on.until(lambda: bool(hasty.left))
    assert ("left", "actor 0: observation 0 out of turn, 0 is awaited") in on.events
    good.say(0, 0, 2.0)
    good.say(1, 0, 3.0)
    on.until(lambda: len(good.answers) == 2)


def test_memory_is_fresh_after_a_reset_and_kept_otherwise(stage: Callable[..., Stage]) -> None:
    on = stage()
    actor = on.actor(0)
    for sequence, first in enumerate([True, False, False, True, False]):
        actor.say(0, sequence, 1.0, first=first)
        on.until(lambda sequence=sequence: len(actor.answers) == sequence + 1)
    assert [int(asked.state[0][0, 0]) for asked in on.policy.asked] == [0, 1, 2, 0, 1]


def test_every_step_records_the_version_that_acted(stage: Callable[..., Stage]) -> None:
    on = stage()
    actor = on.actor(0)
    for sequence in range(4):
        on.policy.version = 10 + sequence
        actor.say(0, sequence, float(sequence))
        on.until(lambda sequence=sequence: len(actor.answers) == sequence + 1)
    (unroll,) = on.service.store.take(1)
    assert unroll.versions.tolist() == [10, 11, 12]
    assert unroll.log_probs[:, 0].tolist() == [0, -1, -2]
    assert observations_of([unroll])[:, 0, 0].tolist() == [0, 1, 2, 3]


def test_the_end_of_the_run_is_told_to_every_actor(stage: Callable[..., Stage]) -> None:
    on = stage()
    actors = [on.actor(0), on.actor(1)]
    on.service.close("score reached, says caf\udce9")  # a file's name that is no text
    for actor in actors:
        deadline_s = time.monotonic() + PATIENCE_S
        while not any(isinstance(e, Message) and e.header.kind == Kind.STOP for e in actor.events):
            assert time.monotonic() < deadline_s
            actor.poll()


def batcher(target: int = 8, timeout_s: float = 0.010, groups: str = "abcd") -> Batcher[str]:
    made: Batcher[str] = Batcher(target, timeout_s)
    for group in groups:
        made.join(group, 4)
    return made


def test_a_batch_is_due_at_its_target_size() -> None:
    made = batcher(target=8)
    made.offer("a", 0.001)
    assert made.take(0.002) == {}
    made.offer("c", 0.003)
    assert list(made.take(0.003)) == ["a", "c"]
    assert made.queued == 0


def test_a_batch_is_due_when_its_oldest_observation_has_waited_for_the_timeout() -> None:
    made = batcher(target=16)
    made.offer("b", 0.005)
    assert made.wait_s(0.007) == pytest.approx(0.008)
    assert made.take(0.014) == {}
    assert made.take(0.015) == {"b": pytest.approx(0.010)}


def test_nothing_is_waited_for_when_nobody_is_left_who_could_come() -> None:
    made = batcher(target=100, timeout_s=60.0, groups="ab")
    made.offer("a", 0.0)
    assert made.take(0.0) == {}
    made.leave("b")
    assert list(made.take(0.0)) == ["a"]


def test_whoever_dies_in_a_pending_batch_is_no_longer_part_of_it() -> None:
    made = batcher(target=8)
    made.offer("a", 0.0)
    made.leave("a")
    assert made.queued == 0
    made.offer("b", 0.001)
    assert made.take(0.001) == {}
    made.join("a", 4)
    made.offer("a", 0.002)
    assert list(made.take(0.002)) == ["b", "a"]


def test_strangers_are_refused() -> None:
    with pytest.raises(KeyError):
        batcher().offer("z", 0.0)


def test_nothing_is_due_when_nothing_waits() -> None:
    assert batcher().wait_s(100.0) is None
    assert batcher().take(100.0) == {}


@pytest.mark.parametrize("seed", range(20))
def test_in_any_order_of_arrivals_and_deaths_everybody_alive_is_answered_in_time(seed: int) -> None:
    """A simulated service: whoever offers and lives is answered within the timeout and one turn."""
    random_, made = random.Random(seed), batcher(target=random.Random(seed).choice([4, 8, 100]), groups="abcdefgh")
    alive, busy_until = set("abcdefgh"), dict.fromkeys("abcdefgh", 0.0)
    offered: dict[str, float] = {}
    for turn in range(2000):
        now_s = turn * 0.001
        for group in sorted(alive):
            if group not in offered and now_s >= busy_until[group]:
                made.offer(group, now_s)
                offered[group] = now_s
        if random_.random() < 0.003 and len(alive) > 1:
            dead = random_.choice(sorted(alive))
            alive.discard(dead)
            offered.pop(dead, None)
            if random_.random() < 0.5:
                made.leave(dead)  # else it froze without a word
        for group in made.take(now_s):
            if group in offered:
                assert now_s - offered.pop(group) <= 0.0115
                busy_until[group] = now_s + random_.uniform(0.0, 0.02)
        assert all(now_s - since_s < 0.0125 for since_s in offered.values())
