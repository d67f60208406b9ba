"""Real processes, real signals: who is asked to end, who is made to, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dba3c.errors import RUN_ENDED_BROKEN_EXIT
from launch.local import supervisor
from tests.launch.local.supervised import LONG_S, STAND_IN, Lab, gone
from tests.waiting import wait_until


def test_ctrl_c_asks_for_a_clean_end(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 0, "obedient"))
    lab.pid("worker-0")
    lab.pid("server-0")
    lab.signal(signal.SIGINT)
    assert lab.finish() == 0
    assert json.loads((lab.run_dir / "stop.json").read_text())["reason"] == "SIGINT"


def test_ctrl_c_twice_terminates_and_three_times_kills(lab: Lab) -> None:
    behaviours = lab.process("server", 0, "deaf"), lab.process("worker", 0, "stubborn")
    lab.start(*behaviours, terminate_timeout_s=LONG_S)
    deaf, stubborn = lab.pid("server-0"), lab.pid("worker-0")
    lab.signal(signal.SIGINT)
    lab.signal(signal.SIGINT)
    wait_until(lambda: gone(stubborn), "the worker to be terminated")
    assert not gone(deaf)
    lab.signal(signal.SIGINT)
    assert lab.finish() == 128 + signal.SIGINT
    assert gone(deaf)


def test_ctrl_c_leaves_who_writes_the_last_checkpoint_its_time_when_the_other_ranks_have_ended(lab: Lab) -> None:
    ranks = (
        lab.process("worker", rank, what, saves_alone=True) for rank, what in ((0, "saves-at-the-end"), (1, "ends"))
    )
    lab.start(*ranks, terminate_timeout_s=0.1)
    lab.pid("worker-0")
    wait_until(lambda: lab.supervisor._phase == supervisor.ENDING, "the other rank's end")
    lab.signal(signal.SIGINT)
    assert lab.finish() == 0 and (lab.run_dir / "worker-0.saved").exists()


def test_a_run_whose_last_checkpoint_was_not_given_its_time_has_not_ended_well(lab: Lab) -> None:
    ranks = [
        lab.process("worker", rank, what, saves_alone=True) for rank, what in enumerate(("saves-for-ever", "ends"))
    ]
    lab.start(*ranks, terminate_timeout_s=0.1)
    lab.pid("worker-0")
    wait_until(lambda: lab.supervisor._phase == supervisor.ENDING, "the other rank's end")
    lab.signal(signal.SIGINT)
    lab.signal(signal.SIGINT)
    assert lab.finish() == 128 + signal.SIGINT
    assert lab.supervisor.cause == "worker 0 was terminated before it had written the last checkpoint"


def test_a_launcher_that_repeats_sigterm_does_not_cost_the_checkpoint(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"))
    lab.pid("server-0")
    lab.signal(signal.SIGTERM)
    lab.signal(signal.SIGTERM)
    assert lab.finish() == 0
    assert lab.events == ["stopping"]


def test_a_replacement_that_is_preempted_ends_its_own_processes_and_not_the_run(lab: Lab) -> None:
    worker = lab.process("worker", 1, "stubborn", essential=False, decides=False, max_restarts=1)
    lab.start(
        lab.process("server", 0, "stubborn"), worker, joins_late=True, whole_run=False, terminate_timeout_s=LONG_S
    )
    lab.pid("server-0")
    lab.pid("worker-1")
    lab.signal(signal.SIGTERM)
    assert lab.finish() == 128 + signal.SIGTERM
    assert lab.events == ["terminating"]
    assert not (lab.run_dir / "stop.json").exists()


def test_a_scheduler_that_repeats_sigterm_at_the_end_of_its_grace_time_does_not_cost_the_checkpoint(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "request_stop", lambda reason, failed: None)  # so that it does not end in between
    lab.start(lab.process("server", 0, "saves-at-the-end"))
    lab.pid("server-0")
    lab.signal(signal.SIGTERM)
    wait_until(lambda: lab.events == ["stopping"], "the first to be heard")
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 60))
    lab.signal(signal.SIGTERM)
    (lab.run_dir / "stop.json").touch()
    assert lab.finish() == 0 and (lab.run_dir / "server-0.saved").exists()
    assert lab.events == ["stopping"]


def test_a_process_that_stays_when_the_run_has_ended_is_killed_within_the_stated_time(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 0, "deaf", drain_timeout_s=0.2))
    deaf = lab.pid("worker-0")
    lab.pid("server-0")
    lab.request_stop("enough")
    assert lab.finish() == 0
    assert gone(deaf)
    assert lab.events[-2:] == ["terminating", "killing"]


def test_who_may_take_longer_keeps_the_others_no_longer_than_it_takes_itself(lab: Lab) -> None:
    lab.start(
        lab.process("server", 0, "obedient"),
        lab.process("worker", 0, "deaf", drain_timeout_s=0.2),
        lab.process("evaluator", 0, "obedient", essential=False, decides=False, drain_timeout_s=LONG_S),
    )
    deaf = lab.pid("worker-0")
    lab.pid("server-0")
    lab.pid("evaluator-0")
    lab.request_stop("enough")  # the evaluator ends at once, too
    assert lab.finish() == 0
    assert gone(deaf)


def test_who_still_writes_when_the_processes_were_stopped_for_long_is_given_its_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [lab.process("server", rank, "saves-at-sigterm", drain_timeout_s=LONG_S) for rank in (0, 1)]
    lab.start(*ends, lab.process("server", 2, "obedient", drain_timeout_s=LONG_S))
    first, second, _ = (lab.pid(f"server-{rank}") for rank in range(3))
    os.kill(first, signal.SIGTERM)
    wait_until(lambda: lab.supervisor._phase == supervisor.ENDING, "the first one's end")
    monkeypatch.setattr(lab.supervisor._now_s.__self__, "_clock", lambda: time.monotonic() + 600)
    os.kill(second, signal.SIGTERM)
    wait_until(lambda: "server 1" not in lab.supervisor.pids(), "the second one's end")
    lab.request_stop("enough")
    assert lab.finish() == 0
    assert lab.events == []


def test_what_a_killed_process_had_started_dies_with_it(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("monitor", 0, "parent", essential=False))
    os.kill(lab.pid("monitor-0"), signal.SIGKILL)
    grandchild = int((lab.run_dir / "monitor-0.grandchild").read_text())
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


def test_an_end_that_had_to_be_forced_where_no_signal_came_is_no_interruption(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "deaf"))
    lab.pid("server-0")
    lab.supervisor.run_has_ended(well=False)
    assert lab.finish() == RUN_ENDED_BROKEN_EXIT
    assert lab.events == ["killing"]


@pytest.mark.parametrize(("saves_alone", "is_young"), [(True, False), (True, True), (False, False)])
def test_who_keeps_what_is_left_of_a_run_that_failed_elsewhere_is_given_the_time_of_a_checkpoint(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, saves_alone: bool, is_young: bool
) -> None:
    lab.start(lab.process("worker", 1, "obedient", saves_alone=saves_alone))
    worker = lab.pid("worker-1")
    age_s = 0.0 if is_young else 600.0
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + age_s))
    lab.supervisor.run_has_ended(well=False)
    wait_until(lambda: lab.supervisor._phase != supervisor.RUNNING, "the run's end to be heard of")
    if saves_alone and not is_young:
        reads, now_s = [], lab.supervisor._now_s
        later_s = 5 * lab.supervisor.refused_timeout_s
        monkeypatch.setattr(lab.supervisor, "_now_s", lambda: reads.append(0) or now_s() + later_s)
        wait_until(lambda: len(reads) > 2, "it to look whether that is too slow")
        lab.request_stop("enough")  # its checkpoint is there
    lab.finish()
    assert gone(worker)
    assert lab.events == ([] if saves_alone and not is_young else ["killing"])


MAIN = """
import json, sys
from pathlib import Path
from launch.output import harmless_output
from launch.local.child import taking_signals
from launch.local.fork_server import ForkServer
from launch.local.role_process import RoleProcess
from launch.local.supervisor import Supervisor
run_dir, stand_in = Path(sys.argv[1]), sys.argv[2]
words = lambda how: lambda incarnation: [str(run_dir), how, how, str(incarnation)]
stop = lambda reason, failed: (run_dir / "stop.json").write_text(json.dumps({"reason": reason}))
roles = [RoleProcess(role=how, rank=0, words=words(how), main=stand_in + ":main") for how in sys.argv[3:]]
with harmless_output(), ForkServer([stand_in]) as fork_server:
    supervisor = Supervisor(fork_server, run_dir, roles, stop, stop_timeout_s=20)
    with taking_signals(supervisor.take_signal):
        code = supervisor.run()
sys.exit(code)
"""


def test_a_real_ctrl_c_ends_a_real_command_with_0(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAIN, str(tmp_path), STAND_IN, "obedient"]
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "obedient.0.pid").exists, "the role")
    launcher.send_signal(signal.SIGINT)
    _, said = launcher.communicate(timeout=3 * LONG_S)
    assert launcher.returncode == 0
    assert said.splitlines() == [
        "SIGINT; ending the run with a checkpoint",
        "once more leaves the checkpoint a few seconds, a third time none",
    ]


@pytest.mark.parametrize("lost", ["terminal", "pipe"])
def test_a_launcher_that_cannot_say_anything_any_more_still_asks_for_a_clean_end(tmp_path: Path, lost: str) -> None:
    ours, its = pty.openpty() if lost == "terminal" else os.pipe()
    command = [sys.executable, "-c", MAIN, str(tmp_path), STAND_IN, "obedient"]
    launcher = subprocess.Popen(command, stdout=its, stderr=its)
    os.close(its)
    wait_until((tmp_path / "obedient.0.pid").exists, "the role")
    os.close(ours)
    launcher.send_signal(signal.SIGHUP)
    launcher.wait(LONG_S)
    assert json.loads((tmp_path / "stop.json").read_text())["reason"] == "SIGHUP"
    wait_until(lambda: gone(int((tmp_path / "obedient.0.pid").read_text())), "the role's own end")
    assert (tmp_path / "logs" / "obedient-0.log").read_text().splitlines()[-1] == "obedient ended as asked"


def test_a_launcher_whose_terminal_stands_still_ends_the_run_all_the_same(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    command = [sys.executable, "-c", MAIN, str(tmp_path), STAND_IN, "obedient"]
    launcher = subprocess.Popen(command, stdout=its, stderr=its)
    try:
        wait_until((tmp_path / "obedient.0.pid").exists, "the role")
        termios.tcflow(its, termios.TCOOFF)  # Ctrl-S
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(LONG_S) == 0
    finally:
        launcher.kill()
        os.close(ours)
        os.close(its)


def test_nohup_keeps_a_run_going_when_its_terminal_goes(tmp_path: Path) -> None:
    command = ["nohup", sys.executable, "-c", MAIN, str(tmp_path), STAND_IN, "obedient"]
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until((tmp_path / "obedient.0.pid").exists, "the role")
    launcher.send_signal(signal.SIGHUP)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(LONG_S) == 0
    assert json.loads((tmp_path / "stop.json").read_text())["reason"] == "SIGTERM"


def test_when_the_launcher_is_killed_its_processes_are_asked_for_a_checkpoint_and_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAIN, str(tmp_path), STAND_IN, "saves-at-sigterm"]
    launcher = subprocess.Popen(command)
    wait_until((tmp_path / "saves-at-sigterm.0.pid").exists, "the role")
    role = int((tmp_path / "saves-at-sigterm.0.pid").read_text())
    launcher.kill()
    launcher.wait(LONG_S)
    wait_until(lambda: gone(role), "the orphan's end")
    assert (tmp_path / "saves-at-sigterm.saved").exists()


def test_an_orphan_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", MAIN, str(tmp_path), STAND_IN, "orphan"])
    wait_until((tmp_path / "orphan.0.pid").exists, "the role")
    launcher.kill()
    launcher.wait(LONG_S)
    orphan = int((tmp_path / "orphan.0.pid").read_text())
    wait_until(lambda: gone(orphan), "the orphan's end")
