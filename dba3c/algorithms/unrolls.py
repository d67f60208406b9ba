"""From single steps of many environments, in any order, to complete unrolls (SEED RL, arXiv 1910.06591, section 3.1).

Legend: T unroll length, n environments of a call, m complete unrolls, B batch, H state size.

A record is what the learner knows when it answers an environment: the observation, what the step that led to it brought
(reward, terminated, truncated, valid), whether an episode begins with it (first), and the action chosen now. An unroll
holds T + 1 records; its last is the first of the next one, because step t's reward stands in record t + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from dba3c.networks.base import NetworkOutput


class Unrolls(NamedTuple):
    """m complete unrolls."""

    environments: np.ndarray
    """[m] int64."""
    records: dict[str, np.ndarray]
    """[T+1, m, …] each."""
    state: tuple[np.ndarray, ...]
    """[m, H] each: the recurrent state before the first record's observation."""


class UnrollStore:
    """Partial unrolls, keyed by (environment, incarnation).

    A restarted environment comes with a higher incarnation and starts afresh; a late record of a lower one is dropped
    and counted. Environments may appear at any time, and are forgotten only when asked.
    """

    def __init__(self, unroll_length: int) -> None:
        self.unroll_length = unroll_length
        self.stale_records = 0
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._incarnations = np.zeros(0, dtype=np.int64)
        self._filled = np.zeros(0, dtype=np.int64)  # records held of the row's unroll
        self._records: dict[str, np.ndarray] = {}  # [rows, T+1, …]
        self._states: list[np.ndarray] = []  # [rows, H]

    def append(
        self,
        environments: np.ndarray,
        incarnations: np.ndarray,
        records: Mapping[str, np.ndarray],
        state: tuple[np.ndarray, ...] = (),
    ) -> Unrolls | None:
        """Add one record [n, …] of each of environments [n] int; the unrolls that this completes, if any.

        incarnations: [n] int. state: [n, H] each, before the observation. The first call fixes names, shapes and
        dtypes. Raises ValueError when an environment is named twice.
        """
        if len(np.unique(environments)) != len(environments):
            raise ValueError(f"an environment is named twice in one call: {sorted(environments.tolist())}")
        rows = np.array([self._row(int(environment)) for environment in environments], dtype=np.int64)
        self._allocate(records, state)
        fresh = incarnations > self._incarnations[rows]
        self._filled[rows[fresh]] = 0
        self._incarnations[rows[fresh]] = incarnations[fresh]
        current = incarnations == self._incarnations[rows]
        self.stale_records += int((~current).sum())
        rows = rows[current]
        at = rows, self._filled[rows]
        for name, values in records.items():
            self._records[name][at] = values[current]
        self._keep_state(rows, at[1] == 0, [part[current] for part in state])
        self._filled[rows] += 1
        done = self._filled[rows] > self.unroll_length
        if not done.any():
            return None
        return self._collect(environments[current][done], rows[done], [part[current][done] for part in state])

    def forget(self, environment: int) -> None:
        """Drop what is held of an environment that left."""
        row = self._rows.pop(environment, None)
        if row is not None:
            self._free.append(row)

    def _collect(self, environments: np.ndarray, rows: np.ndarray, state: list[np.ndarray]) -> Unrolls:
        """Copy complete unrolls out, and begin the next ones with their last records."""
        records = {name: np.ascontiguousarray(kept[rows].swapaxes(0, 1)) for name, kept in self._records.items()}
        complete = Unrolls(environments, records, tuple(kept[rows] for kept in self._states))
        for name, kept in self._records.items():
            kept[rows, 0] = records[name][-1]
        self._filled[rows] = 1
        self._keep_state(rows, np.ones(len(rows), dtype=bool), state)
        return complete

    def _keep_state(self, rows: np.ndarray, first: np.ndarray, state: list[np.ndarray]) -> None:
        for kept, part in zip(self._states, state, strict=True):
            kept[rows[first]] = part[first]

    def _row(self, environment: int) -> int:
        if environment not in self._rows:
            row = self._free.pop() if self._free else len(self._rows)
            self._rows[environment] = row
            if row >= len(self._filled):
                self._grow(max(8, 2 * len(self._filled)))
            self._incarnations[row] = -1
        return self._rows[environment]

    def _grow(self, rows: int) -> None:
        for array in (self._incarnations, self._filled, *self._records.values(), *self._states):
            # nobody else holds a view of these arrays
            array.resize((rows, *array.shape[1:]), refcheck=False)

    def _allocate(self, records: Mapping[str, np.ndarray], state: tuple[np.ndarray, ...]) -> None:
        if self._records:
            return
        rows = len(self._filled)
        self._records = {
            name: np.zeros((rows, self.unroll_length + 1, *values.shape[1:]), dtype=values.dtype)
            for name, values in records.items()
        }
        self._states = [np.zeros((rows, *part.shape[1:]), dtype=part.dtype) for part in state]


class UnrolledRollout(NamedTuple):
    """A ``TrainableRollout`` of T steps, from T + 1 records and a network's unroll over them."""

    policy_logits: Tensor
    values: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    bootstrap_value: Tensor


def unrolled_rollout(output: NetworkOutput, records: Mapping[str, Tensor]) -> UnrolledRollout:
    """Pair step t's policy, value and action with the reward and flags of record t + 1; the last value bootstraps.

    output: [T+1, B, …] with graph. records: "action", "reward", "terminated", "truncated", "valid", [T+1, B] each.
    """
    return UnrolledRollout(
        policy_logits=output.policy_logits[:-1],
        values=output.value[:-1],
        actions=records["action"][:-1],
        rewards=records["reward"][1:],
        terminated=records["terminated"][1:],
        truncated=records["truncated"][1:],
        valid=records["valid"][1:],
        bootstrap_value=output.value[-1].detach(),
    )
