"""Slurm's own programs, asked so that a controller that is slow or away costs an answer, never the run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

LOOK_TIMEOUT_S = 5.0
"""For what is only looked at: it is asked again soon, and whoever waits for it does not hear signals."""
ACT_TIMEOUT_S = 15.0
"""For what changes something."""
REQUEUE_TRIES = 5
REQUEUE_PAUSE_S = 5.0
"""Together with the timeout at most 95 s: a checkpoint and this fit into the scripts' warning of 180 s."""
MAX_RESTARTS = 100
"""Lives of one job; more would mean that a life is too short to get anywhere."""


def job_name(environ: Mapping[str, str]) -> str:
    """What Slurm's programs should be told to mean this job alone.

    The task of an array that was started last has the array's own number as its SLURM_JOB_ID; to Slurm's programs that
    number means every task.
    """
    if environ.get("SLURM_ARRAY_TASK_ID"):
        return f"{environ.get('SLURM_ARRAY_JOB_ID') or environ['SLURM_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ["SLURM_JOB_ID"]


def tasks_per_node(environ: Mapping[str, str]) -> int:
    """Ranks on each node of a job of ours."""
    return int(environ.get("SLURM_NTASKS_PER_NODE") or 1)


def srun_command(environ: Mapping[str, str], train: Sequence[str], nodes: int | None = None) -> list[str]:
    """The srun that starts every rank. Slurm ≥ 22.05 does not hand --cpus-per-task on to srun by itself.

    What the job was given of its submitter's environment (`sbatch --export=NONE`) is srun's default for its ranks too,
    which need the script's: its PATH leads to the virtual environment.
    """
    command = ["srun", "--kill-on-bad-exit=0", "--no-kill", "--distribution=block", "--mpi=none", "--wait=0"]
    command.append("--export=ALL")
    if environ.get("SLURM_CPUS_PER_TASK"):
        command += [f"--cpus-per-task={environ['SLURM_CPUS_PER_TASK']}"]
    if environ.get("SLURM_HET_SIZE"):  # one step over all parts of a heterogeneous job: ranks are counted through them
        command.append("--het-group=" + ",".join(map(str, range(int(environ["SLURM_HET_SIZE"])))))
    if nodes is not None:
        command += [f"--nodes={nodes}", f"--ntasks={nodes * tasks_per_node(environ)}"]
    return [*command, *train]


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
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"{command[0]} has not answered within {timeout_s:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]} cannot be run: {error.strerror}")


def requeue(environ: Mapping[str, str]) -> str:
    """Have Slurm start the job again, asking a few times; "" when it will, else why not.

    A controller that did it although it did not answer ends this process while it asks again.
    """
    if int(environ.get("SLURM_RESTART_COUNT") or 0) >= MAX_RESTARTS:
        return f"it has had {MAX_RESTARTS} restarts"
    for further in reversed(range(REQUEUE_TRIES)):
        answer = ask(["scontrol", "requeue", job_name(environ)])
        if answer.returncode == 0:
            return ""
        if further:
            time.sleep(REQUEUE_PAUSE_S)
    return answer.stderr.strip() or f"scontrol ended with exit code {answer.returncode}"
