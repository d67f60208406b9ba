"""Exchanging gradients behind one interface: servers, all-reduce or one process. Knows tensors and steps only.

Ten names are all that most need: `serve` and `connect` (servers and their workers at known addresses),
`train_on_one_machine` and `LocalExchange` (no cluster), `ExchangeConfig` and `OptimizerConfig` (settings, all with a
default), `FlatLayout` (a module's tensors in one flat buffer), `GradientExchange` (what a worker's loop is written
against), `RunStopped` (how it ends) and `ParamServersError` (how else). All else is in the rooms below.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from param_servers.config import ExchangeConfig as ExchangeConfig
    from param_servers.config import OptimizerConfig as OptimizerConfig
    from param_servers.errors import ParamServersError as ParamServersError
    from param_servers.errors import RunStopped as RunStopped
    from param_servers.exchange import GradientExchange as GradientExchange
    from param_servers.layout import FlatLayout as FlatLayout
    from param_servers.replica import LocalExchange as LocalExchange
    from param_servers.running import connect as connect
    from param_servers.running import serve as serve
    from param_servers.running import train_on_one_machine as train_on_one_machine

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
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Each name is loaded when it is first asked for: whoever only reads settings does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
