"""One environment in a process of its own: it runs beside the others, and when it hangs it can be ended.

`LoopVectorEnvironment` sends every process its action before it waits for the first answer. The two ends of a socket
pair are the worker's and its own process's, nobody else's:

    worker → process   the configuration and the view, then ("reset", seed) or ("step", action)
    process → worker   its two spaces, then what `reset` or `step` returned, or a `Failure` as its last word

Why not `gymnasium.vector.AsyncVectorEnv`: one environment that hangs or dies ends all others with it and is not named,
making and closing wait without a bound, and it makes one more environment in the worker to ask for the spaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import gymnasium
from gymnasium.spaces import Space

from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError

_CLOSE_TIMEOUT_S = 2.0
_KILL_TIMEOUT_S = 10.0
_PR_SET_PDEATHSIG = 1
_CHILD = "from dba3c.environments import factory, process_env; process_env.serve({}, factory.maker_of)"


class EnvironmentHangs(RuntimeError):
    """It did not answer in time."""


class EnvironmentDied(RuntimeError):
    """Its process is gone."""


class Failure(NamedTuple):
    """What an environment raised, in one line."""

    line: str
    is_user_error: bool


class ProcessEnv(gymnasium.Env[Any, Any]):
    """The worker's end. It starts the process and waits for it only when something is asked."""

    def __init__(self, config: EnvironmentConfig, view: str) -> None:
        self._timeout_s = config.environment_timeout_s
        self._pipe, theirs = Pipe()
        paths = os.pathsep.join(path for path in sys.path if path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD.format(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            )
        self._unanswered = 0
        self._ask((config, view))

    @cached_property
    def _spaces(self) -> tuple[Space[Any], Space[Any]]:
        """(observation space, action space), which are the process's first answer."""
        return self._answer()

    @property
    def observation_space(self) -> Space[Any]:  # type: ignore[override]
        """The environment's own."""
        return self._spaces[0]

    @property
    def action_space(self) -> Space[Any]:  # type: ignore[override]
        """The environment's own."""
        return self._spaces[1]

    def send_reset(self, seed: int | None) -> None:
        """Ask for a new game and do not wait."""
        self._ask(("reset", seed))

    def send_step(self, action: Any) -> None:
        """Ask for a step and do not wait."""
        self._ask(("step", action))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The answer to `send_reset`, which is sent now if it was not."""
        _ = self._spaces  # the first answer, whether anybody looked at it or not
        if not self._unanswered:
            self.send_reset(seed)
        return self._answer(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The answer to `send_step`, which is sent now if it was not."""
        if not self._unanswered:
            self.send_step(action)
        return self._answer()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._pipe.close()
        try:
            self._process.wait(timeout=0.0 if self._unanswered else _CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=_KILL_TIMEOUT_S)

    def _ask(self, question: Any) -> None:
        self._unanswered, self._asked_s = self._unanswered + 1, time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer says that it died
            self._pipe.send(question)

    def _answer(self) -> Any:
        """What has come, or comes within the timeout. Not one deadline for all of it: a socket holds the beginning of a
        large answer, and who was in time can send the rest only while it is read, which may be after somebody else's.
        """
        try:
            if not self._pipe.poll(max(self._asked_s + self._timeout_s - time.monotonic(), 0.0)):
                raise EnvironmentHangs(f"no answer within {self._timeout_s:g} s; its process is ended")
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            code = self._process.wait(timeout=_KILL_TIMEOUT_S)
            raise EnvironmentDied(f"its process ended with exit code {code}") from None
        self._unanswered -= 1
        if isinstance(answer, Failure):
            raise (UserError if answer.is_user_error else RuntimeError)(answer.line)
        return answer


def serve(descriptor: int, maker_of: Callable[[EnvironmentConfig, str], Callable[[], gymnasium.Env[Any, Any]]]) -> None:
    """The environment's end: play what is asked until the worker closes its own."""
    # A hung environment must not outlive its worker; Ctrl-C reaches the worker, which closes us.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(descriptor) as pipe:
        try:
            config, view = pipe.recv()
            env = maker_of(config, view)()
            pipe.send((env.observation_space, env.action_space))
            while True:
                try:
                    question, argument = pipe.recv()
                except (EOFError, ConnectionResetError):  # the worker wants no more
                    env.close()
                    return
                if question == "reset":
                    observation, _ = env.reset(seed=argument)
                    pipe.send(observation)
                else:
                    *played, info = env.step(argument)
                    pipe.send((*played, {key: info[key] for key in ("score_reward",) if key in info}))
        except Exception as error:  # whatever a stranger's environment raises is named by the worker
            line = " ".join(
                (str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}").split()
            )
            with contextlib.suppress(OSError):  # the worker is gone and wants no answer
                pipe.send(Failure(line, isinstance(error, UserError)))
