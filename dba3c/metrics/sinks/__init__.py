"""Trackers: small adapters of one protocol, `dba3c.metrics.sinks.protocol.Sink`; several may be driven at once."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from dba3c.errors import UserError
from dba3c.metrics.sinks.protocol import Sink, TrackedRun

__all__ = ["SINKS", "Sink", "TrackedRun", "make_sinks"]

SINKS = {
    "tensorboard": ("dba3c.metrics.sinks.tensorboard", "TensorBoardSink"),
    "neptune": ("dba3c.metrics.sinks.neptune", "NeptuneSink"),
    "mlflow": ("dba3c.metrics.sinks.mlflow", "MLflowSink"),
    "wandb": ("dba3c.metrics.sinks.wandb", "WandbSink"),
}
"""Name (as in --track) to where the adapter is; a client is imported only when its sink is opened."""


def make_sinks(names: Iterable[str]) -> list[Sink]:
    """The sinks of these names, not yet opened. Raises UserError for a name that is none of `SINKS`."""
    sinks: list[Sink] = []
    for name in dict.fromkeys(names):
        if name not in SINKS:
            raise UserError(f"unknown tracker {name!r}; known: {', '.join(SINKS)}")
        module, adapter = SINKS[name]
        sinks.append(getattr(importlib.import_module(module), adapter)())
    return sinks
