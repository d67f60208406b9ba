"""Slurm's controller, asked by its own programs: one that is slow or away costs an answer, never the run.

And what follows from its answers for a job's next life. The first node holds the job's script and the run's chief. When
it is lost Slurm lets the other ranks run, without a script that would ever end them. So the script holds a lock in the
run folder, like the chief; a rank that finds both of them dead (`FirstNode`) stops its processes, and one rank asks
Slurm to requeue the job, which resumes from the newest checkpoint; where it cannot, the next one does.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dba3c.errors import UserError
from dba3c.runs.files import is_read_only, write_atomically, write_once
from dba3c.runs.folder import STOP_COMMAND, RunFolder
from dba3c.runs.lock import HEARTBEAT_LOST_S, RunLock, heartbeat, living_holder
from param_servers.timeouts import AwakeClock

LOOK_TIMEOUT_S = 5.0
"""For what is only looked at: it is asked again soon, and whoever waits for it does not hear signals."""
ACT_TIMEOUT_S = 15.0
"""For what changes something."""
REQUEUE_TRIES = 5
REQUEUE_PAUSE_S = 5.0
"""Together with the timeout at most 95 s: a checkpoint and this fit into the scripts' warning of 300 s."""
CLAIM_S = 200.0
"""A rank that claimed the requeue is done with it, and with the scancel after it, in 190 s; or it is gone."""
REQUEUED = ("pending", "completing")
"""What scontrol says of a job that is requeued already; of one that was cancelled as well."""
MAX_RESTARTS = 100
"""Lives of one job; more would mean that a life is too short to get anywhere."""
BETWEEN_LOOKS_S = 8.0
"""More between a rank's looks at its first node, and it could not look."""
FOLDER = ".slurm"
JOB = "job"


def job_name(environ: Mapping[str, str]) -> str:
    """What Slurm's programs should be told to mean this job alone.

    The task of an array that was started last has the array's own number as its SLURM_JOB_ID; to Slurm's programs that
    number means every task. A job that was submitted from inside a task inherits the variables of that one's array.
    """
    job = environ["SLURM_JOB_ID"]
    return f"{job}_{environ['SLURM_ARRAY_TASK_ID']}" if environ.get("SLURM_ARRAY_JOB_ID") == job else job


def tasks_per_node(environ: Mapping[str, str]) -> int:
    """Ranks on each node of a job of ours."""
    return int(environ.get("SLURM_NTASKS_PER_NODE") or 1)


def srun_command(environ: Mapping[str, str], train: Sequence[str], nodes: int | None = None) -> list[str]:
    """The srun that starts every rank. Slurm ≥ 22.05 does not hand --cpus-per-task on to srun by itself.

    What the job was given of its submitter's environment (`sbatch --export=NONE`) is srun's default for its ranks too,
    which need the script's: its PATH leads to the virtual environment.
    """
    options = ["--kill-on-bad-exit=0", "--no-kill", "--distribution=block", "--mpi=none", "--wait=0", "--export=ALL"]
    if size := int(environ.get("SLURM_HET_SIZE") or 0):  # one step over all parts, each with its own cores
        command = ["srun"]
        for part in range(size):
            cores = environ.get(f"SLURM_CPUS_PER_TASK_HET_GROUP_{part}")
            of_part = [f"--het-group={part}", *([f"--cpus-per-task={cores}"] if cores else [])]
            command += [*([":"] if part else []), *options, *of_part, *train]
        return command
    if environ.get("SLURM_CPUS_PER_TASK"):
        options += [f"--cpus-per-task={environ['SLURM_CPUS_PER_TASK']}"]
    if nodes is not None:
        options += [f"--nodes={nodes}", f"--ntasks={nodes * tasks_per_node(environ)}"]
    return ["srun", *options, *train]


def ask(command: Sequence[str], *, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs; its answer.

    Does not raise: a program that is not there, or has not answered in time, is a refusal (codes 127 and 124) whose
    stderr says so.
    """
    timeout_s = LOOK_TIMEOUT_S if command[0] == "squeue" or command[1:2] == ["show"] else ACT_TIMEOUT_S
    try:
        return subprocess.run(
            command,
            env=dict(os.environ if environ is None else environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # the user's other jobs may be called what they like
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"{command[0]} has not answered within {timeout_s:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]} cannot be run: {error.strerror}")


def requeue(environ: Mapping[str, str], others_ask: bool = False) -> str:
    """Have Slurm start the job again, asking a few times; "" when it will, else why not.

    Args:
        others_ask: that it is requeued already, or ends, may be their doing.
    """
    if int(environ.get("SLURM_RESTART_COUNT") or 0) >= MAX_RESTARTS:
        return f"it has had {MAX_RESTARTS} restarts"
    return _ask_until_done(["scontrol", "requeue", job_name(environ)], others_ask)


def _ask_until_done(command: Sequence[str], may_be_done: bool = False) -> str:
    """Ask a few times; "" when it is done, else why not.

    A controller that did it although it did not answer in time says so when it is asked again.
    """
    for further in reversed(range(REQUEUE_TRIES)):
        answer = ask(command)
        if answer.returncode == 0 or (may_be_done and any(word in answer.stderr for word in REQUEUED)):
            return ""
        may_be_done |= answer.returncode in (124, -signal.SIGTERM)  # the end of the job may reach the program, too
        if further:
            time.sleep(REQUEUE_PAUSE_S)
    return answer.stderr.strip() or f"{command[0]} ended with exit code {answer.returncode}"


def was_preempted(environ: Mapping[str, str]) -> bool:
    """Whether Slurm has taken this life's nodes for another job. False where it does not say."""
    return _is_preempted(_shown(environ))


def was_cancelled(environ: Mapping[str, str]) -> bool:
    """Whether a SIGTERM was somebody's, neither the time limit's nor a preemption's. False where Slurm does not say."""
    shown = _shown(environ)
    return " Reason=None " in shown and not _is_preempted(shown)


def _shown(environ: Mapping[str, str]) -> str:
    return ask(["scontrol", "show", "job", "--oneliner", job_name(environ)]).stdout


def _is_preempted(shown: str) -> bool:
    return bool(re.search(r" PreemptTime=(?!None|Unknown)\S", shown))


def hold(run_dir: Path) -> RunLock:
    """The script's lock, which dies with its node.

    Raises:
        UserError: another job's script holds it.
    """
    (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    return RunLock.acquire(run_dir / FOLDER)


def note_job(run_dir: Path, environ: Mapping[str, str]) -> None:
    """The run is this job's from now on: its chief has begun a life, so it was not refused. Stays beside the lock.

    Raises:
        UserError: the disk refuses.
    """
    write_atomically(run_dir / FOLDER / JOB, job_name(environ) + "\n")


def _noted_job(run_dir: Path) -> str:
    """ "" where there is none."""
    try:
        return (run_dir / FOLDER / JOB).read_text().strip()
    except FileNotFoundError:
        return ""


def next_life(run_dir: Path) -> str:
    """Of a run that is not live: its job, if that may have a further life, and how to end it; "" where it has none."""
    job = _noted_job(run_dir)
    if not job:
        return ""
    answer = ask(["squeue", "--noheader", f"--jobs={job}", "--format=%T"])
    states = "/".join(sorted(set(answer.stdout.split())))
    if answer.returncode == 0:
        goes_on = "goes on" if states == "PENDING" else "may go on"
        return states and f"job {job} is {states} and {goes_on} with it in a next life: scancel {job} ends that too"
    if "Invalid job id" in answer.stderr:  # Slurm has forgotten it
        return ""
    return f"whether job {job} has a next life is not known ({answer.stderr.strip()}): scancel {job} would end that too"


class FirstNode:
    """A job's first node, as one of the other ranks sees it: by the locks of its script and of its chief.

    That both seem dead does not do: this rank may have been stopped with the rest of the job, cut off from the folder,
    or have another idea of the time. So both have to stay as they are for as long, of this rank's own time in which it
    could look.
    """

    def __init__(self, run_dir: Path, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._environ = run_dir, environ
        self._folders = (run_dir / FOLDER, run_dir)
        self._now_s = AwakeClock(BETWEEN_LOOKS_S, clock).now_s
        self._beats: list[object] = []
        self._since_s = self._now_s()

    def is_lost(self) -> bool:
        """Whether the script and the chief are both dead without having ended the run; to be asked again and again.

        False of what cannot be read, and where no script of this job is: an earlier job's may have been killed, and
        have left its lock.
        """
        now_s = self._now_s()
        try:
            beats: list[object] = [heartbeat(folder) for folder in self._folders]
            if beats != self._beats:
                self._beats, self._since_s = beats, now_s
            return (
                beats[0] is not None
                and now_s - self._since_s >= HEARTBEAT_LOST_S
                and all(living_holder(folder) is None for folder in self._folders)
                and _noted_job(self._run_dir) == job_name(self._environ)
                and "ended" not in RunFolder(self._run_dir).life()
                and not is_read_only(self._run_dir)
            )
        except (OSError, UserError):  # a shared file system that is away tells nothing: the wait begins anew
            self._beats = []
            return False

    def turns_out_lost(self, look_s: float = 2.0) -> bool:
        """As `is_lost`, of a rank that has failed before that could be known: waits until it is, or somebody is alive.

        A failure of any other cause costs a heartbeat of the script, which lives on, as its srun waits for this rank.
        """
        until_s, first = self._now_s() + HEARTBEAT_LOST_S + 2 * BETWEEN_LOOKS_S, None
        while not self.is_lost():
            first = first or self._beats
            script_is_there = not first or first[0] is not None
            alive = bool(self._beats) and self._beats != first
            if alive or not script_is_there or self._now_s() >= until_s:
                return False
            time.sleep(look_s)
        return True


def requeue_without_first_node(run_dir: Path, launch_id: str, environ: Mapping[str, str]) -> str:
    """Have Slurm start the job again, or end it where it may not; of many ranks one does it, and where that one cannot,
    another. The others wait: Slurm ends them with the job.

    Returns what was done, for the run's metrics.
    """
    claim, job = run_dir / FOLDER / f"requeued-{launch_id}", job_name(environ)
    _wait_for_turn(claim)
    asked = ""
    with contextlib.suppress(UserError, OSError):
        asked = RunFolder(run_dir).stop_reason() or ""
    refusal = f"{STOP_COMMAND} has asked it to end" if asked == STOP_COMMAND else requeue(environ, others_ask=True)
    if not refusal:
        return f"the first node is lost, and with it the run's chief: job {job} is requeued"
    told = f"the first node is lost and job {job} is not requeued ({refusal})"
    if unended := _ask_until_done(["scancel", job]):
        with contextlib.suppress(OSError):
            claim.unlink(missing_ok=True)  # another node may reach the controller
        return f"{told} and cannot be ended ({unended}); resume the run folder by hand"
    return f"{told}: ended; resume the run folder by hand"


def _wait_for_turn(claim: Path) -> None:
    """Returns when this rank is to ask: it has the claim, or who has it should have been heard of by now.

    Where the disk refuses, every rank asks: what was asked before is recognised (`REQUEUED`).
    """
    until_s = time.monotonic() + CLAIM_S
    with contextlib.suppress(UserError):
        while not write_once(claim, "the first node was lost\n") and time.monotonic() < until_s:
            time.sleep(REQUEUE_PAUSE_S)
