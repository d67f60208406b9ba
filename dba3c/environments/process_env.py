"""One environment in a process of its own: it runs beside the others, and when it hangs it can be ended.

`LoopVectorEnvironment` sends every process its action before it waits for the first answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from dba3c.environments import process_messages as messages
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError

_CLOSE_TIMEOUT_S = 2.0
_KILL_TIMEOUT_S = 10.0


class EnvironmentHangs(RuntimeError):
    """It did not answer in time."""


class EnvironmentDied(RuntimeError):
    """Its process is gone."""


class ProcessEnv(gymnasium.Env[np.ndarray, Any]):
    """The worker's end. It starts the process and waits for it only when something is asked."""

    def __init__(self, config: EnvironmentConfig, view: str) -> None:
        self._env_id = config.env_id
        self._timeout_s = config.environment_timeout_s
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [sys.executable, "-m", "dba3c.environments.process_child", str(theirs_in), str(theirs_out)]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._closed = False
        self._pending = False
        self._send(messages.CONFIG, json.dumps({"config": asdict(config), "view": view}).encode())

    @cached_property
    def _spaces(self) -> tuple[Space[Any], Space[Any]]:
        """(observation space, action space), which are the process's first answer."""
        described = json.loads(self._answer(messages.SPACES))
        return messages.described_space(described["observation"]), messages.described_space(described["action"])

    @property
    def observation_space(self) -> Space[Any]:  # type: ignore[override]
        """What the codec in the process makes of the environment's own observations."""
        return self._spaces[0]

    @property
    def action_space(self) -> Space[Any]:  # type: ignore[override]
        """The environment's own."""
        return self._spaces[1]

    def send_reset(self, seed: int | None) -> None:
        """Ask for a new game and do not wait."""
        self._pending = True
        self._send(messages.RESET, messages.SEED.pack(-1 if seed is None else seed))

    def send_step(self, action: Any) -> None:
        """Ask for a step and do not wait."""
        self._pending = True
        self._send(messages.STEP, np.asarray(action, dtype=self.action_space.dtype).tobytes())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The answer to `send_reset`, which is sent now if it was not."""
        if not self._pending:
            self.send_reset(seed)
        return self._stepped()[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """The answer to `send_step`, which is sent now if it was not."""
        if not self._pending:
            self.send_step(action)
        observation, (reward, score_reward, terminated, truncated) = self._stepped()
        return observation, reward, terminated, truncated, {"score_reward": score_reward}

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._closed:
            return
        self._closed = True
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(timeout=0.0 if self._pending else _CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=_KILL_TIMEOUT_S)

    def _stepped(self) -> tuple[np.ndarray, tuple[Any, ...]]:
        space = self.observation_space
        payload = self._answer(messages.STEPPED)
        self._pending = False
        observation = np.frombuffer(payload, dtype=space.dtype, offset=messages.OUTCOME.size).reshape(space.shape)
        return observation, messages.OUTCOME.unpack_from(payload)

    def _send(self, kind: int, payload: bytes) -> None:
        self._asked_s = time.monotonic()
        try:
            messages.send(self._out, kind, payload)
        except BrokenPipeError:
            return  # the answer says that it died

    def _answer(self, expected: int) -> bytes:
        try:
            answer = messages.receive(self._in, self._asked_s + self._timeout_s, self._timeout_s)
        except TimeoutError:
            raise EnvironmentHangs(f"no answer within {self._timeout_s:g} s; its process is ended") from None
        except EOFError:
            code = self._process.wait(timeout=_KILL_TIMEOUT_S)
            raise EnvironmentDied(f"its process ended with exit code {code}") from None
        if answer.kind == messages.FAILED:
            self._pending = False
            name, _, line = answer.payload.decode().partition(": ")
            raise UserError(line) if name == "UserError" else RuntimeError(f"{name}: {line}")
        if answer.kind != expected:
            raise EnvironmentDied(f"it answered with a message of kind {answer.kind} instead of {expected}")
        return answer.payload


def _has_descriptor(stream: Any) -> bool:
    """Whether a stream is a real file, which under some test runners it is not."""
    try:
        return stream.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
