"""A run and its lives: started, attacked by a seed's schedule, ended in some way, checked, resumed.

Waits are bounded, and generous: a loaded machine is no finding.
"""

from __future__ import annotations

import contextlib
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import psutil

from tests.chaos import faults
from tests.chaos.faults import BACKUP, SERVERS, WORKERS, Fault, Undo, Victim
from tests.chaos.verify import Verifier
from tests.chaos.worker import FOLDER_VARIABLE, LIFE_VARIABLE

ROOT = Path(__file__).parents[2]
RATE = (1e-3, 1e-4, 200_000.0)
TRAIN = (
    "train", "tests.chaos.worker:make_cartpole", "--network", "mlp", "--envs-per-worker", "2", "--rollout-length", "8",
    "--servers", str(SERVERS), "--workers", str(WORKERS), "--backup-workers", str(BACKUP), "--track",
    "--optimizer", "adam", "--learning-rate", f"linear:{RATE[0]}->{RATE[1]}@{RATE[2]:g}",
    "--checkpoint-every-steps", "25", "--metrics-window-s", "0.5", "--step-timeout-s", "10",
    "--join-timeout-s", "120", "--reconnect-timeout-s", "120",
)  # fmt: skip
ADAM = {"betas": (0.9, 0.999), "eps": 1e-5}
DISK_MEGABYTES = 256
PROGRESS_TIMEOUT_S = 240.0
"""For ten more steps, whatever has just happened: the run's own patience (120 s) and the start of its processes."""
END_TIMEOUT_S = 180.0
LIFE_S = (20.0, 60.0)
ENDINGS = ("ctrl-c", "stop", "sigterm", "power", "launcher", "no terminal")


class Finding(Exception):
    """The run did what it must not; nothing further can be checked."""


class Life:
    """One launch of the run, in a session and at a terminal (or with a pipe) of its own."""

    def __init__(self, words: list[str], environ: dict[str, str], log: Path, at_terminal: bool) -> None:
        self._log = log.open("ab", buffering=0)
        self._ours, theirs = pty.openpty() if at_terminal else os.pipe()
        self._at_terminal = at_terminal
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launch", *words],
            cwd=ROOT,
            env=environ,
            stdin=theirs if at_terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: faults.begin_session(at_terminal),
        )
        os.close(theirs)
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        os.set_blocking(self._ours, False)
        while not self._closed.wait(0.05):
            with contextlib.suppress(BlockingIOError):
                try:
                    said = os.read(self._ours, 1 << 16)
                except OSError as error:
                    if isinstance(error, BlockingIOError):
                        continue
                    return  # EIO: nobody at the other end
                if not said:
                    return
                self._log.write(said)

    @property
    def hung_up(self) -> bool:
        """Whether it has lost its terminal, of which it is told by SIGHUP."""
        return self._at_terminal and self._closed.is_set()

    def press_ctrl_c(self) -> None:
        if self._at_terminal and not self._closed.is_set():
            os.write(self._ours, b"\x03")
        else:
            self.process.send_signal(signal.SIGINT)

    def lose_terminal(self) -> None:
        """The window is closed, the pipe's reader gone."""
        if not self._closed.is_set():
            self._closed.set()
            self._reader.join(10)
            os.close(self._ours)

    def close(self) -> None:
        self.lose_terminal()
        self._log.close()


class Campaign:
    """Lives until the time is over. `findings` is what does not hold.

    Args:
        say: told what happens, a line at a time.
        without: kinds of faults, or endings, to leave out.
    """

    def __init__(self, seed: int, minutes: float, say: Callable[[str], None], without: Container[str] = ()) -> None:
        self.rng, self.deadline_s = random.Random(seed), time.monotonic() + 60 * minutes
        self.seed, self.minutes, self._say = seed, minutes, say
        self.findings: list[str] = []
        self.lives = self.faults = 0
        self.interrupted = False
        self.folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        self.run, self.records = self.folder / "run", self.folder / "records"
        self.records.mkdir()
        self.disk = faults.own_mounts() and faults.mount_run(self.run, DISK_MEGABYTES)
        disks = () if self.disk else ("full disk", "read-only disk")
        self.without = {*without, *disks}
        if disks:
            say("not root, or no mounts allowed: without full and read-only disks (`unshare -rm make chaos` has them)")
        self.verifier = Verifier(self.run, self.records, WORKERS - BACKUP, ADAM, RATE)
        self._undo: list[tuple[float, str, Undo]] = []
        self._disk_was_full = False
        """In this life."""
        self._server_hit = False
        """Since steps were last seen to go on: an end now may be one at the newest checkpoint."""
        self._hung_up_amid_faults = False
        """This life's terminal went while a fault held, as a full disk, which takes no last checkpoint."""

    def say(self, line: str) -> None:
        self._say(f"{time.monotonic() - self.deadline_s + 60 * self.minutes:7.1f} s  {line}")

    def play(self) -> None:
        """All lives. Leaves no process, and no mount; the folder stays if there was a finding."""
        faults.adopt_orphans()
        try:
            while not self.findings and (not self.lives or time.monotonic() < self.deadline_s):
                self._live()
        except Finding as finding:
            self.findings.append(f"life {self.lives}: {finding}")
        except KeyboardInterrupt:
            self.interrupted = True
            self.say("interrupted")
        finally:
            for signum in (signal.SIGINT, signal.SIGTERM):  # what follows is bounded
                signal.signal(signum, signal.SIG_IGN)
            faults.kill_all()
            self._undo_all()
            self._leave()

    def _leave(self) -> None:
        """A mount of ours ends with this process: what it holds is copied where it can be looked at."""
        if self.findings:
            if self.disk:
                shutil.copytree(self.run, self.folder / "run-as-it-was", ignore=shutil.ignore_patterns("secret"))
            self.say(f"kept: {self.folder}")
        else:
            for mount in (self.run / "checkpoints", self.run) if self.disk else ():
                subprocess.run(["umount", "--lazy", mount], check=False)
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- one life ----------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        life, rng = self.lives, self.rng
        words = ["resume", str(self.run)] if life else [*TRAIN, "--run-dir", str(self.run), "--seed", str(self.seed)]
        ending = rng.choice([ending for ending in ENDINGS if ending not in self.without])
        at_terminal, length_s, seed = rng.random() < 0.7, rng.uniform(*LIFE_S), rng.randrange(1 << 30)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
        environ |= {FOLDER_VARIABLE: str(self.records), LIFE_VARIABLE: str(life)}
        self._disk_was_full = self._hung_up_amid_faults = False
        self.say(f"life {life} begins {'at a terminal' if at_terminal else 'with a pipe'}: dba3c {words[0]}")
        launch = Life(words, environ, self.folder / "terminal.log", at_terminal)
        try:
            self._attack(launch, min(length_s, 15 * self.minutes), random.Random(seed))
            code = self._end(launch, ending)
        finally:
            launch.close()
        self._everybody_gone()
        self._undo_all()
        saved = code == 0 and not self._server_hit
        findings = self.verifier.life_over(life, last_step_saved=saved, disk_was_full=self._disk_was_full)
        steps, checked = len(self.verifier.history), self.verifier.checkpoints_checked
        self.say(f"life {life} is over: exit code {code}, {steps} steps count, {checked} checkpoints looked at")
        self.findings += findings
        self.lives += 1

    def _attack(self, launch: Life, length_s: float, rng: random.Random) -> None:
        self._progress(launch, 10)
        if launch.process.poll() is not None:
            return
        victim = Victim(self.run, psutil.Process(launch.process.pid), launch.lose_terminal)
        until_s = min(time.monotonic() + length_s, max(self.deadline_s, time.monotonic() + 10))
        while time.monotonic() < until_s and launch.process.poll() is None:
            self._do(victim, faults.draw(rng, self.without))
            self._hung_up_amid_faults |= launch.hung_up and bool(self._undo)
            pause_until_s = time.monotonic() + rng.choice([0.2, 1.0, 3.0, 6.0])
            while time.monotonic() < pause_until_s:
                self._undo_due()
                time.sleep(0.05)
        if rng.random() < 0.7:  # else it is ended in the middle of them
            while self._undo:
                self._undo_due()
                time.sleep(0.05)
            self._progress(launch, 10)

    def _do(self, victim: Victim, fault: Fault) -> None:
        if any(str(fault) == name for _, name, _ in self._undo):
            return
        came, undo = victim.do(fault)
        self.faults += 1
        self._server_hit |= fault.role == "server" and fault.kind in faults.AIMED
        self.say(f"  {fault}" + (f" ({came})" if came else ""))
        self._disk_was_full |= fault.kind == "full disk" and undo is not None
        if undo is not None:
            self._undo.append((time.monotonic() + fault.hold_s, str(fault), undo))

    def _undo_due(self, all_of_them: bool = False) -> None:
        due = [entry for entry in self._undo if all_of_them or time.monotonic() >= entry[0]]
        for entry in due:
            self._undo.remove(entry)
            entry[2]()

    def _undo_all(self) -> None:
        self._undo_due(all_of_them=True)

    def _progress(self, launch: Life, steps: int) -> None:
        """More steps from now on, unless the run ends, which `_end` judges."""
        target = self.verifier.commits_now() + steps
        deadline_s = time.monotonic() + PROGRESS_TIMEOUT_S
        while self.verifier.commits_now() < target:
            if launch.process.poll() is not None:
                return
            if time.monotonic() > deadline_s:
                raise Finding(f"it hangs: fewer than {steps} steps in {PROGRESS_TIMEOUT_S:g} s")
            self._undo_due()
            time.sleep(0.1)
        self._server_hit = False

    def _end(self, launch: Life, ending: str) -> int | None:
        """End the life; 0 where it has to have left a checkpoint of its last step."""
        early = launch.process.poll()
        if launch.hung_up:  # it is ending, or has ended: a further signal would hurry it
            ending = "no terminal"
        self.say(f"  ending: {ending}" if early is None else f"  it has ended with exit code {early}")
        honest = launch.hung_up and (self._server_hit or self._hung_up_amid_faults)
        if early is not None:
            if honest or (launch.hung_up and early == 0):
                return early
            raise Finding(f"it ended by itself with exit code {early}: {self._last_words()}")
        calm = not self._undo
        if ending == "ctrl-c":
            launch.press_ctrl_c()
        elif ending == "sigterm":
            launch.process.terminate()
        elif ending == "stop":
            self._stop_command(launch)
        elif ending == "no terminal":
            launch.lose_terminal()
            self._progress(launch, 10)
            if launch.process.poll() is None:  # it goes on without
                self._stop_command(launch)
        elif ending == "power":
            faults.kill_all()
        elif ending == "launcher":
            launch.process.kill()
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while launch.process.poll() is None:
            if time.monotonic() > deadline_s:
                raise Finding(f"it has not ended {END_TIMEOUT_S:g} s after {ending}")
            self._undo_due()
            time.sleep(0.05)
        code = launch.process.returncode
        if calm and code and not honest and ending not in ("power", "launcher"):
            raise Finding(f"exit code {code} after {ending}: {self._last_words()}")
        return 0 if calm and ending == "launcher" else code  # whom it leaves behind end the run as asked

    def _stop_command(self, launch: Life) -> None:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-m", "launch", "stop", str(self.run)]
        for _ in range(30):  # a full disk takes no request: whoever asks is told, and asks again
            done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
            if done.returncode == 0 or launch.process.poll() is not None:  # or it has ended by itself meanwhile
                return
            self._undo_due()
            time.sleep(1)
        raise Finding(f"dba3c stop: exit code {done.returncode}: {done.stdout}{done.stderr}")

    def _everybody_gone(self) -> None:
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while left := faults.descendants():
            if time.monotonic() > deadline_s:
                raise Finding(f"still there {END_TIMEOUT_S:g} s after the end: {[p.cmdline()[-8:] for p in left]}")
            self._undo_due()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.1)

    def _last_words(self) -> str:
        text = (self.folder / "terminal.log").read_bytes()[-1500:].decode(errors="replace")
        return " | ".join(line.strip() for line in text.splitlines()[-6:])


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM as Ctrl-C: both leave through `finally`."""

    def leave(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
