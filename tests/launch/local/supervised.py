"""A supervisor in a thread of the test, and stand-ins for the roles that it starts."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import psutil

from launch.local.fork_server import ForkServer
from launch.local.role_process import RoleProcess
from launch.local.supervisor import Supervisor
from tests.waiting import wait_until

STAND_IN = "tests.launch.local.stand_in"
LONG_S = 20.0


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Lab:
    """A supervisor in a thread, its stand-ins, and what it said."""

    def __init__(self, fork_server: ForkServer, run_dir: Path) -> None:
        self.fork_server = fork_server
        self.supervisor: Supervisor | None = None
        self.run_dir = run_dir
        self.said: list[str] = []
        self.events: list[str] = []
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)

    def process(self, role: str, rank: int, behaviour: str, **options: object) -> RoleProcess:
        def words(incarnation: int) -> list[str]:
            return [str(self.run_dir), f"{role}-{rank}", behaviour, str(incarnation)]

        return RoleProcess(role=role, rank=rank, words=words, main=f"{STAND_IN}:main", **options)  # type: ignore[arg-type]

    def request_stop(self, reason: str, failed: bool = False) -> None:
        (self.run_dir / "stop.json").write_text(json.dumps({"reason": reason, "failed": failed}))

    def start(
        self,
        *processes: RoleProcess,
        stop_timeout_s: float = LONG_S,
        terminate_timeout_s: float = 1.0,
        whole_run: bool = True,
        stays: bool = False,
        joins_late: bool = False,
    ) -> None:
        self.supervisor = Supervisor(
            self.fork_server,
            self.run_dir,
            processes,
            self.request_stop,
            on_event=lambda event, _: self.events.append(event),
            say=self.said.append,
            stop_timeout_s=stop_timeout_s,
            whole_run=whole_run,
            stays=stays,
            joins_late=joins_late,
            terminate_timeout_s=terminate_timeout_s,
            refused_timeout_s=1.0,
        )
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def signal(self, signum: signal.Signals) -> None:
        """As the operating system would tell the main thread."""
        self.supervisor.take_signal(signum)

    def pid(self, name: str, incarnation: int = 0) -> int:
        path = self.run_dir / f"{name}.{incarnation}.pid"
        wait_until(path.exists, f"{name} as incarnation {incarnation}")
        return int(path.read_text())

    def finish(self) -> int:
        self.thread.join(LONG_S)
        assert not self.thread.is_alive(), f"the supervisor still waits for {self.supervisor.pids()}: {self.said}"
        assert self.code is not None
        return self.code
