"""Real processes, real faults: what is restarted, what ends a run, and what is said about it."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from dba3c.config import TrainConfig
from dba3c.errors import UserError
from dba3c.runs.ending import failures, outcome
from dba3c.runs.folder import RunFolder
from launch.local.supervisor import ENDING, Supervisor
from launch.running import role_processes
from launch.slurm.job import report
from param_servers.config import ExchangeConfig
from tests.launch.local.supervised import Lab
from tests.refusals import refusing
from tests.waiting import wait_until


def test_a_run_ends_when_its_deciding_process_ends_the_others_follow_and_then_the_monitor_is_told(lab: Lab) -> None:
    lab.start(
        lab.process("server", 0, "obedient"),
        lab.process("worker", 0, "obedient"),
        lab.process("monitor", 0, "saves-at-sigterm", decides=False, essential=False),
    )
    lab.pid("worker-0")
    lab.pid("monitor-0")
    lab.request_stop("score reached")
    assert lab.finish() == 0
    assert lab.said == []
    assert (lab.run_dir / "monitor-0.saved").exists()


def test_a_killed_worker_is_replaced_as_the_next_incarnation(lab: Lab) -> None:
    lab.start(
        lab.process("server", 0, "obedient"), lab.process("worker", 1, "obedient", max_restarts=2, essential=False)
    )
    os.kill(lab.pid("worker-1"), signal.SIGKILL)
    second = lab.pid("worker-1", incarnation=1)
    wait_until(lambda: lab.supervisor.pids().get("worker 1") == second, "the supervisor to know its next life")
    wait_until(lambda: bool(lab.said), "the restart to be told")
    assert lab.said == ["worker 1: killed by SIGKILL; starting it again (1 of 2 within 1 h)"]
    lab.request_stop("enough")
    assert lab.finish() == 0
    log = (lab.run_dir / "logs" / "worker-1.log").read_text()
    assert "incarnation 0" in log
    assert "incarnation 1" in log


def test_a_worker_that_this_machine_has_no_room_to_start_again_is_left_and_the_run_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.start(
        lab.process("server", 0, "obedient"),
        lab.process("worker", 0, "obedient", max_restarts=2, essential=False),
        lab.process("worker", 1, "obedient", essential=False),
    )
    lab.pid("server-0"), lab.pid("worker-1")
    lost = lab.pid("worker-0")

    monkeypatch.setattr(lab.fork_server, "fork", refusing(errno.EAGAIN))
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: len(lab.said) > 1, "the loss to be told")
    assert "worker 0 cannot be started again" in lab.said[0] and "the run goes on without it" in lab.said[1]
    lab.request_stop("enough")
    assert lab.finish() == 0


def test_a_machine_without_room_for_the_processes_of_a_run_is_said_in_one_line(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.fork_server, "fork", refusing(errno.EAGAIN))
    server = lab.process("server", 0, "obedient")
    lab.supervisor = Supervisor(lab.fork_server, lab.run_dir, [server], lab.request_stop)
    with pytest.raises(UserError, match=r"server 0, process 1 of 1, cannot be started: .* \(ulimit -u"):
        lab.supervisor.run()
    assert lab.supervisor.cause.startswith("server 0, process 1 of 1, cannot be started")


def test_a_worker_that_may_be_left_is_left_and_the_run_goes_on(lab: Lab) -> None:
    lab.start(
        lab.process("server", 0, "obedient"),
        lab.process("worker", 0, "fails", essential=False, max_restarts=1),
        lab.process("worker", 1, "obedient", essential=False),
    )
    lab.pid("server-0")
    lab.pid("worker-1")
    wait_until(lambda: "left" in lab.events, "the loss to be told")
    assert list(lab.supervisor.pids()) == ["server 0", "worker 1"]
    cause = "worker 0: exit code 1 (worker 0: RuntimeError: worker-0 has a fault of its own)"
    assert lab.said == [f"{cause}; starting it again (1 of 1 within 1 h)", f"{cause}; the run goes on without it"]
    lab.request_stop("enough")
    assert lab.finish() == 0


def test_what_a_library_says_at_exit_is_not_why_a_process_failed(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 3, "fails-and-chats"))
    assert lab.finish() == 1
    assert lab.supervisor.cause == "worker 3: ValueError: late trouble"


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
    assert lab.finish() == 2
    assert lab.events == ["stopping", "killing"]  # not terminating: a worker takes that for a request it has heard
    assert json.loads((lab.run_dir / "stop.json").read_text()) == {"reason": "server 0: no such game", "failed": True}
    assert lab.said[-1].splitlines()[-1] == "no such game"


def test_a_launch_that_has_lost_its_folder_notes_no_failure_in_it(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "taken-over"))
    assert lab.finish() == 4
    assert failures(lab.run_dir) == []


def test_a_rank_whose_process_was_superseded_leaves_the_run_to_the_newer_one(lab: Lab) -> None:
    """Slurm has given its node up and started another one, and the node lives."""
    lab.start(lab.process("server", 3, "taken-over", max_restarts=5), whole_run=False)
    assert lab.finish() == 4
    assert lab.events == ["left"] and failures(lab.run_dir) == [] and not (lab.run_dir / "stop.json").exists()


def test_a_worker_whose_first_life_was_accepted_is_not_refused_as_bad_input_later(lab: Lab) -> None:
    worker = lab.process("worker", 1, "bad-input-later", essential=False, max_restarts=2)
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 0, "obedient", essential=False), worker)
    lab.pid("server-0")
    lab.pid("worker-0")
    os.kill(lab.pid("worker-1"), signal.SIGKILL)
    wait_until(lambda: "left" in lab.events, "the loss to be told")
    assert lab.events == ["restarted", "restarted", "left"]
    lab.request_stop("enough")
    assert lab.finish() == 0


@pytest.mark.parametrize("whole_run", [True, False])
def test_what_another_machine_could_do_does_not_end_a_run_that_a_replacement_cannot_join(
    lab: Lab, whole_run: bool
) -> None:
    worker = lab.process("worker", 1, "bad-input", essential=False, max_restarts=1)
    others = lab.process("server", 0, "obedient"), lab.process("worker", 0, "obedient")
    lab.start(*others, worker, joins_late=True, whole_run=whole_run)
    wait_until(lambda: "left" in lab.events, "the loss to be told")
    assert lab.events == ["restarted", "left"]
    lab.pid("server-0")
    lab.pid("worker-0")
    lab.request_stop("enough")
    assert lab.finish() == 0
    assert outcome(0, RunFolder(lab.run_dir))[0] == "finished"  # its chief reads what the replacement has noted


@pytest.mark.parametrize(("well", "code"), [(True, 0), (False, 1)])
def test_a_rank_without_which_the_run_goes_on_stays_until_that_has_ended(lab: Lab, well: bool, code: int) -> None:
    lab.start(lab.process("worker", 3, "fails", essential=False, decides=False), whole_run=False, stays=True)
    wait_until(lambda: "left" in lab.events, "the loss to be told")
    assert lab.thread.is_alive() and not lab.supervisor.pids()  # many a launcher would now end all ranks
    lab.supervisor.run_has_ended(well)
    assert lab.finish() == code


def test_a_rank_that_stays_without_processes_obeys_a_signal(lab: Lab) -> None:
    lab.start(lab.process("worker", 3, "fails", essential=False, decides=False), whole_run=False, stays=True)
    wait_until(lambda: "left" in lab.events, "the loss to be told")
    lab.signal(signal.SIGTERM)
    assert lab.finish() == 1
    assert json.loads((lab.run_dir / "stop.json").read_text()) == {"reason": "SIGTERM", "failed": False}


def test_where_workers_decide_the_run_does_not_go_on_without_the_first_of_them(lab: Lab) -> None:
    """As in a majority, or of the only learner: the other ranks would wait for it, and for this one to say the end."""
    first = lab.process("worker", 0, "fails", essential=False)
    lab.start(first, lab.process("monitor", 0, "obedient", essential=False, decides=False), whole_run=False)
    assert lab.finish() == 1
    assert json.loads((lab.run_dir / "stop.json").read_text())["failed"]


def test_the_last_of_the_workers_ends_the_run_with_what_it_said(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 0, "fails", essential=False))
    assert lab.finish() == 1
    assert lab.supervisor.cause == "worker 0: RuntimeError: worker-0 has a fault of its own"


def test_a_run_that_ended_broken_is_no_success_though_another_process_ended_well(lab: Lab) -> None:
    lab.start(lab.process("worker", 0, "ends-broken"), lab.process("worker", 1, "obedient"))
    lab.pid("worker-0")
    lab.pid("worker-1")
    lab.request_stop("enough")
    assert lab.finish() == 3
    assert lab.supervisor.cause == "worker 0: all steps since 40 are lost"


def test_a_folder_that_cannot_be_written_does_not_keep_a_run_from_ending_with_a_checkpoint(lab: Lab) -> None:
    def refuse(reason: str, failed: bool) -> None:
        raise UserError(f"cannot write {lab.run_dir}/stop.json: No space left on device")

    lab.request_stop = refuse  # type: ignore[method-assign]
    lab.start(lab.process("server", 0, "saves-at-sigterm"))
    lab.pid("server-0")
    lab.signal(signal.SIGINT)
    assert lab.finish() == 0
    assert (lab.run_dir / "server-0.saved").exists()


def test_a_failure_whose_note_and_log_cannot_be_written_ends_the_run_as_always(lab: Lab) -> None:
    (lab.run_dir / "logs").touch()  # where a folder should be
    lab.start(lab.process("server", 0, "obedient"), lab.process("worker", 3, "fails"))
    lab.pid("server-0")
    assert lab.finish() == 1
    assert lab.events == ["stopping"]


def test_an_error_of_the_supervisor_itself_costs_no_checkpoint(lab: Lab) -> None:
    def say(line: str) -> None:
        raise ZeroDivisionError(line)

    processes = [lab.process("server", 0, "obedient"), lab.process("worker", 3, "fails")]
    lab.supervisor = Supervisor(lab.fork_server, lab.run_dir, processes, lab.request_stop, say=say)
    lab.thread = threading.Thread()
    with pytest.raises(ZeroDivisionError):
        lab.supervisor.run()
    assert (lab.run_dir / "logs" / "server-0.log").read_text().splitlines()[-1] == "server-0 ended as asked"


def test_a_broken_monitor_does_not_end_the_run(lab: Lab) -> None:
    missed = {"missed": "so nobody looks for --stop-score any more"}
    lab.start(
        lab.process("server", 0, "obedient"),
        lab.process("monitor", 0, "bad-input", decides=False, essential=False, **missed),
    )
    wait_until(lambda: "left" in lab.events, "the monitor's end to be told")
    assert lab.said[-1].endswith("the run goes on without it, so nobody looks for --stop-score any more")
    lab.request_stop("enough")
    assert lab.finish() == 0


def test_an_evaluator_that_is_not_started_again_has_left_the_monitor_does_not_wait_for_it(lab: Lab) -> None:
    run = RunFolder(lab.run_dir)
    run.rendezvous.mkdir(exist_ok=True)
    lab.start(
        lab.process("server", 0, "obedient"),
        lab.process("evaluator", 0, "fails", decides=False, essential=False),
    )
    wait_until(lambda: bool(lab.said), "its end to be told")
    wait_until(lambda: run.has_left("evaluator", 0), "its note")
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


def test_a_server_that_is_killed_before_it_has_written_the_last_checkpoint_fails_the_run(lab: Lab) -> None:
    """Started again it would find the request to end, and end well with the steps since the checkpoint before lost."""
    lab.start(lab.process("server", 0, "stubborn", max_restarts=2), lab.process("worker", 0, "obedient", decides=False))
    pid = lab.pid("server-0")
    lab.request_stop("enough")
    os.kill(pid, signal.SIGKILL)
    assert lab.finish() == 128 + signal.SIGKILL
    assert not any("starting it again" in line for line in lab.said)


def test_a_server_that_had_written_the_last_checkpoint_is_started_again_as_before(lab: Lab) -> None:
    lab.start(lab.process("server", 0, "breaks-at-the-end", max_restarts=1))
    lab.pid("server-0")
    run = RunFolder(lab.run_dir)
    run.rendezvous.mkdir(parents=True, exist_ok=True)
    run.note_left("server", 0)
    lab.request_stop("enough")
    assert lab.finish() == 1
    assert any("starting it again (1 of 1" in line for line in lab.said)


@pytest.mark.parametrize("all_needed", [True, False])  # an all-reduce, and one of a majority
def test_an_all_reduce_that_loses_its_last_checkpoint_when_the_other_ranks_have_ended_has_failed(
    lab: Lab, all_needed: bool
) -> None:
    again = 0 if all_needed else 2
    lab.start(
        *(
            lab.process("worker", rank, what, saves_alone=True, essential=all_needed, max_restarts=again)
            for rank, what in enumerate(("breaks-at-the-end", "ends"))
        )
    )
    lab.pid("worker-0")
    wait_until(lambda: lab.supervisor._phase == ENDING, "the other rank's end")
    lab.request_stop("enough")
    assert lab.finish() == 1
    assert lab.supervisor.cause.startswith("worker 0: ")


def test_a_rank_0_that_is_killed_after_it_has_left_has_lost_nothing(lab: Lab) -> None:
    kinds = enumerate(("breaks-at-the-end", "ends"))
    lab.start(*(lab.process("worker", rank, what, saves_alone=True, essential=False) for rank, what in kinds))
    lab.pid("worker-0")
    wait_until(lambda: lab.supervisor._phase == ENDING, "the other rank's end")
    run = RunFolder(lab.run_dir)
    run.rendezvous.mkdir(parents=True, exist_ok=True)
    run.note_left("worker", 0)
    lab.request_stop("enough")
    assert lab.finish() == 0


def test_rank_0_of_a_majority_that_dies_once_the_run_was_asked_to_end_is_not_started_again(lab: Lab) -> None:
    """It would find the request, and end well with the checkpoint before the last steps. The other rank ends well."""
    lab.start(
        *(
            lab.process("worker", rank, what, saves_alone=True, essential=False, max_restarts=2)
            for rank, what in enumerate(("stubborn", "obedient"))
        )
    )
    pid = lab.pid("worker-0")
    lab.request_stop("enough")
    os.kill(pid, signal.SIGKILL)
    assert lab.finish() == 128 + signal.SIGKILL
    assert not any("starting it again" in line for line in lab.said)


def test_who_still_writes_the_last_checkpoint_when_the_others_have_ended_is_given_the_time(tmp_path: Path) -> None:
    """In an all-reduce every rank's end is the run's, and only the first one writes."""
    config = TrainConfig(exchange=ExchangeConfig(exchange="allreduce", num_workers=2, checkpoint_timeout_s=500.0))
    workers = [process for process in role_processes(config, tmp_path, "") if process.takes_part]
    assert [process.decides and process.drain_timeout_s > 500 for process in workers] == [True, True]
    assert all(process.saves_alone for process in workers)
