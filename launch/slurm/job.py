"""What a Slurm script runs on its first node: srun of all ranks, and the life of a job around it.

- USR1 (``--signal``, before the time limit): asks the run to end with a checkpoint, then ``scontrol requeue``; the next
  life resumes the same run folder (there is none where somebody's ``scancel`` came in between). SIGTERM (preemption,
  ``scancel --batch``): the same without requeueing, which is Slurm's own business then; but where a partition's
  GraceTime left the run the time to end, it has not done so yet.
- The job's outcome is the run's, noted in its folder, not srun's: after a node's loss srun may hang, or report the lost
  rank of a run that went on well. So once the run has ended srun has only so long to follow.
- A node that is lost is replaced (`LostNodes`); the loss of this first node is for the others to see.
  Slurm takes a lost node out of a ``--no-kill`` job for good, and a running job cannot grow on most clusters. So the
  script submits a job of one node of the same kind, which waits until one is free (the returned one, or another) and
  joins the run as the next incarnation of the lost node's ranks. It ends with the run.
- A run that failed prints who failed first, and that one's traceback, as the last thing in the job's output.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dba3c.errors import UserError
from dba3c.runs.ending import failures, refusal
from dba3c.runs.files import is_there
from dba3c.runs.folder import RunFolder
from dba3c.runs.lock import living_holder
from launch.cluster.launchers import REPLACES_VARIABLE
from launch.local.child import describe_exit, shell_code, taking_signals
from launch.slurm import controller

AT_THE_JOB = "at the Slurm job"
WARNING = f"SIGUSR1 {AT_THE_JOB}"
"""The reason of a life that ended for the time limit, and is to be followed by the next."""
LOOK_S = 1.0
SRUN_FOLLOWS_S = 60.0
"""How long srun may take to return when the run has ended."""
META_S = 15.0
"""For the lives before this one, and how this one has ended, to be read."""
END_TIMEOUT_S = 10.0
"""Of srun, after SIGTERM and after SIGKILL."""
CHIEF_DEAD_LOOKS = 5
"""Looks that must find the chief dead in a life that has not ended before the others are ended too."""
NODES_LOOK_S = 10.0
SUBMIT_TRIES = 5
"""Looks at which a replacement that was refused is asked for: a busy controller, but also an account without hours."""
PASSED_ON = {
    "Account": "--account", "Partition": "--partition", "QOS": "--qos", "MinMemoryNode": "--mem",
    "MinMemoryCPU": "--mem-per-cpu", "Features": "--constraint", "TresPerNode": "--gres",
    "Reservation": "--reservation", "ExcNodeList": "--exclude",
}  # fmt: skip
"""What ``scontrol show job`` says of a job → what its replacements ask for too."""
NOTHING = ("", "0", "(null)", "N/A")
ALL_MEMORY = ("--mem", "0")
"""Not nothing: all that a node has."""


class SlurmJob:
    """One life of a job. `run` returns its exit code.

    Args:
        heard: gets the signals that come, also those that come too late for the run.

    Raises:
        UserError: how many lives the run has had cannot be read: one of them would be taken for this one.
    """

    def __init__(
        self,
        run_dir: Path,
        command: Sequence[str],
        environ: Mapping[str, str],
        lost_nodes: LostNodes,
        heard: list[int] | None = None,
    ) -> None:
        self.run_dir, self.command, self.environ, self.lost_nodes = run_dir, list(command), environ, lost_nodes
        self.requeue = False
        self._heard = [] if heard is None else heard
        self._obeyed = 0
        self._stop_reason = ""
        self._lives_before = len(self._lives(within_s=META_S))

    def run(self) -> int:
        """Start the ranks, wait for the run's end, requeue if that is due."""
        started_s = time.time()
        _say(f"life {int(self.environ.get('SLURM_RESTART_COUNT') or 0) + 1}: {' '.join(self.command)}")
        lock = controller.hold(self.run_dir)
        with taking_signals(self._heard.append):  # also while it is requeued, which takes its time on a busy controller
            try:
                # A job submitted from a shell within a job inherits that one's cores.
                environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_CPU_BIND")}
                srun = subprocess.Popen(self.command, start_new_session=True, env=environ)
                try:
                    code = self._wait(srun)
                finally:
                    _end(srun)
                    self.lost_nodes.end()
            finally:
                lock.release()
            return self._ended(code, started_s)

    def _ended(self, code: int, started_s: float) -> int:
        # a shared file system that is away for a moment is not to make a failed run of one that has ended well
        ended = self._life(within_s=META_S).get("ended")
        _say(f"srun: {describe_exit(code)}; run: {ended or 'left no word'}")
        if self.requeue and (not ended or self._stop_reason in ended["reason"]):  # around it: who lost what
            if signal.SIGTERM not in self._heard or not controller.was_cancelled(self.environ):
                return requeue(self.environ)
            _say("cancelled since the warning: not requeued")
        told = ended["reason"] if ended else signal.SIGTERM.name  # who hears it before the run has begun says nothing
        if signal.SIGTERM.name in told and controller.was_preempted(self.environ):
            return requeue(self.environ)  # Slurm would at the end of the GraceTime: too late for a job that ends
        if ended:
            code = 1 if ended["outcome"] == "failed" else 0
        else:
            code = 1 if self._life() else code or 1  # every rank has left, and none could say that the run has ended
        if code:
            why = (report(self.run_dir) if self._life() else "") or refusal(self.run_dir, since_s=started_s)
            print(why or "no rank noted why: see above, and the logs of the run", flush=True)
        return shell_code(code)

    def _wait(self, srun: subprocess.Popen[bytes]) -> int:
        """srun's exit code; when the run has ended and srun has not within a minute, it is ended."""
        follow_until_s, dead_looks, noted = math.inf, 0, False
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return srun.wait(timeout=LOOK_S)
            for signum in self._heard[self._obeyed :]:
                self._signalled(signal.Signals(signum))
                self._obeyed += 1
            life = self._life()
            if life and not noted:
                with contextlib.suppress(UserError, OSError):  # a full disk: the next look tries again
                    controller.note_job(self.run_dir, self.environ)
                    noted = True
            if life and self._stop_reason:  # what was asked before, the beginning life would have cleared away
                try:
                    RunFolder(self.run_dir).request_stop(self._stop_reason)
                except (UserError, OSError) as error:
                    # a full disk: to raise would end the ranks now, and the job is not requeued
                    _say(f"{error}; asking again")
            goes_on = bool(life) and "ended" not in life
            if goes_on:
                self.lost_nodes.look()
            with contextlib.suppress(OSError):  # a shared file system that is away for a while tells nothing
                dead_looks = dead_looks + 1 if goes_on and living_holder(self.run_dir) is None else 0
            if dead_looks >= CHIEF_DEAD_LOOKS:
                _say("the run's chief has died: ending the others")
                return _end(srun)
            if life:  # goes on, also where the one before, with its end, was taken for it
                soon_s = time.monotonic() + SRUN_FOLLOWS_S
                follow_until_s = min(follow_until_s, soon_s) if "ended" in life else math.inf
            if time.monotonic() > follow_until_s:
                _say("the run has ended, srun has not: ending it")
                return _end(srun)

    def _signalled(self, signum: signal.Signals) -> None:
        _say(f"{signum.name}: asking the run to end with a checkpoint")
        if not self._stop_reason:  # the first counts, for the run too: SIGTERM at the limit only follows the warning
            self.requeue = signum == signal.SIGUSR1
            self._stop_reason = WARNING if self.requeue else f"{signum.name} {AT_THE_JOB}"

    def _life(self, within_s: float = 0.0) -> dict[str, Any]:
        """What the chief has noted of this life, empty while it has not begun, or cannot be read in that time."""
        lives = []
        with contextlib.suppress(UserError):  # meta.json may just be replaced on a slow file system
            lives = self._lives(within_s)
        return lives[-1] if len(lives) > self._lives_before else {}

    def _lives(self, within_s: float) -> list[dict[str, Any]]:
        """Raises UserError: they cannot be read, also not in that time."""
        until_s = time.monotonic() + within_s
        while True:
            try:
                return list(RunFolder(self.run_dir).meta().get("lives", []))
            except UserError:
                if time.monotonic() >= until_s:
                    raise
            time.sleep(LOOK_S)


def requeue(environ: Mapping[str, str]) -> int:
    """Have Slurm start the job again; this life's exit code."""
    _say(f"requeueing job {controller.job_name(environ)}")
    refusal = controller.requeue(environ)
    if refusal:
        _say(f"not requeued: {refusal}; resume the run folder by hand")
    return 1 if refusal else 0


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def _end(srun: subprocess.Popen[bytes]) -> int:
    """End srun, and with it the step: politely, then not; returns its code. Harmless when it is gone."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if srun.poll() is None:
            srun.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                srun.wait(END_TIMEOUT_S)
    return srun.returncode if srun.returncode is not None else -int(signal.SIGKILL)


def report(run_dir: Path) -> str:
    """For people: who failed, and the first one's traceback as the last thing. "" when none did."""
    found = failures(run_dir)
    if not found:
        return ""
    lines = [f"{f.role} {f.rank} on {f.node}: {describe_exit(f.code)}" for f in found]
    return "\n".join(
        [f"{len(found)} failed, the first first:", *lines, f"the end of the log of {lines[0]}", found[0].tail]
    )


def give_back_nodes(environ: Mapping[str, str], nodes: int) -> None:
    """Shrink the job to its first ``nodes`` nodes, so that the others serve somebody else. Failing is no harm."""
    if nodes >= int(environ.get("SLURM_NNODES") or nodes):
        return
    answer = controller.ask(["scontrol", "update", f"JobId={controller.job_name(environ)}", f"NumNodes={nodes}"])
    if answer.returncode:
        print(f"the other nodes stay idle, Slurm does not take them back: {answer.stderr.strip()}", flush=True)


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.environ, self.run_dir, self.train, self._clock = environ, run_dir, list(train), clock
        # A heterogeneous job is no matter of whole nodes with equal ranks: its lost actors stay lost.
        self._most_nodes, self._is_of_parts = nodes, bool(environ.get("SLURM_HET_SIZE"))
        self.nodes = self._named()
        self._tries: Counter[str] = Counter()
        self._next_look_s = 0.0

    def _named(self) -> list[str]:
        return [] if self._is_of_parts else names_of(self.environ.get("SLURM_JOB_NODELIST", ""))[: self._most_nodes]

    def look(self) -> None:
        """Replace what has been lost since the last look; does nothing before `NODES_LOOK_S` have passed.

        Raises nothing: a controller that does not answer is asked again at the next look, and the run goes on. One
        node a look: several slow refusals would keep signals waiting.
        """
        if self._is_of_parts or self._clock() < self._next_look_s:
            return
        self._next_look_s = self._clock() + NODES_LOOK_S
        self.nodes = self.nodes or self._named()  # which a controller that was away did not say
        if not self.nodes:
            return
        job = controller.job_name(self.environ)
        shown = controller.ask(["squeue", "--noheader", f"--jobs={job}", "--format=%N|%L"]).stdout.split("\n")[:-1]
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
        with contextlib.suppress(UserError):  # their names need meta.json, which may be away: they end by themselves
            if self._tries and (jobs := self._replacements()):
                controller.ask(["scancel", *jobs.values()])

    def _replacements(self) -> dict[str, str] | None:
        """Node → the job that waits for its place or has it; None while Slurm does not say."""
        answer = controller.ask(["squeue", "--noheader", "--me", "--format=%i %j"])
        named = {name: job for job, _, name in (line.strip().partition(" ") for line in answer.stdout.splitlines())}
        prefix = self._name("")
        found = {node: named[prefix + node] for node in self.nodes if prefix + node in named}
        return None if answer.returncode else found

    def _name(self, node: str) -> str:
        """Of the job that replaces it, by which it is found again: no other has it, not even in this job's next life,
        for a launch has a name of its own."""
        return f"{self.environ.get('SLURM_JOB_NAME', 'dba3c')}-{self._launch_id()}-{node}"

    def _launch_id(self) -> str:
        return str(RunFolder(self.run_dir).life().get("launch_id", ""))

    def _replace(self, node: str, job: str, time_left: str) -> None:
        """Submit a job in the node's place. One that Slurm does not confirm may be there anyhow: the next look sees."""
        self._tries[node] += 1
        answer = controller.ask(["scontrol", "show", "job", "--oneliner", job])
        if answer.returncode == 0:
            options = self.options(node, time_left, answer.stdout)
            srun = shlex.join(controller.srun_command(self.environ, self.train))
            command = ["sbatch", "--parsable", *options, f"--wrap=exec {srun}"]
            answer = controller.ask(command, environ=self.environment(node))
        if answer.returncode:
            tries = f"try {self._tries[node]} of {SUBMIT_TRIES}"
            print(f"node {node} is lost and cannot be replaced ({tries}): {answer.stderr.strip()}", flush=True)
        else:
            number = re.search(r"^\d+", answer.stdout, re.MULTILINE)  # a site's own sbatch may say more, or nothing
            which = f"job {number[0]}" if number else "a job that Slurm did not name"
            print(f"node {node} is lost; {which} takes its place as soon as a node is free", flush=True)

    def options(self, node: str, time_left: str, job: str) -> list[str]:
        """One node like the lost one, for as long as the job may still run; ``job`` is what scontrol shows of it."""
        shown = dict(re.findall(r"(?:^| )(\w+)=(\S*)", job))
        asked = {option: re.sub(r"(^|,)gres[:/]", r"\1", shown.get(name, "")) for name, option in PASSED_ON.items()}
        asked["--cpus-per-task"] = self.environ.get("SLURM_CPUS_PER_TASK", "")
        return [
            f"--job-name={self._name(node)}",
            "--nodes=1",
            f"--ntasks-per-node={controller.tasks_per_node(self.environ)}",
            f"--time={time_left or 'UNLIMITED'}",
            f"--output={str(self.run_dir.absolute()).replace('%', '%%')}/logs/replacement-of-{node}.out",
            "--open-mode=append",
            "--no-requeue",
            "--export=ALL",  # whom it replaces stands there; a site's default may be NONE
            *(
                f"{option}={value}"
                for option, value in asked.items()
                if value not in NOTHING or (option, value) == ALL_MEMORY
            ),
        ]

    def environment(self, node: str) -> dict[str, str]:
        """Tells the ranks of a replacement whom they replace (`launch.cluster.launchers`).

        Nothing of this job's own remains: what it was given is not what the replacement is.
        """
        tasks = controller.tasks_per_node(self.environ)
        server = RunFolder(self.run_dir).published("server-0") or {}
        of_job = {name for name in self.environ if name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF"}
        return {
            **{name: value for name, value in self.environ.items() if name not in of_job},
            REPLACES_VARIABLE: str(self.nodes.index(node) * tasks),
            "DBA3C_WORLD_SIZE": str(len(self.nodes) * tasks),
            "DBA3C_LOCAL_WORLD_SIZE": str(tasks),
            "DBA3C_LAUNCH_ID": self._launch_id(),
            "DBA3C_CHIEF_ADDRESS": str(server.get("host") or socket.gethostname()),
        }


def names_of(nodelist: str) -> list[str]:
    """The nodes of a compressed list, n[1-3,7]; [] where Slurm cannot say."""
    return controller.ask(["scontrol", "show", "hostnames", nodelist]).stdout.split() if nodelist else []


def run_job(run_dir: Path, train: Sequence[str], nodes: int | None = None, heard: list[int] | None = None) -> int:
    """One life of the job that this process is the batch script of; its exit code.

    Args:
        train: the command of every rank, without its run folder.
        nodes: run on the first of them, give the others back.
        heard: as in `SlurmJob`.
    """
    train, heard = [*train, "--run-dir", str(run_dir)], [] if heard is None else heard
    with taking_signals(heard.append):  # one that comes while Slurm is asked is obeyed as soon as there is a run
        if int(os.environ.get("SLURM_RESTART_COUNT") or 0) and is_there(run_dir / "config.json"):
            train.append("--resume")
        if nodes is not None:
            give_back_nodes(os.environ, nodes)
        command = controller.srun_command(os.environ, train, nodes)
        lost_nodes = LostNodes(os.environ, run_dir, train, nodes)
        try:
            return SlurmJob(run_dir, command, os.environ, lost_nodes, heard).run()
        except (UserError, OSError) as error:
            print(f"dba3c: {error}", file=sys.stderr)
            return 2
