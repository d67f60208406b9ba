"""Your own game: `package.module:function`, where the function takes nothing and returns a `gymnasium.Env`.

Needs: the module importable (the current directory is searched too). Observes and scores: whatever it says.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import gymnasium

from dba3c.environments.restarts import MakeEnv
from dba3c.errors import UserError


def load_make_env(env_id: str) -> MakeEnv:
    """The function that `package.module:function` names; raises `UserError` with one line when it cannot be used."""
    module_name, _, attribute = env_id.partition(":")
    function = _find(env_id, module_name, attribute)

    def make_env() -> gymnasium.Env[Any, Any]:
        env = function()
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"{env_id} must return a gymnasium.Env, not {type(env).__name__}")
        return env

    return make_env


def _find(env_id: str, module_name: str, attribute: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:  # a console script, unlike `python -m`, does not search the current directory
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise UserError(f"{env_id}: no module named {error.name} here ({here}) or installed") from error
        raise UserError(f"{env_id}: {module_name} needs the module {error.name}, which is not installed") from error
    except Exception as error:  # importing a stranger's file can raise anything
        raise UserError(f"{env_id}: importing {module_name} raised {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            functions = ", ".join(name for name in vars(found) if callable(getattr(found, name)) and name[0] != "_")
            raise UserError(f"{env_id}: {module_name} has no {part}; it has {functions or 'no function'}")
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"{env_id}: {attribute} is not a function")
    return found
