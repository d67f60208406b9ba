"""The actor: what it says, what it does, and how long it waits for a learner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from dba3c.algorithms.policies import Asked, Decision
from dba3c.central.actor import Actor, ActorGroup
from dba3c.central.service import Batcher, InferenceService
from dba3c.central.unrolls import UnrollStore, observations_of
from dba3c.central.wire import TERMINATED, VALID, GroupShape
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.gymnasium_vector import LoopVectorEnvironment
from dba3c.environments.protocol import EnvironmentFailed, Episode, Transition
from dba3c.metrics.writer import Sections
from param_servers.errors import PeerLost, Refused, RunStopped
from tests.dba3c.environments.counting_game import CONFIG, Counting, raising, unmakable

SECRET = b"0123456789abcdef"
PATIENCE_S = 30.0
CARTPOLE = EnvironmentConfig(env_id="CartPole-v1")


class AlwaysRight:
    """Action 1, whatever is seen."""

    version = 0

    def initial_state(self, num_envs: int) -> tuple:
        return ()

    def load(self, parameters: object, version: int) -> None: ...

    def act(self, asked: Asked) -> Decision:
        size = len(asked.observation)
        return Decision(np.ones(size, np.int64), np.zeros(size, np.float32), ())


def make_groups(count: int = 2) -> list[ActorGroup]:
    made = [make_vector_environment(CARTPOLE, 2, seed) for seed in range(count)]
    shape = GroupShape.of(made[0].observation_space, made[0].action_space, 2, 1)
    return [ActorGroup(environments, shape) for environments in made]


def make_actor(groups: list[ActorGroup], resolve: Callable[[], object], **options: object) -> Actor:
    waits = dict.fromkeys(("join_timeout_s", "answer_timeout_s", "reconnect_timeout_s"), PATIENCE_S)
    settings = {"incarnation": 0, **waits} | options
    return Actor(rank=0, learner=0, groups=groups, resolve=resolve, secret=SECRET, **settings)


def make_service(shape: GroupShape, groups: int = 2) -> InferenceService:
    return InferenceService(SECRET, 0, AlwaysRight(), UnrollStore(shape, 4), Batcher(4, 0.01), groups)


class InThread:
    """An actor beside the test; `result` is what `run` returned or raised."""

    def __init__(self, actor: Actor) -> None:
        self.result: object = None

        def run() -> None:
            try:
                self.result = actor.run()
            except Exception as error:  # the test looks at it
                self.result = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()


def serve(service: InferenceService, until: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline_s
        service.turn(0.01, Sections())


def test_unrolls_of_an_actor_are_what_its_environments_did() -> None:
    groups = make_groups()
    service = make_service(groups[0].shape)
    address = service.hub.listen("127.0.0.1")
    acting = InThread(make_actor(groups, lambda: address))
    serve(service, lambda: service.store.ready >= 8)
    unrolls = [u for u in service.store.take(service.store.ready) if u.key.group == 0]
    service.close("seen enough")
    acting.thread.join(PATIENCE_S)
    assert acting.result == "seen enough"

    twins = make_vector_environment(CARTPOLE, 2, 0)
    observation = twins.reset()
    for unroll in unrolls:
        observations = observations_of([unroll])
        for t in range(4):
            assert np.array_equal(observations[t], observation)
            step = twins.step(np.ones(2, np.int64))
            assert unroll.rewards[t + 1].tolist() == step.reward.tolist()
            assert (unroll.flags[t + 1] & TERMINATED != 0).tolist() == step.terminated.tolist()
            assert (unroll.flags[t + 1] & VALID != 0).tolist() == step.valid.tolist()
            observation = step.observation


def test_after_a_learners_death_the_games_go_on_with_its_next_life() -> None:
    groups = make_groups()
    service = make_service(groups[0].shape)
    addresses = [service.hub.listen("127.0.0.1")]
    acting = InThread(make_actor(groups, lambda: addresses[-1]))
    serve(service, lambda: service.store.ready >= 2)
    service.close(None)
    again = make_service(groups[0].shape)
    addresses.append(again.hub.listen("127.0.0.1"))
    serve(again, lambda: again.store.ready >= 2)
    assert all(not unroll.continues for unroll in again.store.take(2))
    again.close("done")
    acting.thread.join(PATIENCE_S)
    assert acting.result == "done"


def test_games_are_told_with_the_steps_in_which_they_ended() -> None:
    groups, ended, frames = make_groups(), list[Episode](), [0]

    def count(version: int, transition: Transition, sections: dict[str, float]) -> None:
        ended.extend(transition.episodes)
        frames[0] += int(transition.frames.sum())

    service = make_service(groups[0].shape)
    address = service.hub.listen("127.0.0.1")
    acting = InThread(make_actor(groups, lambda: address, on_steps=count))
    serve(service, lambda: len(ended) >= 8)
    service.close("done")
    acting.thread.join(PATIENCE_S)
    lengths = [episode.length_steps for episode in ended]
    assert all(8 <= length <= 11 for length in lengths)  # always right, a pole falls that soon
    assert sum(lengths) <= frames[0]


def test_restarts_in_the_step_in_which_an_environment_is_given_up_are_told_too() -> None:
    makers = [lambda: Counting(fault=raising, bad_at=3), *[unmakable] * 3]
    environments = LoopVectorEnvironment(CONFIG, lambda: makers.pop(0)(), 1, 7)
    shape = GroupShape.of(environments.observation_space, environments.action_space, 1, 1)
    service, lines = make_service(shape, groups=1), list[str]()
    address = service.hub.listen("127.0.0.1")
    acting = InThread(make_actor([ActorGroup(environments, shape)], lambda: address, on_failure=lines.append))
    serve(service, lambda: acting.result is not None)
    service.close(None)
    assert isinstance(acting.result, EnvironmentFailed)
    assert [line[line.index("restart") :][:14] for line in lines] == ["restart 1 of 2", "restart 2 of 2"]


def test_a_learner_that_never_comes_is_given_up_and_named() -> None:
    with pytest.raises(PeerLost, match="this actor cannot reach learner 0 for 0.3 s: no address known"):
        make_actor(make_groups(), lambda: None, join_timeout_s=0.3).run()


def test_a_learner_that_is_lost_for_good_is_given_up_and_named() -> None:
    groups = make_groups()
    service = make_service(groups[0].shape)
    address = service.hub.listen("127.0.0.1")
    acting = InThread(make_actor(groups, lambda: address, reconnect_timeout_s=0.3))
    serve(service, lambda: service.actors == {0})
    service.close(None)
    acting.thread.join(PATIENCE_S)
    assert isinstance(acting.result, PeerLost)
    assert "cannot reach learner 0 for 0.3 s: " in str(acting.result)


def test_a_learner_that_no_longer_answers_is_given_up_and_named() -> None:
    groups = make_groups()
    service = make_service(groups[0].shape)
    address = service.hub.listen("127.0.0.1")
    acting = InThread(make_actor(groups, lambda: address, answer_timeout_s=1.0))
    serve(service, lambda: service.actors == {0})
    acting.thread.join(PATIENCE_S)  # nobody serves any more, though the link stands
    service.close(None)
    assert "connected but has not answered" in str(acting.result)


def test_without_a_learner_an_actor_hears_from_the_run_folder_that_the_run_is_over() -> None:
    def resolve() -> None:
        raise RunStopped("Ctrl-C")

    assert make_actor(make_groups(), resolve).run() == "Ctrl-C"


def test_an_actor_that_was_superseded_does_not_try_again() -> None:
    groups = make_groups()
    service = make_service(groups[0].shape)
    address = service.hub.listen("127.0.0.1")
    new = InThread(make_actor(groups, lambda: address, incarnation=1))
    serve(service, lambda: service.actors == {0})
    old = InThread(make_actor(make_groups(), lambda: address, incarnation=0))
    serve(service, lambda: old.result is not None)
    assert isinstance(old.result, Refused)
    assert "newer incarnation of actor 0" in str(old.result)
    service.close("over")
    new.thread.join(PATIENCE_S)
    assert new.result == "over"
