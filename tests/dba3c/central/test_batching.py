"""Inference batches: a target size, or a timeout, or nobody left to wait for."""

import random

import pytest

from dba3c.central.service import Batcher


def batcher(target: int = 8, timeout_s: float = 0.010, groups: str = "abcd") -> Batcher[str]:
    made: Batcher[str] = Batcher(target, timeout_s, absent_after_s=1.0)
    for group in groups:
        made.join(group, 4, now_s=0.0)
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


def test_a_frozen_group_is_waited_for_only_until_it_counts_as_absent() -> None:
    made = batcher(target=100, timeout_s=0.5, groups="ab")
    made.offer("a", 0.9)
    assert made.wait_s(0.9) == pytest.approx(0.5)
    assert list(made.take(1.0)) == ["a"]


def test_whoever_dies_in_a_pending_batch_is_no_longer_part_of_it() -> None:
    made = batcher(target=8)
    made.offer("a", 0.0)
    made.leave("a")
    assert made.queued == 0
    made.offer("b", 0.001)
    assert made.take(0.001) == {}
    made.join("a", 4, 0.002)
    made.offer("a", 0.002)
    assert list(made.take(0.002)) == ["b", "a"]


def test_a_second_observation_before_the_answer_is_refused() -> None:
    made = batcher()
    made.offer("a", 0.0)
    with pytest.raises(ValueError, match="second observation"):
        made.offer("a", 0.0)


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
