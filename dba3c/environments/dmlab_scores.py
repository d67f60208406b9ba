"""Scores of DMLab-30 normalised by humans': 0 is a random player, 100 a human (Espeholt et al. 2018, appendix B)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dba3c.errors import UserError

# level: (a random player's mean score, a human's), as published with IMPALA (scalable_agent's dmlab30.py)
RANDOM_AND_HUMAN_SCORES = {
    "rooms_collect_good_objects_test": (0.073, 10),
    "rooms_exploit_deferred_effects_test": (8.501, 85.65),
    "rooms_select_nonmatching_object": (0.312, 65.9),
    "rooms_watermaze": (4.065, 54),
    "rooms_keys_doors_puzzle": (4.135, 53.8),
    "language_select_described_object": (-0.07, 389.5),
    "language_select_located_object": (1.929, 280.7),
    "language_execute_random_task": (-5.913, 254.05),
    "language_answer_quantitative_question": (-0.33, 184.5),
    "lasertag_one_opponent_small": (-0.224, 12.65),
    "lasertag_three_opponents_small": (-0.214, 18.55),
    "lasertag_one_opponent_large": (-0.083, 18.6),
    "lasertag_three_opponents_large": (-0.102, 31.5),
    "natlab_fixed_large_map": (2.173, 36.9),
    "natlab_varying_map_regrowth": (2.989, 24.45),
    "natlab_varying_map_randomized": (7.346, 42.35),
    "skymaze_irreversible_path_hard": (0.1, 100),
    "skymaze_irreversible_path_varied": (14.4, 100),
    "psychlab_arbitrary_visuomotor_mapping": (0.163, 58.75),
    "psychlab_continuous_recognition": (0.224, 58.3),
    "psychlab_sequential_comparison": (0.129, 39.5),
    "psychlab_visual_search": (0.085, 78.5),
    "explore_object_locations_small": (3.575, 74.45),
    "explore_object_locations_large": (4.673, 65.65),
    "explore_obstructed_goals_small": (6.76, 206),
    "explore_obstructed_goals_large": (2.61, 119.5),
    "explore_goal_locations_small": (7.66, 267.5),
    "explore_goal_locations_large": (3.14, 194.5),
    "explore_object_rewards_few": (2.073, 77.7),
    "explore_object_rewards_many": (2.438, 106.7),
}
# two levels are trained on one set of objects and tested on another
TESTED_AS = {
    "rooms_collect_good_objects_train": "rooms_collect_good_objects_test",
    "rooms_exploit_deferred_effects_train": "rooms_exploit_deferred_effects_test",
}
DMLAB30_LEVELS = frozenset(RANDOM_AND_HUMAN_SCORES) | frozenset(TESTED_AS)


def human_normalized_score(level: str, scores: Sequence[float], cap: float | None = 100.0) -> float:
    """Mean score of one level in percent of a human's, 0 being a random player's; capped at `cap` unless None."""
    if level not in DMLAB30_LEVELS:
        raise UserError(f"{level} is not a level of DMLab-30, so it has no human score")
    if not scores:
        raise UserError(f"no finished episode of {level}")
    random_score, human_score = RANDOM_AND_HUMAN_SCORES[TESTED_AS.get(level, level)]
    percent = 100.0 * (fmean(scores) - random_score) / (human_score - random_score)
    return percent if cap is None else min(percent, cap)


def mean_human_normalized_score(scores_by_level: Mapping[str, Sequence[float]], cap: float | None = 100.0) -> float:
    """DMLab-30's one number: the mean over all 30 levels; raises `UserError` naming the levels that are missing."""
    by_tested = {TESTED_AS.get(level, level): scores for level, scores in scores_by_level.items()}
    missing = sorted(set(RANDOM_AND_HUMAN_SCORES) - set(by_tested))
    if missing:
        raise UserError(f"DMLab-30 needs all 30 levels; missing: {', '.join(missing)}")
    return fmean(human_normalized_score(level, by_tested[level], cap) for level in RANDOM_AND_HUMAN_SCORES)
