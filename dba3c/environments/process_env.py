"""One environment in a process of its own: it runs beside the others, and when it hangs it can be ended.

`LoopVectorEnvironment` sends every process its action before it waits for the first answer. On a socket pair:

    worker → process   the configuration (JSON), then RESET and a seed (JSON), or STEP and the action's bytes
    process → worker   its two spaces (JSON), then numbers and the observation's bytes, or as its last word a line

Nothing is pickled: what an environment returns is written as `ObservationCodec` writes it, in the process.

Why not `gymnasium.vector.AsyncVectorEnv`: one environment that hangs or dies ends all others with it and is not named,
making and closing wait without a bound, and it makes one more environment in the worker to ask for the spaces.
"""

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from multiprocessing.connection import Connection, Pipe
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.protocol import number
from dba3c.environments.spaces import ActionCodec, CodedBox, MixedSpace, ObservationCodec
from dba3c.errors import UserError
from dba3c.own_code import ANYTHING, RaisedInProcess, ignore_here, one_line
from param_servers.libc import LIBC, PR_SET_PDEATHSIG
from param_servers.timeouts import NAP_S, AwakeClock

_CLOSE_TIMEOUT_S = 2.0
_KILL_TIMEOUT_S = 10.0
_RESET, _STEP, _ANSWER, _RAISED, _USER_ERROR = (bytes([kind]) for kind in range(5))
_PLAYED = struct.Struct("<dd???")  # reward, score_reward, whether that was given, terminated, truncated
_LARGEST_WORDS = 1 << 20  # bytes of what is no observation
_CHILD = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); "  # no file in the current directory is taken for ours
    "from dba3c.environments import factory, process_env; process_env.serve({}, factory.maker_of)"
)


class EnvironmentHangs(RuntimeError):
    """It did not answer in time."""


class EnvironmentDied(RuntimeError):
    """Its process is gone."""


class ProcessEnv(gymnasium.Env[Any, Any]):
    """The worker's end. It starts the process and waits for it only when something is asked."""

    _now_s = AwakeClock(2 * NAP_S).now_s
    """Of all: while this process is stopped, so are theirs, and those that hang together share one timeout."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._timeout_s = config.environment_timeout_s
        self._pipe, theirs = Pipe()
        _bound_reads(self._pipe, self._timeout_s)
        paths = os.pathsep.join(path for path in sys.path if isinstance(path, str) and path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD.format(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            )
        self._unanswered = 0
        self._ask(json.dumps(asdict(config)).encode())

    @cached_property
    def _spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Of observations, as `ObservationCodec` made it, and of actions: the process's first answer."""
        observation, action = map(_space, json.loads(self._answer(_LARGEST_WORDS)))
        return observation, action

    observation_space = property(lambda self: self._spaces[0])  # type: ignore[assignment]
    action_space = property(lambda self: self._spaces[1])  # type: ignore[assignment]

    def send_reset(self, seed: int | None) -> None:
        """Ask for a new game and do not wait."""
        self._ask(_RESET + json.dumps(seed).encode())

    def send_step(self, action: Any) -> None:
        """Ask for a step and do not wait."""
        self._ask(_STEP + np.asarray(action, dtype=self.action_space.dtype).tobytes())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The answer to `send_reset`, which is sent now if it was not."""
        _ = self._spaces  # the first answer, whether anybody looked at it or not
        if not self._unanswered:
            self.send_reset(seed)
        return self._played()[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The answer to `send_step`, which is sent now if it was not."""
        if not self._unanswered:
            self.send_step(action)
        observation, (reward, score_reward, scored, terminated, truncated) = self._played()
        return observation, reward, terminated, truncated, {"score_reward": score_reward} if scored else {}

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._pipe.close()
        try:
            self._process.wait(timeout=0.0 if self._unanswered else _CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=_KILL_TIMEOUT_S)

    def _played(self) -> tuple[np.ndarray, tuple[Any, ...]]:
        space = self._spaces[0]
        size = _PLAYED.size + int(np.prod(space.shape or ())) * np.dtype(space.dtype).itemsize
        answer = self._answer(size)
        if len(answer) != size:
            raise EnvironmentDied(f"it answered with {len(answer)} bytes instead of {size}")
        observation = np.frombuffer(answer, dtype=space.dtype, offset=_PLAYED.size).reshape(space.shape)
        return observation, _PLAYED.unpack_from(answer)

    def _ask(self, question: bytes) -> None:
        self._unanswered, self._asked_s = self._unanswered + 1, self._now_s()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer says that it died
            self._pipe.send_bytes(question)

    def _answer(self, largest: int) -> bytes:
        """What has come, or comes within the timeout. Not one deadline for all of it: a socket holds the beginning of a
        large answer, and who was in time can send the rest only while it is read, which may be after somebody else's.
        """
        try:
            if not self._comes_in_time():
                raise EnvironmentHangs(f"no answer within {self._timeout_s:g} s; its process is ended")
            message = self._pipe.recv_bytes(max(largest, _LARGEST_WORDS) + 1)
        except BlockingIOError:  # see `_bound_reads`
            raise EnvironmentHangs(f"nothing more of its answer within {self._timeout_s:g} s") from None
        except (EOFError, OSError) as error:
            if not self._pipe.readable:  # it is larger than anything that it may say; nothing of it has been read
                raise EnvironmentDied(f"it answered with too large a message ({error})") from None
            code = self._process.wait(timeout=_KILL_TIMEOUT_S)
            raise EnvironmentDied(f"its process ended with exit code {code}") from None
        self._unanswered -= 1
        if message[:1] != _ANSWER:
            line = message[1:].decode(errors="replace")
            raise UserError(line) if message[:1] == _USER_ERROR else RaisedInProcess(line)
        return message[1:]

    def _comes_in_time(self) -> bool:
        deadline_s = self._asked_s + self._timeout_s
        while (left_s := deadline_s - self._now_s()) > 0:
            if self._pipe.poll(min(left_s, NAP_S)):
                return True
        return self._pipe.poll(0.0)


def _bound_reads(pipe: Connection, timeout_s: float) -> None:
    """No byte of a message for so long raises BlockingIOError: its process was stopped while it sent it."""
    seconds = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)


def _described(space: Space[Any]) -> dict[str, Any]:
    """A space that `ObservationCodec` made or `ActionCodec` took, as JSON: its kind, and what it is made with."""
    if isinstance(space, MixedSpace):
        return {"kind": "MixedSpace", "images": space.images, "vector_size": space.vector_size}
    dtype = str(space.dtype)
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "dtype": dtype, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "dtype": dtype, "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    assert isinstance(space, spaces.Box)
    return {
        "kind": "CodedBox" if isinstance(space, CodedBox) else "Box",
        "dtype": dtype,
        "shape": space.shape,
        "low": _bound(space.low),
        "high": _bound(space.high),
    }


def _bound(numbers: np.ndarray) -> list[float]:
    """One number where all are the same, as of observations, of which there may be millions."""
    different = np.unique(numbers)
    return (different if len(different) < 2 else numbers).tolist()


def _space(described: dict[str, Any]) -> Space[Any]:
    """What `_described` described."""
    kind = described.pop("kind")
    if kind == "MixedSpace":
        return MixedSpace([tuple(image) for image in described["images"]], described["vector_size"])
    dtype = np.dtype(described.pop("dtype"))
    if kind in ("Box", "CodedBox"):
        shape = described.pop("shape")
        described = {bound: np.full(shape, values, dtype) for bound, values in described.items()}
    made: Any = CodedBox if kind == "CodedBox" else getattr(spaces, kind)
    return made(**described, dtype=dtype.type)  # type: ignore[no-any-return]


def serve(descriptor: int, maker_of: Callable[[EnvironmentConfig], Callable[[], gymnasium.Env[Any, Any]]]) -> None:
    """The environment's end: play what is asked until the worker closes its own."""
    # A hung environment must not outlive its worker; what ends all processes (Ctrl-C, a cgroup's SIGTERM) reaches the
    # worker, too, which goes on to its next step and closes us.
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    ignore_here(signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    os.set_inheritable(descriptor, False)  # a child of the environment's would keep it open when this process is dead
    with Connection(descriptor) as pipe:
        try:
            config = EnvironmentConfig(**json.loads(pipe.recv_bytes()))
            _play(pipe, config.env_id, maker_of(config)())
        except ANYTHING as error:  # whatever a stranger's environment raises is named by the worker
            is_user_error = isinstance(error, UserError)
            line = " ".join(str(error).split()) if is_user_error else one_line(error)
            with contextlib.suppress(OSError):  # the worker is gone and wants no answer
                pipe.send_bytes((_USER_ERROR if is_user_error else _RAISED) + line.encode()[:_LARGEST_WORDS])


def _play(pipe: Connection, env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    """Until the worker wants no more."""
    observations, actions = ObservationCodec(env_id, env.observation_space), ActionCodec(env_id, env.action_space).space
    row = np.empty(observations.space.shape, observations.space.dtype)
    pipe.send_bytes(_ANSWER + json.dumps([_described(observations.space), _described(actions)]).encode())
    while True:
        try:
            question = pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            env.close()
            return
        if question[:1] == _RESET:
            seed = json.loads(question[1:])
            if seed is not None:  # for what draws from the generators that all code shares
                random.seed(seed)
                np.random.seed(seed % 2**32)
            observation, _ = env.reset(seed=seed)
            played = _PLAYED.pack(0.0, 0.0, False, False, False)
        else:
            # an array that may be written to, or where it has no dimension its number
            action = np.frombuffer(question, actions.dtype, offset=1).reshape(actions.shape or ()).copy()[()]
            observation, reward, terminated, truncated, info = env.step(action)
            numbers = (number(reward), number(info.get("score_reward", 0.0)), "score_reward" in info)
            played = _PLAYED.pack(*numbers, bool(terminated), bool(truncated))
        observations.write(observation, row)
        pipe.send_bytes(_ANSWER + played + row.tobytes())
