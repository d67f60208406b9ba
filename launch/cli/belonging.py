"""Which options belong to which mode and algorithm, so that one given in vain is refused, not ignored.

Only what the words themselves give counts: a preset may well set what another algorithm reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from dba3c.config import TrainConfig
from dba3c.errors import UserError

MODES = {
    "worker": ("envs_per_worker", "rollout_length"),
    "central": (
        "actors",
        "envs_per_actor",
        "actor_groups",
        "unroll_length",
        "inference_batch",
        "inference_timeout_ms",
        "inference_thread",
    ),
}
"""Mode → options that it alone reads."""

_POLICY_GRADIENT = ("actor_critic", "vtrace", "ppo")
ALGORITHMS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("ppo",): ("policy_clip", "ppo_epochs", "ppo_minibatches"),
    _POLICY_GRADIENT: ("network", "trace_lambda", "value_cost", "entropy_cost"),
    ("r2d2",): ("burn_in", "n_step", "target_every_steps", "memory_size", "dueling_size"),
    ("sac",): ("polyak", "hidden_size"),
    ("r2d2", "sac"): ("replay_capacity", "replay_start", "replay_batch", "replay_ratio"),
}
"""Algorithms → options that they alone read."""


def refuse_options_given_in_vain(config: TrainConfig, given: Iterable[str]) -> None:
    """Raise UserError, one line, when a run with this configuration would not read an option whose name was ``given``.

    What is in no table is somebody else's to check.
    """
    mode, algorithm, names = config.central.mode, config.algorithm.algorithm, set(given)
    for reader, options in MODES.items():
        if reader != mode:
            _refuse(names.intersection(options), f"--mode {reader}", f"this run's mode is {mode}")
    for readers, options in ALGORITHMS.items():
        if algorithm not in readers:
            _refuse(
                names.intersection(options), f"--algorithm {' or '.join(readers)}", f"this run learns by {algorithm}"
            )
    if (mode, algorithm) != ("central", "vtrace"):
        why = f"this run's mode is {mode} and it learns by {algorithm}"
        _refuse(names & {"batch_unrolls"}, "--mode central --algorithm vtrace", why)


def _refuse(names: set[str], whose: str, why: str) -> None:
    if names:
        said = ", ".join("--" + name.replace("_", "-") for name in sorted(names))
        what = "an option" if len(names) == 1 else "options"
        raise UserError(f"{said}: {what} of {whose} only, and {why}")
