"""A node that a job loses is replaced: a job of one node, of the same kind, plays the lost node's ranks.

Slurm takes a lost node out of a ``--no-kill`` job for good; when it comes back it is idle, but not the job's. A running
job cannot grow on most clusters either. So the script submits a job of its own, which waits until a node is free (the
returned one, or another) and joins the run as the next incarnation of those ranks. It ends with the run.

The first node holds the job's script and the run's chief. When it is lost Slurm lets the other ranks run, without a
script that would ever end them. So the script holds a lock in the run folder, like the chief; a rank that finds both of
them dead stops its processes, and one rank asks Slurm to requeue the job, which resumes from the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dba3c.errors import UserError
from dba3c.runs.atomic_files import write_atomically, write_once
from dba3c.runs.folder import RunFolder
from dba3c.runs.lock import LOCK_NAME, RunLock, living_holder
from launch.slurm import tools as slurm_tools

LOOK_S = 10.0
SUBMIT_TRIES = 5
"""Looks at which a replacement that was refused is asked for: a busy controller, but also an account without hours."""
PASSED_ON = {
    "Account": "--account", "Partition": "--partition", "QOS": "--qos", "MinMemoryNode": "--mem",
    "MinMemoryCPU": "--mem-per-cpu", "Features": "--constraint", "TresPerNode": "--gres",
    "Reservation": "--reservation", "ExcNodeList": "--exclude",
}  # fmt: skip
"""What ``scontrol show job`` says of a job → what its replacements ask for too."""
NOTHING = ("", "0", "(null)", "N/A")
FOLDER = ".slurm"
JOB = "job"


class LostNodes:
    """The nodes of a job, those it has lost, and the jobs that replace them.

    Args:
        environ: the batch script's.
        train: what every rank runs.
        nodes: how many of the job's nodes, from the first on, the run uses; None: all.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        run_dir: Path,
        train: Sequence[str],
        nodes: int | None = None,
        say: Callable[[str], object] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.environ, self.run_dir, self.train = environ, run_dir, list(train)
        self.say, self._clock = say, clock
        # A heterogeneous job is no matter of whole nodes with equal ranks: its lost actors stay lost.
        self.nodes = [] if environ.get("SLURM_HET_SIZE") else names_of(environ.get("SLURM_JOB_NODELIST", ""))[:nodes]
        self._tries: Counter[str] = Counter()
        self._next_look_s = 0.0

    def look(self) -> None:
        """Replace what has been lost since the last look; does nothing before `LOOK_S` have passed.

        Raises nothing: a controller that does not answer is asked again at the next look, and the run goes on. One
        node a look: several slow refusals would keep signals waiting.
        """
        if not self.nodes or self._clock() < self._next_look_s:
            return
        self._next_look_s = self._clock() + LOOK_S
        job = slurm_tools.job_name(self.environ)
        shown = slurm_tools.ask(["squeue", "--noheader", f"--jobs={job}", "--format=%N|%L"]).stdout.split("\n")[:-1]
        nodelist, _, time_left = shown[0].strip().partition("|") if len(shown) == 1 else ("", "", "")
        left = names_of(nodelist)
        if self.nodes[0] not in left:  # the node of this script: what is shown is not this job's, or cut short
            return
        lost = [node for node in self.nodes if node not in left and self._tries[node] < SUBMIT_TRIES]
        with contextlib.suppress(UserError):  # a meta.json just being replaced on a slow file system
            replaced = self._replacements() if lost else None
            if replaced is not None and (lost := [node for node in lost if node not in replaced]):
                self._replace(min(lost, key=lambda node: self._tries[node]), job, time_left)

    def end(self) -> None:
        """The run is over, and so are its replacements, begun or not."""
        jobs = self._replacements() if self._tries else None
        if jobs:
            slurm_tools.ask(["scancel", *jobs.values()])

    def _replacements(self) -> dict[str, str] | None:
        """Node → the job that waits for its place or has it; None while Slurm does not say."""
        answer = slurm_tools.ask(["squeue", "--noheader", "--me", "--format=%i %j"])
        named = {name: job for job, _, name in (line.strip().partition(" ") for line in answer.stdout.splitlines())}
        names = {node: replacement_name(self.environ, self.run_dir, node) for node in self.nodes}
        return None if answer.returncode else {node: named[name] for node, name in names.items() if name in named}

    def _replace(self, node: str, job: str, time_left: str) -> None:
        """Submit a job in the node's place. One that Slurm does not confirm may be there anyhow: the next look sees."""
        self._tries[node] += 1
        answer = slurm_tools.ask(["scontrol", "show", "job", "--oneliner", job])
        if answer.returncode == 0:
            options = sbatch_options(self.environ, self.run_dir, node, time_left, answer.stdout)
            environ = rank_environment(self.environ, self.run_dir, self.nodes.index(node), len(self.nodes))
            srun = shlex.join(slurm_tools.srun_command(self.environ, self.train))
            answer = slurm_tools.ask(["sbatch", "--parsable", *options, f"--wrap=exec {srun}"], environ=environ)
        if answer.returncode:
            tries = f"try {self._tries[node]} of {SUBMIT_TRIES}"
            self.say(f"node {node} is lost and cannot be replaced ({tries}): {answer.stderr.strip()}")
        else:
            number = answer.stdout.split()[0].split(";")[0]
            self.say(f"node {node} is lost; job {number} takes its place as soon as a node is free")


def names_of(nodelist: str) -> list[str]:
    """The nodes of a compressed list, n[1-3,7]; [] where Slurm cannot say."""
    return slurm_tools.ask(["scontrol", "show", "hostnames", nodelist]).stdout.split() if nodelist else []


def replacement_name(environ: Mapping[str, str], run_dir: Path, node: str) -> str:
    """The name of the job that replaces a node, by which it is found again: no other has it.

    Not even one of this job's earlier life: a launch has a name of its own.
    """
    launch_id = RunFolder(run_dir).life().get("launch_id", "")
    return f"{environ.get('SLURM_JOB_NAME', 'dba3c')}-{launch_id}-{node}"


def sbatch_options(environ: Mapping[str, str], run_dir: Path, node: str, time_left: str, job: str = "") -> list[str]:
    """One node like the lost one, for as long as the job may still run; ``job`` is what scontrol shows of it."""
    options = [
        f"--job-name={replacement_name(environ, run_dir, node)}",
        "--nodes=1",
        f"--ntasks-per-node={slurm_tools.tasks_per_node(environ)}",
        f"--time={time_left or 'UNLIMITED'}",
        f"--output={run_dir.absolute() / 'logs' / f'replacement-of-{node}.out'}",
        "--open-mode=append",
        "--no-requeue",
        "--export=ALL",  # whom it replaces stands there; a site's default may be NONE
        *([f"--cpus-per-task={environ['SLURM_CPUS_PER_TASK']}"] if environ.get("SLURM_CPUS_PER_TASK") else []),
    ]
    shown = dict(re.findall(r"(?:^| )(\w+)=(\S*)", job))
    asked = {option: re.sub(r"^gres[:/]", "", shown.get(name, "")) for name, option in PASSED_ON.items()}
    return options + [f"{option}={value}" for option, value in asked.items() if value not in NOTHING]


def rank_environment(environ: Mapping[str, str], run_dir: Path, number: int, nodes: int) -> dict[str, str]:
    """Tells the ranks of a replacement whom they replace (`launch.cluster.launchers`): node ``number`` of ``nodes``.

    Nothing of this job's own remains: what it was given is not what the replacement is.
    """
    tasks, folder = slurm_tools.tasks_per_node(environ), RunFolder(run_dir)
    server = folder.published("server-0") or {}
    of_job = {name for name in environ if name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF"}
    return {
        **{name: value for name, value in environ.items() if name not in of_job},
        "DBA3C_REPLACES_RANK": str(number * tasks),
        "DBA3C_WORLD_SIZE": str(nodes * tasks),
        "DBA3C_LOCAL_WORLD_SIZE": str(tasks),
        "DBA3C_LAUNCH_ID": str(folder.life().get("launch_id", "")),
        "DBA3C_CHIEF_ADDRESS": str(server.get("host") or socket.gethostname()),
    }


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


def first_node_is_lost(run_dir: Path) -> bool:
    """Whether the script and the chief are both dead without having ended the run; false where no script of ours is."""
    if not (run_dir / FOLDER / LOCK_NAME).exists():
        return False
    return living_holder(run_dir / FOLDER) is None and living_holder(run_dir) is None


def requeue_without_first_node(run_dir: Path, launch_id: str, environ: Mapping[str, str]) -> str:
    """Have Slurm start the job again, or end it where it may not; of many ranks that ask the first one does it.

    Returns what was done, for the run's metrics.
    """
    if not write_once(run_dir / FOLDER / f"requeued-{launch_id}", "the first node was lost\n"):
        return "the first node is lost; another rank has asked for the requeue"
    job = slurm_tools.job_name(environ)
    refusal = slurm_tools.requeue(environ)
    if not refusal:
        return f"the first node is lost, and with it the run's chief: job {job} is requeued"
    answer = slurm_tools.ask(["scancel", job])
    ended = "ended" if answer.returncode == 0 else f"and cannot be ended ({answer.stderr.strip()})"
    return f"the first node is lost and job {job} is not requeued ({refusal}): {ended}; resume the run folder by hand"
