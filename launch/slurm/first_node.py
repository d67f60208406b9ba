"""The first node of a Slurm job holds its script and the run's chief. What is left when it is lost ends by itself.

With ``--no-kill`` Slurm takes the node out of the job and lets the other ranks run, without a script that would ever
end them. So the script holds a lock in the run folder, like the chief; a rank that finds both of them dead stops its
processes, and one rank asks Slurm to requeue the job, which resumes from the newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dba3c.runs.atomic_files import write_atomically, write_once
from dba3c.runs.run_lock import LOCK_NAME, RunLock, living_holder
from launch.slurm import tools as slurm_tools

FOLDER = ".slurm"
JOB = "job"
MAX_RESTARTS = 100
"""Lives of one job; more would mean that a life is too short to get anywhere."""


def hold(run_dir: Path, environ: Mapping[str, str]) -> RunLock:
    """The script's lock, which dies with its node, and the job's name beside it, which stays.

    Raises:
        UserError: another job's script holds it.
    """
    (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    lock = RunLock.acquire(run_dir / FOLDER)
    write_atomically(run_dir / FOLDER / JOB, slurm_tools.job_name(environ) + "\n")
    return lock


def next_life(run_dir: Path) -> str:
    """Of a run that is not live: its job, if that may have a further life, and how to end it; "" where it has none."""
    try:
        job = (run_dir / FOLDER / JOB).read_text().strip()
    except FileNotFoundError:
        return ""
    answer = slurm_tools.ask(["squeue", "--noheader", f"--jobs={job}", "--format=%T"])
    states = "/".join(sorted(set(answer.stdout.split())))
    if answer.returncode == 0:
        goes_on = "goes on" if states == "PENDING" else "may go on"
        return states and f"job {job} is {states} and {goes_on} with it in a next life: scancel {job} ends that too"
    if "Invalid job id" in answer.stderr:  # Slurm has forgotten it
        return ""
    return f"whether job {job} has a next life is not known ({answer.stderr.strip()}): scancel {job} would end that too"


def is_lost(run_dir: Path) -> bool:
    """Whether the script and the chief are both dead without having ended the run; false where no script of ours is."""
    if not (run_dir / FOLDER / LOCK_NAME).exists():
        return False
    return living_holder(run_dir / FOLDER) is None and living_holder(run_dir) is None


def requeue(run_dir: Path, launch_id: str, environ: Mapping[str, str]) -> str:
    """Have Slurm start the job again, or end it where it may not; of many ranks that ask the first one does it.

    Returns what was done, for the run's metrics.
    """
    if not write_once(run_dir / FOLDER / f"requeued-{launch_id}", "the first node was lost\n"):
        return "the first node is lost; another rank has asked for the requeue"
    job = slurm_tools.job_name(environ)
    refusal = f"it has had {MAX_RESTARTS} restarts"
    if int(environ.get("SLURM_RESTART_COUNT") or 0) < MAX_RESTARTS:
        refusal = slurm_tools.requeue(job)
        if not refusal:
            return f"the first node is lost, and with it the run's chief: job {job} is requeued"
    answer = slurm_tools.ask(["scancel", job])
    ended = "ended" if answer.returncode == 0 else f"and cannot be ended ({answer.stderr.strip()})"
    return f"the first node is lost and job {job} is not requeued ({refusal}): {ended}; resume the run folder by hand"
