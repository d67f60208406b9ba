"""The environment's end of `process_env`: `python -m dba3c.environments.process_child IN OUT`, two descriptors."""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from typing import Any

import gymnasium
import numpy as np

from dba3c.environments import process_messages as messages
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import maker_of
from dba3c.environments.spaces import ActionCodec, ObservationCodec

_PR_SET_PDEATHSIG = 1


class Served:
    """One environment, stepped by messages."""

    def __init__(self, config: EnvironmentConfig, view: str) -> None:
        self._env: gymnasium.Env[Any, Any] = maker_of(config, view)()
        self._observations = ObservationCodec(config.env_id, self._env.observation_space)
        self._actions = ActionCodec(config.env_id, self._env.action_space).space
        self._row = np.empty(self._observations.space.shape, dtype=self._observations.space.dtype)

    def spaces(self) -> bytes:
        """What the worker must know, as JSON."""
        described = {
            "observation": messages.describe_space(self._observations.space),
            "action": messages.describe_space(self._actions),
        }
        return json.dumps(described).encode()

    def answer(self, message: messages.Message) -> bytes:
        """Play one message; the payload of STEPPED."""
        if message.kind == messages.RESET:
            (seed,) = messages.SEED.unpack(message.payload)
            observation, _ = self._env.reset(seed=None if seed < 0 else seed)
            outcome = messages.OUTCOME.pack(0.0, 0.0, False, False)
        else:
            observation, reward, terminated, truncated, info = self._env.step(self._action(message.payload))
            score_reward = float(info.get("score_reward", reward))
            outcome = messages.OUTCOME.pack(float(reward), score_reward, bool(terminated), bool(truncated))
        self._observations.write(observation, self._row)
        return outcome + self._row.tobytes()

    def _action(self, payload: bytes) -> Any:
        """As the loop gives it: an array that may be written to, or where that has no dimension its number."""
        array = np.frombuffer(payload, dtype=self._actions.dtype).reshape(self._actions.shape or ())
        return array.copy()[()]


def main(inlet: int, outlet: int) -> None:
    """Serve until the worker closes its end."""
    # A hung environment must not outlive its worker; Ctrl-C reaches the worker, which closes us.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        first = json.loads(messages.receive(inlet).payload)
        served = Served(EnvironmentConfig(**first["config"]), first["view"])
        messages.send(outlet, messages.SPACES, served.spaces())
    except Exception as error:
        _fail(outlet, error)
        return
    while True:
        try:
            message = messages.receive(inlet)
        except EOFError:
            return
        try:
            messages.send(outlet, messages.STEPPED, served.answer(message))
        except Exception as error:
            _fail(outlet, error)


def _fail(outlet: int, error: Exception) -> None:
    line = " ".join(f"{type(error).__name__}: {error}".split())
    try:
        messages.send(outlet, messages.FAILED, line.encode())
    except BrokenPipeError:  # the worker is gone and wants no answer
        sys.exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
