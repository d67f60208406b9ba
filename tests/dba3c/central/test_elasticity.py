"""Actors that die for good, and actors that nobody announced: the others are answered as before.

A batch's timeout is three times as long here as the tests' patience: whoever waited for it would fail them.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.dba3c.central.stage import B, ScriptedActor, Stage

OF_ACTOR_3 = {12, 13, 14, 15}
"""Its environments: 2 groups of 2, as each actor has."""


def play(on: Stage, actor: ScriptedActor, sequences: range) -> None:
    """Both groups of an actor take turns that each need an answer before the next."""
    for sequence in sequences:
        for group in range(2):
            actor.say(group, sequence, float(sequence), first=sequence == 0)
        answered = len(actor.answers) + 2
        on.until(lambda answered=answered: len(actor.answers) >= answered)


def test_after_three_of_four_actors_died_the_last_one_is_answered_at_once_and_alone(
    stage: Callable[..., Stage],
) -> None:
    on = stage(target=4 * 2 * B, timeout_s=60.0)
    *doomed, last = (on.actor(rank) for rank in range(4))
    for actor in (*doomed, last):
        for group in range(2):
            actor.say(group, 0, 1.0, first=True)
    on.until(lambda: all(len(actor.answers) == 2 for actor in (*doomed, last)))
    assert [len(asked.environments) for asked in on.policy.asked] == [16]
    for actor in doomed:
        actor.say(0, 1, 2.0)  # they die inside a pending batch
    on.until(lambda: on.batcher.queued == 3 * B)
    for actor in doomed:
        on.kill(actor)
    on.until(lambda: on.service.actors == {3})
    assert on.batcher.queued == 0
    play(on, last, range(1, 8))
    asked = on.policy.asked[1:]
    assert {int(e) for one in asked for e in one.environments} == OF_ACTOR_3
    assert all(len(one.environments) <= 2 * B for one in asked)
    unrolls = on.service.store.take(on.service.store.ready)
    assert len(unrolls) == 4 and {unroll.key.actor for unroll in unrolls} == {3}  # 8 steps: 2 unrolls of a group


def test_an_actor_of_a_higher_rank_joins_in_the_middle_and_the_others_go_on(stage: Callable[..., Stage]) -> None:
    on = stage(target=2 * 2 * B, timeout_s=60.0)
    first = on.actor(0)
    play(on, first, range(3))
    more = on.actor(7)
    for group in range(2):
        first.say(group, 3, 3.0)
        more.say(group, 0, 9.0, first=True)
    on.until(lambda: len(more.answers) == 2 and len(first.answers) == 8)
    assert sorted(on.policy.asked[-1].environments.tolist()) == [0, 1, 2, 3, 28, 29, 30, 31]
    assert sorted(more.answers) == [(0, 0, [9, 9]), (1, 0, [9, 9])]
    on.kill(more)
    on.until(lambda: on.service.actors == {0})
    play(on, first, range(4, 7))
