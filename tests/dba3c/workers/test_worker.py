"""What a worker's actions are drawn from."""

from __future__ import annotations

from itertools import product

from dba3c.workers.worker import rollout_generator


def test_no_two_rollouts_of_a_run_or_its_neighbours_draw_the_same_actions_and_each_draws_its_own_again() -> None:
    everywhere = list(product(range(3), repeat=5))  # seed, rank, incarnation, lane, step
    seeds = [rollout_generator(*numbers).initial_seed() for numbers in everywhere]
    assert len(set(seeds)) == 3**5
    assert seeds == [rollout_generator(*numbers).initial_seed() for numbers in everywhere]
