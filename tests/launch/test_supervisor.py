"""Real processes, real faults: what is restarted, what ends a run, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launch.failures import failures, report
from launch.role_process import RoleProcess
from launch.supervisor import Supervisor

STAND_IN = Path(__file__).with_name("stand_in.py")
LONG_S = 20.0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = LONG_S) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


class Lab:
    """A supervisor in a thread, its stand-ins, and what it said."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.said: list[str] = []
        self.events: list[str] = []
        self.code: int | None = None

    def process(self, role: str, rank: int, behaviour: str, **options: object) -> RoleProcess:
        def command(incarnation: int) -> list[str]:
            name = f"{role}-{rank}"
            return [sys.executable, str(STAND_IN), str(self.run_dir), name, behaviour, str(incarnation)]

        return RoleProcess(role=role, rank=rank, command=command, **options)  # type: ignore[arg-type]

    def request_stop(self, reason: str) -> None:
        (self.run_dir / "stop.json").write_text(json.dumps({"reason": reason}))

    def start(self, *processes: RoleProcess, stop_timeout_s: float = LONG_S) -> None:
        self.supervisor = Supervisor(
            self.run_dir,
            processes,
            self.request_stop,
            on_event=lambda event, _: self.events.append(event),
            say=self.said.append,
            stop_timeout_s=stop_timeout_s,
            terminate_timeout_s=1.0,
            refused_timeout_s=1.0,
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def signal(self, signum: signal.Signals) -> None:
        """As the operating system would tell the main thread."""
        self.supervisor._happened.put(("signal", "", signum))

    def pid(self, name: str, incarnation: int = 0) -> int:
        path = self.run_dir / f"{name}.{incarnation}.pid"
        wait_until(path.exists, f"{name} as incarnation {incarnation}")
        return int(path.read_text())

    def finish(self) -> int:
        self.thread.join(LONG_S)
        assert not self.thread.is_alive(), f"the supervisor still waits for {self.supervisor.pids()}: {self.said}"
        assert self.code is not None
        return self.code


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    for pid in lab.supervisor.pids().values():
        os.kill(pid, signal.SIGKILL)
    lab.thread.join(LONG_S)


def test_a_run_ends_when_its_deciding_process_ends_and_the_others_follow(lab: Lab) -> None:
    lab.start(
        lab.process("server", 0, "obedient"),
        lab.process("worker", 0, "obedient"),
        lab.process("monitor", 0, "obedient", decides=False, essential=False),
    )
    lab.pid("worker-0")
    lab.request_stop("score reached")
    assert lab.finish() == 0
    assert lab.said == []


def test_a_killed_worker_is_replaced_as_the_next_incarnation(lab: Lab) -> None:
    lab.start(
        lab.process("server", 0, "obedient"), lab.process("worker", 1, "obedient", max_restarts=2, essential=False)
    )
    os.kill(lab.pid("worker-1"), signal.SIGKILL)
    second = lab.pid("worker-1", incarnation=1)
    assert lab.supervisor.pids()["worker 1"] == second
    assert lab.said == ["worker 1: killed by SIGKILL; starting it again (1 of at most 2 times)"]
    lab.request_stop("enough")
    assert lab.finish() == 0
    log = (lab.run_dir / "logs" / "worker-1.log").read_text()
    assert "incarnation 0" in log
    assert "incarnation 1" in log


def test_a_worker_that_may_be_left_is_left_and_the_run_goes_on(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 0, "obedient", essential=False))
    lab.pid("server-0")
    os.kill(lab.pid("worker-0"), signal.SIGKILL)
    wait_until(lambda: "left" in lab.events, "the loss to be told")
    assert list(lab.supervisor.pids()) == ["server 0"]
    lab.request_stop("enough")
    assert lab.finish() == 0


def test_restarts_are_bounded_and_then_the_run_ends_with_the_failing_code(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "fails", max_restarts=2), lab.process("worker", 0, "obedient"))
    assert lab.finish() == 1
    assert lab.events == ["restarted", "restarted", "stopping"]
    assert json.loads((lab.run_dir / "stop.json").read_text())["reason"] == "server 0 failed (exit code 1)"


def test_the_failing_role_s_traceback_is_the_last_thing_said_and_is_kept(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 3, "fails"))
    assert lab.finish() == 1
    assert lab.said[-2].startswith("dba3c: worker 3 failed (exit code 1); the end of its log")
    assert lab.said[-1].splitlines()[-1] == "RuntimeError: worker-3 has a fault of its own"
    assert [failure.rank for failure in failures(lab.run_dir)] == [3]
    assert report(lab.run_dir).splitlines()[-1] == "RuntimeError: worker-3 has a fault of its own"


def test_bad_input_is_not_tried_again(lab: Lab) -> None:
    lab.start(
        lab.process("server", 0, "obedient"), lab.process("worker", 0, "bad-input", max_restarts=5, essential=False)
    )
    assert lab.finish() == 2
    assert "restarted" not in lab.events
    assert lab.said[-1].splitlines()[-1] == "no such game"


def test_a_refused_input_ends_those_that_nobody_else_would_end_within_seconds(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "bad-input"), lab.process("worker", 0, "deaf"))
    lab.pid("worker-0")
    assert lab.finish() == 2
    assert lab.events == ["stopping", "killing"]  # not terminating: a worker takes that for a request it has heard
    assert json.loads((lab.run_dir / "stop.json").read_text())["reason"] == "server 0: no such game"
    assert lab.said[-1].splitlines()[-1] == "no such game"


def test_a_broken_monitor_does_not_end_the_run(lab: Lab) -> None:
    lab.start(
        lab.process("server", 0, "obedient"), lab.process("monitor", 0, "bad-input", decides=False, essential=False)
    )
    wait_until(lambda: "left" in lab.events, "the monitor's end to be told")
    lab.request_stop("enough")
    assert lab.finish() == 0


def test_when_nobody_is_left_to_end_the_run_it_has_failed(lab: Lab) -> None:
    lab.start(
        lab.process("worker", 0, "obedient", essential=False),
        lab.process("monitor", 0, "obedient", decides=False, essential=False),
    )
    os.kill(lab.pid("worker-0"), signal.SIGKILL)
    assert lab.finish() == 128 + signal.SIGKILL


def test_a_checkpoint_that_fails_after_the_request_to_stop_fails_the_run(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "breaks-at-the-end"))
    lab.pid("server-0")
    lab.signal(signal.SIGTERM)
    assert lab.finish() == 1


def test_ctrl_c_asks_for_a_clean_end(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 0, "obedient"))
    lab.pid("worker-0")
    lab.pid("server-0")
    lab.signal(signal.SIGINT)
    assert lab.finish() == 0
    assert json.loads((lab.run_dir / "stop.json").read_text())["reason"] == "SIGINT"


def test_ctrl_c_twice_terminates_and_three_times_kills(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "deaf"), lab.process("worker", 0, "stubborn"))
    deaf, stubborn = lab.pid("server-0"), lab.pid("worker-0")
    lab.signal(signal.SIGINT)
    lab.signal(signal.SIGINT)
    wait_until(lambda: gone(stubborn), "the worker to be terminated")
    assert not gone(deaf)
    lab.signal(signal.SIGINT)
    assert lab.finish() == 128 + signal.SIGINT
    assert gone(deaf)


def test_a_launcher_that_repeats_sigterm_does_not_cost_the_checkpoint(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"))
    lab.pid("server-0")
    lab.signal(signal.SIGTERM)
    lab.signal(signal.SIGTERM)
    assert lab.finish() == 0
    assert lab.events == ["stopping"]


def test_a_process_that_stays_when_the_run_has_ended_is_killed_within_the_stated_time(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 0, "deaf", drain_timeout_s=0.2))
    deaf = lab.pid("worker-0")
    lab.pid("server-0")
    lab.request_stop("enough")
    assert lab.finish() == 0
    assert gone(deaf)
    assert lab.events[-2:] == ["terminating", "killing"]


def test_what_a_killed_process_had_started_dies_with_it(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 0, "parent", essential=False))
    os.kill(lab.pid("worker-0"), signal.SIGKILL)
    grandchild = int((lab.run_dir / "worker-0.grandchild").read_text())
    wait_until(lambda: gone(grandchild), "the grandchild's end")
    lab.pid("server-0")
    lab.request_stop("enough")
    assert lab.finish() == 0


def test_a_rank_that_has_not_heard_of_the_run_s_end_leaves_in_bounded_time(lab: Lab) -> None:
    lab.start(lab.process("worker", 0, "deaf", drain_timeout_s=0.2))
    deaf = lab.pid("worker-0")
    lab.supervisor.run_has_ended(well=True)
    assert lab.finish() == 0
    assert gone(deaf)


MAIN = """
import json, sys
from pathlib import Path
from launch.role_process import RoleProcess
from launch.supervisor import Supervisor
run_dir, stand_in = Path(sys.argv[1]), sys.argv[2]
command = lambda name, how: lambda incarnation: [sys.executable, stand_in, str(run_dir), name, how, str(incarnation)]
stop = lambda reason: (run_dir / "stop.json").write_text(json.dumps({"reason": reason}))
roles = [RoleProcess(role=how, rank=0, command=command(how, how)) for how in sys.argv[3:]]
sys.exit(Supervisor(run_dir, roles, stop, stop_timeout_s=20).run())
"""


def test_a_real_ctrl_c_ends_a_real_command_with_0(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAIN, str(tmp_path), str(STAND_IN), "obedient"]
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "obedient.0.pid").exists, "the role")
    launcher.send_signal(signal.SIGINT)
    _, said = launcher.communicate(timeout=LONG_S)
    assert launcher.returncode == 0
    assert said.splitlines() == [
        "SIGINT; ending the run with a checkpoint",
        "once more to end without a checkpoint",
    ]


def test_when_the_launcher_is_killed_its_processes_die(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAIN, str(tmp_path), str(STAND_IN), "stubborn"]
    launcher = subprocess.Popen(command)
    wait_until((tmp_path / "stubborn.0.pid").exists, "the role")
    role = int((tmp_path / "stubborn.0.pid").read_text())
    launcher.kill()
    launcher.wait(LONG_S)
    wait_until(lambda: gone(role), "the orphan's end")


ORPHAN = """
import signal, sys, time
from launch.processes import exit_with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
exit_with_parent(grace_s=0.2)
open(sys.argv[1] + ".tmp", "w").write(str(__import__("os").getpid()))
__import__("os").rename(sys.argv[1] + ".tmp", sys.argv[1])
time.sleep(60)
"""


def test_an_orphan_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    start = (
        "import os, sys, time; from pathlib import Path; from launch.processes import Child;"
        f"command = [sys.executable, '-c', {ORPHAN!r}, {str(ready)!r}];"
        f"Child(command, Path({str(tmp_path / 'log')!r}), os.environ, print);"
        "time.sleep(60)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", start])
    wait_until(ready.exists, "the child")
    launcher.kill()
    launcher.wait(LONG_S)
    orphan = int(ready.read_text())
    wait_until(lambda: gone(orphan), "the orphan's end")
