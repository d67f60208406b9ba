"""Numbers of the inference service, gathered between two gradients."""

from __future__ import annotations

import threading

import numpy as np


class InferenceReport:
    """Latencies and batch sizes since the last ``take``, which another thread may ask for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._latencies_s: list[float] = []
        self._batches: list[int] = []
        self._occupancies: list[float] = []

    def batch(self, size: int, environments: int, latencies_s: list[float]) -> None:
        """One batch of ``size`` of the ``environments`` here; each group's time from arrival to answer."""
        with self._lock:
            self._latencies_s += latencies_s
            self._batches.append(size)
            self._occupancies.append(size / max(environments, 1))

    def take(self) -> dict[str, float]:
        """Metrics by their names in the registry, {} when there was no batch."""
        with self._lock:
            latencies_s, batches, occupancies = self._latencies_s, self._batches, self._occupancies
            self._clear()
        if not batches:
            return {}
        p50, p99 = np.percentile(latencies_s, (50, 99)) * 1000
        return {
            "inference_batch": float(np.mean(batches)),
            "inference_occupancy": float(np.mean(occupancies)),
            "inference_latency_p50_ms": float(p50),
            "inference_latency_p99_ms": float(p99),
        }


def policy_lag(versions: np.ndarray, step: int) -> dict[str, float]:
    """Updates between the weights that acted, [T, groups], and those of ``step``, which learn."""
    lags = step - versions
    p50, p99 = np.percentile(lags, (50, 99))
    return {
        "policy_lag_mean": float(lags.mean()),
        "policy_lag_p50": float(p50),
        "policy_lag_p99": float(p99),
        "policy_lag_max": float(lags.max()),
    }
