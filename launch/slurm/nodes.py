"""A node that a job loses is replaced: a job of one node, of the same size, plays the lost node's ranks.

Slurm takes a lost node out of a ``--no-kill`` job for good; when it comes back it is idle, but not the job's. A running
job cannot grow on most clusters either. So the script submits a job of its own, which waits until a node is free (the
returned one, or another) and joins the run as the next incarnation of those ranks. It ends with the run.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dba3c.errors import UserError
from dba3c.runs.run_folder import RunFolder
from launch.cluster.nodelist import expand, hostnames
from launch.slurm import tools as slurm_tools

LOOK_S = 10.0
SUBMIT_TRIES = 5
"""Looks at which a replacement that was refused is asked for: a busy controller, but also an account without hours."""


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
        nodelist = "" if environ.get("SLURM_HET_SIZE") else environ.get("SLURM_JOB_NODELIST", "")
        self.nodes: list[str] = []
        try:
            self.nodes = hostnames(nodelist)[:nodes] if nodelist else []
        except UserError as error:
            say(f"a lost node will not be replaced: {error}")
        self.replacements: dict[str, str] = {}
        """Lost node → job that replaces it; "" when it was refused too often."""
        self._refusals: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        """Of the replacements that were asked for, by lost node."""
        self._next_look_s = 0.0

    def look(self) -> None:
        """Replace what has been lost since the last look; does nothing before `LOOK_S` have passed.

        Raises nothing: a controller that does not answer is asked again at the next look, and the run goes on.
        """
        if not self.nodes or self._clock() < self._next_look_s:
            return
        self._next_look_s = self._clock() + LOOK_S
        with contextlib.suppress(UserError):  # a list cut short, a meta.json just being replaced on a slow file system
            left, time_left = self._still_ours()
            for number, node in sorted(enumerate(self.nodes), key=lambda item: self._refusals[item[1]]):
                known = not number or node in left or node in self.replacements  # the first's loss is not seen here
                if not known and not self._replace(number, node, time_left):
                    return  # the others at the next look: several slow refusals would keep signals waiting

    def _still_ours(self) -> tuple[set[str], str]:
        """The job's nodes and how long it may still run, as Slurm sees it. Raises UserError when it does not say."""
        job = slurm_tools.job_name(self.environ)
        answer = self._slurm(["squeue", "--noheader", f"--jobs={job}", "--format=%N|%L"])
        lines = answer.stdout.split("\n")[:-1]
        if answer.returncode or len(lines) != 1:
            raise UserError(answer.stderr.strip() or f"squeue knows {len(lines)} jobs {job}")
        nodelist, _, time_left = lines[0].strip().partition("|")
        return set(expand(nodelist)), time_left

    def _replace(self, number: int, node: str, time_left: str) -> bool:
        """Ask for a job in the node's place; False when Slurm refuses."""
        name = self._names.setdefault(node, replacement_name(self.environ, self.run_dir, node))
        if self._refusals[node]:  # a controller that did not answer may have done it all the same
            found = self._jobs_named([name])
            if found.returncode:
                return self._refused(node, found.stderr)
            if found.stdout.strip():
                return self._replaced(node, found.stdout.split()[0])
        command = ["sbatch", "--parsable", *sbatch_options(self.environ, self.run_dir, node, time_left)]
        environ = {name: value for name, value in self.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        environ |= rank_environment(self.environ, self.run_dir, number, len(self.nodes))
        if "SLURM_CONF" in self.environ:
            environ["SLURM_CONF"] = self.environ["SLURM_CONF"]
        answer = self._slurm(command, environ, script_text(self.environ, self.train))
        if answer.returncode:
            return self._refused(node, answer.stderr)
        return self._replaced(node, answer.stdout.strip().split(";")[0])

    def _refused(self, node: str, reason: str) -> bool:
        self._refusals[node] += 1
        tries = f"try {self._refusals[node]} of {SUBMIT_TRIES}"
        self.say(f"node {node} is lost and cannot be replaced ({tries}): {reason.strip()}")
        if self._refusals[node] == SUBMIT_TRIES:
            self.replacements[node] = ""
        return False

    def _replaced(self, node: str, job: str) -> bool:
        self.replacements[node] = job
        self.say(f"node {node} is lost; job {job} takes its place as soon as a node is free")
        return True

    def end(self) -> None:
        """The run is over, and so are its replacements, begun or not."""
        jobs = [job for job in self.replacements.values() if job]
        unconfirmed = [name for node, name in self._names.items() if not self.replacements.get(node)]
        if unconfirmed:  # they may be there all the same
            jobs += self._jobs_named(unconfirmed).stdout.split()
        if jobs:
            self._slurm(["scancel", *jobs])

    def _jobs_named(self, names: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return self._slurm(["squeue", "--noheader", "--me", f"--name={','.join(names)}", "--format=%i"])

    def _slurm(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None, script: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        timeout_s = slurm_tools.LOOK_TIMEOUT_S if command[0] == "squeue" else slurm_tools.ACT_TIMEOUT_S
        return slurm_tools.ask(command, timeout_s, environ=environ, script=script)


def tasks_per_node(environ: Mapping[str, str]) -> int:
    """Ranks on each node of a job of ours."""
    return int(environ.get("SLURM_NTASKS_PER_NODE") or 1)


def rank_environment(environ: Mapping[str, str], run_dir: Path, number: int, nodes: int) -> dict[str, str]:
    """Tells the ranks of a replacement whom they replace (`launch.cluster.launchers`): node ``number`` of ``nodes``."""
    tasks = tasks_per_node(environ)
    folder = RunFolder(run_dir)
    server = folder.published("server-0") or {}
    return {
        "DBA3C_REPLACES_RANK": str(number * tasks),
        "DBA3C_WORLD_SIZE": str(nodes * tasks),
        "DBA3C_LOCAL_WORLD_SIZE": str(tasks),
        "DBA3C_LAUNCH_ID": str(folder.life().get("launch_id", "")),
        "DBA3C_CHIEF_ADDRESS": str(server.get("host") or socket.gethostname()),
    }


def replacement_name(environ: Mapping[str, str], run_dir: Path, node: str) -> str:
    """The name of the job that replaces a node, by which it is found again: no other has it.

    Not even one of this job's earlier life: a launch has a name of its own. (To Slurm a comma separates two names.)
    """
    launch_id = RunFolder(run_dir).life().get("launch_id", "")
    return f"{environ.get('SLURM_JOB_NAME', 'dba3c')}-{launch_id}-{node}".replace(",", "_")


def sbatch_options(environ: Mapping[str, str], run_dir: Path, node: str, time_left: str) -> list[str]:
    """One node like the lost one, for as long as the job may still run."""
    options = [
        f"--job-name={replacement_name(environ, run_dir, node)}",
        "--nodes=1",
        f"--ntasks-per-node={tasks_per_node(environ)}",
        f"--time={time_left or 'UNLIMITED'}",
        f"--output={run_dir.absolute() / 'logs' / f'replacement-of-{node}.out'}",
        "--open-mode=append",
        "--no-requeue",
        "--export=ALL",  # whom it replaces stands there; a site's default may be NONE
    ]
    for name, option in (
        ("SLURM_CPUS_PER_TASK", "--cpus-per-task"),
        ("SLURM_JOB_ACCOUNT", "--account"),
        ("SLURM_JOB_PARTITION", "--partition"),
        ("SLURM_JOB_QOS", "--qos"),
    ):
        if environ.get(name):
            options.append(f"{option}={environ[name]}")
    return options


def script_text(environ: Mapping[str, str], train: Sequence[str]) -> str:
    """What the replacement runs: its n-th task is the n-th rank of the lost node."""
    cpus = f" --cpus-per-task={environ['SLURM_CPUS_PER_TASK']}" if environ.get("SLURM_CPUS_PER_TASK") else ""
    rank = "export DBA3C_REPLACES_RANK=$((DBA3C_REPLACES_RANK + SLURM_PROCID))"
    each = shlex.quote(f'{rank}; exec "$@"')
    srun = f"srun --export=ALL --kill-on-bad-exit=0 --mpi=none{cpus}"
    return f"#!/bin/bash\nexec {srun} bash -c {each} rank {shlex.join(train)}\n"
