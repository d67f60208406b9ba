"""Where episodes begin, told from the flags of each step."""

from __future__ import annotations

import numpy as np

from dba3c.algorithms.episodes import EpisodeStarts


def firsts(*steps: str) -> list[bool]:
    """By letters: t terminated, c truncated, l life lost, - ordinary, r reset, a acted by the environment, x broke."""
    starts = EpisodeStarts(1)
    flags = [(np.array([s in "tl"]), np.array([s in "cx"]), np.array([s in "tlc-"])) for s in steps]
    return [bool(starts(*flag)[0]) for flag in flags]


def test_an_episode_begins_with_the_reset_after_an_end() -> None:
    assert firsts("-", "t", "r", "-") == [False, False, True, False]
    assert firsts("-", "c", "r", "-") == [False, False, True, False]


def test_a_lost_life_and_a_step_the_environment_took_begin_nothing() -> None:
    assert firsts("l", "-", "a", "-") == [False] * 4


def test_an_environment_that_broke_begins_again_with_its_reset() -> None:
    assert firsts("-", "x", "r", "-") == [False, False, True, False]  # x: not valid and truncated
