"""Prioritized sequences: what a sample holds, what priorities do, and the stacks beneath."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dba3c.algorithms.sequence_replay import Sample, SequenceReplay, Steps, draw

STORED = ("rewards", "terminated", "truncated", "valid", "actions")
ENVIRONMENTS, CAPACITY, LENGTH = 3, 24, 7


def make_replay(**changes: object) -> SequenceReplay:
    base: dict = {
        "environments": ENVIRONMENTS, "steps_per_environment": CAPACITY, "sequence_length": LENGTH, "stride": 4,
        "frame_stack": 3, "frame_shape": (2, 2), "frame_dtype": np.dtype(np.uint8), "state_sizes": (3,),
    }  # fmt: skip
    return SequenceReplay(**(base | changes))


class FrameStacks:
    """The slow model: the present stack of each of N environments, pushed frame by frame as while acting."""

    def __init__(self, environments: int, depth: int, frame_shape: tuple[int, ...]) -> None:
        self._stacks = np.zeros((environments, depth, *frame_shape), dtype=np.uint8)

    def push(self, environments: np.ndarray, frames: np.ndarray, first: np.ndarray, older: np.ndarray) -> np.ndarray:
        """Stacks [n, K, *F] uint8 of environments [n] int after their new frames [n, *F].

        Those of the R environments marked first [n] bool have older [R, K−1, *F] behind the new frame.
        """
        stacks = self._stacks[environments]
        stacks[:, :-1] = stacks[:, 1:]
        stacks[:, -1] = frames
        stacks[first, :-1] = older
        self._stacks[environments] = stacks
        return stacks


class Model:
    """A replay beside a list of everything that was ever appended, with stacks as they were acted on."""

    def __init__(self, seed: int, stride: int = 4, frame_stack: int = 3) -> None:
        self.rng = np.random.default_rng(seed)
        self.stride, self.frame_stack = stride, frame_stack
        self.replay = make_replay(stride=stride, frame_stack=frame_stack)
        self.stacks = FrameStacks(ENVIRONMENTS, frame_stack, (2, 2))
        self.history: list[list[dict]] = [[] for _ in range(ENVIRONMENTS)]
        self.broken = np.ones(ENVIRONMENTS, bool)

    def append(self) -> None:
        """The next steps of a random subset of the environments, in random order."""
        continues = not self.broken.any() or (self.rng.random() < 0.5 and not self.broken.all())
        environments = self.rng.permutation(np.flatnonzero(self.broken != continues))
        environments = environments[: self.rng.integers(1, len(environments) + 1)]
        size = (self.stride, len(environments))
        first = self.rng.random(size) < 0.2
        first[0] |= not continues
        older = self.rng.integers(1, 255, (int(first.sum()), self.frame_stack - 1, 2, 2), dtype=np.uint8)
        steps = Steps(
            frames=self.rng.integers(1, 255, (*size, 2, 2), dtype=np.uint8),
            rewards=self.rng.normal(size=size).astype(np.float32),
            terminated=self.rng.random(size) < 0.2,
            truncated=self.rng.random(size) < 0.2,
            valid=self.rng.random(size) < 0.8,
            first=first,
            actions=self.rng.integers(0, 5, size),
            older=list(older),
            state=(self.rng.normal(size=(len(environments), 3)).astype(np.float32),),
        )
        self.replay.append(environments, steps, continues=continues)
        self.broken[environments] = False
        behind = iter(older)
        for t in range(self.stride):
            new = np.array([next(behind) for _ in range(first[t].sum())]).reshape(-1, self.frame_stack - 1, 2, 2)
            stacks = self.stacks.push(environments, steps.frames[t], first[t], new)
            for i, e in enumerate(environments):
                step = {name: getattr(steps, name)[t, i] for name in (*STORED, "first")}
                step |= {"stack": stacks[i], "state": steps.state[0][i], "new": t == 0 and not continues}
                self.history[e].append(step)

    def sequences(self) -> set[tuple[int, int]]:
        """(environment, start) of what may be sampled: complete, of one stream, not overwritten."""
        found = set()
        for e, history in enumerate(self.history):
            oldest = len(history) - CAPACITY
            for start in range(0, len(history), self.stride):
                end = start + LENGTH
                unbroken = end < len(history) and not any(step["new"] for step in history[start + 1 : end + 1])
                if unbroken and (start - max(1, self.frame_stack - 1) >= oldest):
                    found.add((e, start))
        return found


@pytest.mark.parametrize("changes", [{}, {"frame_stack": 2}, {"stride": 8}])
def test_samples_are_what_was_appended_and_acted_on(changes: dict) -> None:
    for seed in range(6):
        model = Model(seed, **changes)
        for round_ in range(60):
            model.append()
            if model.rng.random() < 0.1:
                model.broken[model.rng.integers(ENVIRONMENTS)] = True
            assert len(model.replay) == len(model.sequences())
            if round_ % 6 == 5 and len(model.replay):
                check_sample(model)


def check_sample(model: Model) -> None:
    sample = model.replay.sample(16, model.rng)
    for b, (leaf, start) in enumerate(zip(sample.leaves, sample.births, strict=True)):
        environment = int(leaf) // model.replay.blocks
        assert (environment, int(start)) in model.sequences()
        steps = model.history[environment][start : start + LENGTH + 1]
        sequences = sample.sequences
        stacks = np.array([step["stack"] for step in steps])
        np.testing.assert_array_equal(sequences.observations[:, b].reshape(stacks.shape), stacks)
        for name in STORED:
            stored = steps[:-1] if name == "actions" else steps[1:]
            np.testing.assert_array_equal(getattr(sequences, name)[:, b], [step[name] for step in stored])
        np.testing.assert_array_equal(sequences.state[0][b], steps[0]["state"])
        np.testing.assert_array_equal(sequences.first[:, b], [step["first"] for step in steps])
        assert sequences.previous_reward[b] == steps[0]["rewards"]
        if not steps[0]["first"]:
            assert sequences.previous_action[b] == model.history[environment][start - 1]["actions"]


def filled(exponent: float = 0.9, importance: float = 0.6) -> SequenceReplay:
    """One environment, four sequences."""
    replay = make_replay(
        environments=1, frame_stack=1, frame_shape=(1,), frame_dtype=np.dtype(np.float32), state_sizes=(),
        priority_exponent=exponent, importance_exponent=importance,
    )  # fmt: skip
    append_numbers(replay, 0, 20)
    return replay


def append_numbers(replay: SequenceReplay, begin: int, end: int) -> None:
    nothing = np.zeros((4, 1), dtype=bool)
    for start in range(begin, end, 4):
        numbers = np.arange(start, start + 4, dtype=np.float32).reshape(4, 1)
        ends = (nothing, nothing, ~nothing, nothing)
        steps = Steps(numbers[:, None], 0 * numbers, *ends, np.zeros((4, 1), np.int64), [], ())
        replay.append(np.array([0]), steps, continues=start > 0)


def prioritise(replay: SequenceReplay, priorities: dict[int, float]) -> Sample:
    """Give the sequences that begin at these steps their priorities; a sample of all of them."""
    sample = replay.sample(64, np.random.default_rng(0))
    assert set(sample.births.tolist()) == set(priorities)
    replay.update_priorities(sample, torch.tensor([priorities[int(start)] for start in sample.births]))
    return sample


def test_new_sequences_are_sampled_alike() -> None:
    replay = filled()
    assert len(replay) == 4
    counts = Counter(replay.sample(4, np.random.default_rng(0)).births.tolist())
    assert counts == {0: 1, 4: 1, 8: 1, 12: 1}
    assert torch.equal(replay.sample(4, np.random.default_rng(0)).weights, torch.ones(4))


def test_probabilities_and_importance_weights_are_the_closed_forms() -> None:
    replay, priorities = filled(0.9, 0.6), {0: 1.0, 4: 2.0, 8: 4.0, 12: 0.5}
    prioritise(replay, priorities)
    sample = replay.sample(40_000, np.random.default_rng(1))
    powers = {start: priority**0.9 for start, priority in priorities.items()}
    chances = {start: power / sum(powers.values()) for start, power in powers.items()}
    counts = Counter(sample.births.tolist())
    for start, chance in chances.items():
        assert counts[start] / 40_000 == pytest.approx(chance, abs=1e-3)
    raw = {start: (4 * chance) ** -0.6 for start, chance in chances.items()}
    expected = [raw[int(start)] / max(raw.values()) for start in sample.births]
    np.testing.assert_allclose(sample.weights, expected, rtol=1e-5)


def test_importance_weights_make_the_weighted_mean_unbiased() -> None:
    replay = filled(0.9, 1.0)
    prioritise(replay, {0: 1.0, 4: 2.0, 8: 4.0, 12: 0.5})
    sample = replay.sample(40_000, np.random.default_rng(1))
    values = torch.from_numpy(sample.births).float()
    mean = (values * sample.weights).sum() / sample.weights.sum()
    assert mean.item() == pytest.approx((0 + 4 + 8 + 12) / 4, abs=0.05)


def chances_after_an_update(priorities: dict[int, float], begin: int, end: int) -> dict[int, float]:
    """Of the sequences in a replay whose own entered an update with these priorities, when more steps have come."""
    replay = filled(1.0)
    replay.used(prioritise(replay, priorities))
    append_numbers(replay, begin, end)
    counts = Counter(replay.sample(16_000, np.random.default_rng(0)).births.tolist())
    return {start: count / 16_000 for start, count in counts.items()}


def test_a_new_sequence_gets_the_largest_priority_that_was_measured() -> None:
    # the sequence of 16 is complete, and that of 0 makes room
    chances = chances_after_an_update({0: 1.0, 4: 1.0, 8: 7.0, 12: 1.0}, 20, 24)
    assert chances[16] == pytest.approx(7 / 16, abs=0.01)


def test_a_priority_whose_sequence_is_gone_decides_no_more_for_new_ones() -> None:
    # those of 0 and 4 make room: that of 16 came while the 8.0 was there, that of 20 after it
    chances = chances_after_an_update({0: 1.0, 4: 8.0, 8: 1.0, 12: 2.0}, 20, 28)
    assert chances[16] == pytest.approx(8 / 13, abs=0.01) and chances[20] == pytest.approx(2 / 13, abs=0.01)


def test_priorities_of_a_sequence_that_was_overwritten_are_dropped() -> None:
    replay = filled()
    sample = replay.sample(8, np.random.default_rng(0))
    append_numbers(replay, 20, 60)
    total = len(replay)
    replay.update_priorities(sample, torch.full((8,), 1e9))
    counts = Counter(replay.sample(100 * total, np.random.default_rng(0)).births.tolist())
    assert min(counts) >= 60 - 24
    assert max(counts.values()) <= 101  # all alike: nobody took the 1e9


def test_a_priority_of_zero_keeps_a_chance() -> None:
    replay = filled()
    prioritise(replay, {0: 0.0, 4: 0.0, 8: 0.0, 12: 0.0})
    assert len(set(replay.sample(8, np.random.default_rng(0)).births.tolist())) == 4


def test_older_frames_are_kept_for_no_longer_than_the_steps_they_belong_to() -> None:
    model = Model(seed=0)
    for _ in range(100):
        model.append()
    begun = [step for history in model.history for step in history[-CAPACITY:]]
    assert 0 < len(model.replay._older) <= sum(step["first"] for step in begun)


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=1, max_size=40),
    st.integers(1, 200),
    st.integers(0, 2**32 - 1),
)
def test_each_weight_is_drawn_in_proportion_and_none_is_drawn_that_is_0(
    weights: list[float], size: int, seed: int
) -> None:
    if sum(weights) == 0:
        weights[0] = 1.0
    drawn = np.bincount(draw(np.array(weights), size, np.random.default_rng(seed)), minlength=len(weights))
    assert drawn.sum() == size and len(drawn) == len(weights)
    assert np.all(np.abs(drawn - size * np.array(weights) / sum(weights)) < 2 + 1e-6)  # a part may be cut at each end
    assert not drawn[np.array(weights) == 0].any()


class Highest(np.random.Generator):
    """Draws the largest number below 1."""

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        return np.full(size, np.nextafter(1.0, 0.0))


def test_rounding_never_finds_a_place_without_weight() -> None:
    weights = np.array([0.0, 0.1, 0.2, 0.3, 0.0])
    for size in range(1, 50):
        drawn = draw(weights, size, Highest(np.random.PCG64(0)))
        assert drawn.max() == 3 and drawn.min() >= 1
