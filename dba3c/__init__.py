"""dba3c: synchronous data-parallel reinforcement learning on clusters of CPUs.

What Python users need (docs/python.md): `train` and `resume` a run, `stop` it, `read` and `watch` it, `load` its agent,
`evaluate` and `record` games of it; `TrainConfig`, what a run is made of, and `UserError`, what was wrong with it.
"""

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dba3c.api import Run as Run
    from dba3c.api import read as read
    from dba3c.config import TrainConfig as TrainConfig
    from dba3c.errors import UserError as UserError
    from dba3c.evaluation.agents import Agent as Agent
    from dba3c.evaluation.agents import load as load
    from dba3c.games import evaluate as evaluate
    from dba3c.games import record as record
    from dba3c.metrics.watch import watch as watch
    from launch.api import Training as Training
    from launch.api import resume as resume
    from launch.api import stop as stop
    from launch.api import train as train

__version__ = "0.1.0"
_HOMES = {
    "Agent": "dba3c.evaluation.agents",
    "Run": "dba3c.api",
    "TrainConfig": "dba3c.config",
    "Training": "launch.api",
    "UserError": "dba3c.errors",
    "evaluate": "dba3c.games",
    "load": "dba3c.evaluation.agents",
    "read": "dba3c.api",
    "record": "dba3c.games",
    "resume": "launch.api",
    "stop": "launch.api",
    "train": "launch.api",
    "watch": "dba3c.metrics.watch",
}
"""Where each name is. Who starts processes lies above this package, which knows it by name alone."""
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Each name is loaded when it is first asked for: whoever only reads settings does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name].startswith("launch.") and "launch" not in sys.modules:
        launch = importlib.util.find_spec("launch")
        if launch is None:
            raise ImportError(f"dba3c.{name} needs the package launch, which is not installed")
        if not launch.submodule_search_locations:  # a launch.py beside the script: not to be run
            raise ImportError(f"dba3c.{name} needs the package launch, which {launch.origin} hides: rename it")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
