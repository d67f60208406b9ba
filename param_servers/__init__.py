"""Exchanging gradients behind one interface: servers, all-reduce or one process. Knows tensors and steps only.

Ten names are all that most need: `serve` and `connect` (servers and their workers at known addresses),
`train_on_one_machine` and `LocalExchange` (no cluster), `ExchangeConfig` and `OptimizerConfig` (settings, all with a
default), `FlatLayout` (a module's tensors in one flat buffer), `GradientExchange` (what a worker's loop is written
against), `RunStopped` (how it ends) and `ParamServersError` (how else). All else is in the rooms below.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from param_servers.config import ExchangeConfig, OptimizerConfig
    from param_servers.errors import ParamServersError, RunStopped
    from param_servers.exchange import GradientExchange
    from param_servers.layout import FlatLayout
    from param_servers.replica import LocalExchange
    from param_servers.running import connect, serve, train_on_one_machine

__all__ = [
    "ExchangeConfig",
    "FlatLayout",
    "GradientExchange",
    "LocalExchange",
    "OptimizerConfig",
    "ParamServersError",
    "RunStopped",
    "connect",
    "serve",
    "train_on_one_machine",
]
_HOMES = {
    "ExchangeConfig": "config",
    "FlatLayout": "layout",
    "GradientExchange": "exchange",
    "LocalExchange": "replica",
    "OptimizerConfig": "config",
    "ParamServersError": "errors",
    "RunStopped": "errors",
    "connect": "running",
    "serve": "running",
    "train_on_one_machine": "running",
}


def __getattr__(name: str) -> Any:
    """Each name is loaded when it is first asked for: whoever only reads settings does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
