"""A run's folder: everything that is known about a run, in one place, written so that nothing can be half there.

config.json            the resolved, complete configuration
meta.json              versions, commit, host facts, topology and one entry for each life (launch) of the run
metrics/ROLE-RANK.jsonl  append-only records: the truth
tensorboard/  checkpoints/  videos/  audit/  logs/  evaluations/  exports/
observations/          statistics that observations are normalised by, where they are
curve.csv              in a committed run's place of metrics/
rendezvous/NAME.json   where a server listens, who has left, …: in this life
secret                 0600, made once: shared by the processes of the run
stop.json              {"reason": ...}: whoever wants the run to end writes it once; the coordinator looks for it
lock.json              who writes here now (dba3c.runs.lock)
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dba3c.config import TrainConfig
from dba3c.errors import RUN_TAKEN_OVER_EXIT, UserError, warn_on_stderr, writing
from dba3c.runs import host_facts
from dba3c.runs.contents import CURVE_FILE, FOLDERS, refuse_strangers, refuse_what_is_there, runs_beneath
from dba3c.runs.files import check_writable, is_there, look_anew, resolved, write_atomically, write_once
from dba3c.runs.lock import Holder, RunLock, living_holder, refuse_held, taken_over

SECRET_VARIABLE = "DBA3C_SECRET"
STOP_COMMAND = "dba3c stop"
"""The reason of a run that its user stopped: like after Ctrl-C a study goes on with it."""
CLOCKS_S = 10.0
"""So far apart may the clocks of two hosts be."""


class RunFolder:
    """One run's folder. `launch` takes its lock; `open` is for its roles and for viewers."""

    def __init__(self, path: Path, lock: RunLock | None = None) -> None:
        self.path = path
        self.lock = lock
        self.metrics = path / "metrics"
        self.checkpoints = path / "checkpoints"
        self.videos = path / "videos"
        self.rendezvous = path / "rendezvous"
        self.audit = path / "audit"
        self._stop_here: str | None = None

    # -- getting one ---------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: str | Mapping[str, Any], **life: Any) -> RunFolder:
        """A new run in an absent or empty folder: `launch` that resumes nothing."""
        return cls.launch(path, config, resume=False, **life)

    @classmethod
    def launch(
        cls, path: str | os.PathLike[str], config: str | Mapping[str, Any] | None, resume: bool, **life: Any
    ) -> RunFolder:
        """A new run, or a further life of a finished or broken one (`resume`), holding the folder's lock.

        Args:
            config: JSON text or a mapping; None: the one that is there.
            life: see `begin_life`.

        Raises:
            UserError: it holds a run, none to resume, or other things; somebody has it; it cannot be written.
        """
        cls.refuse_launch(path, resume)
        folder = resolved(path)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = RunLock.acquire(folder, life.get("launch_id", ""))
        try:
            refuse_what_is_there(folder, resume)
            run = cls(folder, lock)
            with writing(folder):
                for name in FOLDERS:
                    (folder / name).mkdir(exist_ok=True)
            check_writable(run.checkpoints)
            run.secret()
            run._forget_last_life(life.get("launch_id", ""))
            if config is not None:
                text = config if isinstance(config, str) else json.dumps(config, indent=2)
                write_atomically(folder / "config.json", text.rstrip("\n") + "\n")
            run.begin_life(**life)
            lock.look_whether_deleted()  # it is there: from now on it can be missed
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def refuse_launch(cls, path: str | os.PathLike[str], resume: bool) -> None:
        """Raise UserError where `launch` would for what is there, at once and without taking it."""
        folder = resolved(path)
        if is_there(folder):
            refuse_held(folder)
        refuse_what_is_there(folder, resume)

    @classmethod
    def refuse_unusable(cls, path: str | os.PathLike[str]) -> None:
        """Raise UserError where `launch` would, as far as anybody can see it who shares the folder."""
        folder = resolved(path)
        refuse_strangers(folder)
        check_writable(folder)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        wait_s: float = 0.0,
        launch_id: str = "",
        while_waiting: Callable[[], None] = lambda: None,
        since_s: float = 0.0,
        run_name: str = "",
    ) -> RunFolder:
        """An existing run: for the processes of its launch, for viewers and for plots.

        Waits up to `wait_s` for the launch to have made it; with `launch_id` or `since_s`, for that launch and not an
        earlier one (of the same name or also without one, that began before `since_s` and has ended or died). The lock
        of a launch with a name is then followed. With `run_name` for whichever life of that name has begun since
        `since_s`. `while_waiting` may raise, which ends the wait.
        """
        folder = resolved(path)
        began_s = time.monotonic()
        while True:
            run = cls(folder)
            any_life = not launch_id and not since_s
            if is_there(folder / "config.json") and (any_life or run._is_in_life_of(launch_id, since_s, run_name)):
                run._follow(launch_id)
                return run
            while_waiting()
            waited_s = time.monotonic() - began_s
            if waited_s >= wait_s:
                waited = f" after {wait_s:.0f} s" if wait_s else ""
                which = f" of launch {launch_id}" if launch_id else ""
                if not is_there(folder) and not launch_id:
                    raise UserError(f"there is no folder {folder}{waited}")
                hint = "" if launch_id else runs_beneath(folder)
                why = f"config.json is missing or not its own{hint}"
                raise UserError(f"{folder} is not a run folder{which}{waited}: {why}")
            # soon there, as a rule; but many ranks may wait for minutes
            time.sleep(min(max(0.05, waited_s / 10), 0.5, max(wait_s, 0.001)))

    # -- lives ---------------------------------------------------------------------------------------------------

    def begin_life(
        self,
        launcher: str = "local",
        topology: Mapping[str, Any] | None = None,
        cores: int | None = None,
        launch_id: str = "",
        command: str = "",
        starts: int = 0,
    ) -> None:
        """Adds a life to meta.json. `cores`: all cores that the run holds on all hosts (this host's by default);
        `starts`: how often any rank had been started before."""
        meta = self.meta()
        life = {
            "started_s": time.time(),
            "launcher": launcher,
            "launch_id": launch_id,
            "command": command,
            "starts": starts,
            "topology": dict(topology or {}),
            "cores": cores if cores is not None else host_facts.usable_cores(),
            "started_by": host_facts.started_by(),
            "lock": asdict(self.lock.holder) if self.lock is not None else None,
            "host": host_facts.host(),
            "versions": host_facts.versions(),
            "source": host_facts.git_commit(),
        }
        meta["lives"] = [*meta.get("lives", []), life]
        self._write_meta(meta)

    def end_life(self, outcome: str, reason: str) -> None:
        """Notes how this life ended (`outcome`: "finished", "stopped" or "failed"), for `status` and for people."""
        meta = self.meta()
        meta.setdefault("lives", [{}])[-1]["ended"] = {"time_s": time.time(), "outcome": outcome, "reason": reason}
        self._write_meta(meta)

    def _is_in_life_of(self, launch_id: str, since_s: float, run_name: str) -> bool:
        life = self.life()
        if run_name:
            is_named = life.get("topology", {}).get("run_name") == run_name
            late_s = float(life.get("started_s", 0.0)) - since_s
            begun = late_s >= 0.0 or (late_s >= -CLOCKS_S and "ended" not in life and self._is_held_by(life))
            return is_named and begun
        begun = life.get("started_s", 0.0) >= since_s or ("ended" not in life and self._is_held_by(life))
        return life.get("launch_id") == launch_id and begun

    def _is_held_by(self, life: Mapping[str, Any]) -> bool:
        """Whether who has begun this life is alive, and holds the folder."""
        holder, noted = living_holder(self.path), life.get("lock") or {}
        return holder is not None and holder.token == noted.get("token")

    def _follow(self, launch_id: str) -> None:
        holder = self.life().get("lock") if launch_id else None
        if isinstance(holder, dict):
            self.lock = RunLock(self.path, Holder(**holder), keeps=False)

    def refuse_when_lost(self) -> None:
        """Raise UserError where another launch has taken over: this one's processes write nothing more."""
        successor = self.lock.look() if self.lock is not None else None
        if successor is not None:
            raise UserError(taken_over(self.path, successor))

    def end_process_when_lost(self, say: Callable[[str], Any] = lambda line: None) -> None:
        """From now on, let this process end at once when another launch takes the folder, which is then not its own.

        Its children end with it, or by themselves: each follows the lock. `say` is not for a log in the folder.
        """

        def leave(successor: Holder) -> None:
            try:
                say(f"dba3c: {taken_over(self.path, successor)}")
            finally:
                os._exit(RUN_TAKEN_OVER_EXIT)

        if self.lock is not None:
            self.lock.when_lost(leave)

    def release(self) -> None:
        """Gives the lock back."""
        if self.lock is not None:
            self.lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def life(self) -> dict[str, Any]:
        """The newest life in meta.json, {} when there is none."""
        newest: dict[str, Any] = (self.meta().get("lives") or [{}])[-1]
        return newest

    def life_number(self) -> int:
        """0 in a run's first life, one more each time it is resumed."""
        return max(0, len(self.meta().get("lives", [])) - 1)

    def launch_number(self) -> int:
        """As `life_number`, but that a chief which comes back begins a life of the same launch: it counts from the
        first of them."""
        lives = self.meta().get("lives") or [{}]
        launch_id, first = lives[-1].get("launch_id"), len(lives) - 1
        while launch_id and first and lives[first - 1].get("launch_id") == launch_id:
            first -= 1
        return first

    def status(self) -> str:
        """ "live" (a launch holds it), "finished" (its last life noted its end) or "broken" (it did not)."""
        if "ended" not in self.life() and living_holder(self.path) is not None:
            return "live"
        return "finished" if "ended" in self.life() else "broken"  # it may have ended between the first two looks

    def _forget_last_life(self, launch_id: str) -> None:
        """What belonged to the last life only: addresses of dead processes, who failed, and why it was stopped.

        Addresses of who outlived the chief of a launch that goes on still hold: nobody publishes one twice. Not so a
        loopback's of another network namespace, or of before a reboot. That somebody stopped such a launch holds, too:
        it ends, and has failed, as steps since the newest checkpoint may be lost.
        """
        life, here = self.life(), host_facts.namespace("net")
        goes_on = bool(launch_id) and life.get("launch_id") == launch_id and "ended" not in life
        old = [
            entry
            for entry in self.rendezvous.iterdir()
            if not goes_on
            or entry.name.startswith("left-")
            or (self.published(entry.stem) or {}).get("only_in", here) != here
        ]
        for entry in (*old, *self.path.glob("logs/failure-*.json")):
            entry.unlink(missing_ok=True)
        reason = self.stop_reason()
        if reason is not None:
            meta = self.meta()
            meta.setdefault("lives", [{}])[-1]["stop_reason"] = reason
            self._write_meta(meta)
            (self.path / "stop.json").unlink(missing_ok=True)
            if goes_on and reason == STOP_COMMAND:
                self.request_stop(reason, failed=True)

    @property
    def is_committed(self) -> bool:
        """Whether it is what was kept of a run that ended: configuration, curve, perhaps the parameters."""
        return is_there(self.path / CURVE_FILE)

    def refuse_committed(self) -> None:
        """Raise UserError where the records are a curve."""
        if self.is_committed:
            raise UserError(f"{self.path} is a committed run, whose records are a curve: dba3c plot draws it")

    # -- content -------------------------------------------------------------------------------------------------

    def train_config(self) -> TrainConfig:
        """config.json, checked. Raises UserError: it cannot be what a run was configured with; the file is named."""
        return TrainConfig.from_json(self._read("config.json"), source=str(self.path / "config.json"))

    def config(self) -> dict[str, Any]:
        """config.json as plain data."""
        return self._parse("config.json")

    def meta(self) -> dict[str, Any]:
        """meta.json as plain data, {} when there is none. Raises UserError when its lives, or how one ended, are not
        objects."""
        meta = self._parse("meta.json") if is_there(self.path / "meta.json") else {}
        lives = meta.get("lives", [])
        if not isinstance(lives, list) or not all(isinstance(life, dict) for life in lives):
            raise UserError(f"{self.path / 'meta.json'}: lives should be a list of objects")
        if not all(isinstance(life.get("ended", {}), dict) for life in lives):
            raise UserError(f"{self.path / 'meta.json'}: how a life ended should be an object")
        return meta

    def _write_meta(self, meta: Mapping[str, Any]) -> None:
        self.refuse_when_lost()
        write_atomically(self.path / "meta.json", json.dumps(meta, indent=2) + "\n")

    def metrics_file(self, role: str, rank: int, lane: int = 0) -> Path:
        return self.metrics / (f"{role}-{rank}.{lane}.jsonl" if lane else f"{role}-{rank}.jsonl")

    def secret(self) -> str:
        """The secret shared by the run's processes: DBA3C_SECRET, else the file, made at the first call."""
        from_environment = os.environ.get(SECRET_VARIABLE)
        if from_environment:
            return from_environment
        path = self.path / "secret"
        if not is_there(path):
            write_once(path, secrets.token_hex(32) + "\n", mode=0o600)
        if path.stat().st_mode & 0o077:
            raise UserError(f"{path} can be read by others: chmod 600 it, or set {SECRET_VARIABLE}")
        return self._read("secret").strip()

    def request_stop(self, reason: str, finished: bool = False, failed: bool = False) -> bool:
        """Asks the run to end at its next step boundary. The first reason stays; returns whether this was it.

        Args:
            finished: the run has had what it was to have (frames, score, time): what follows may take its time. Without
                it somebody waits, or the machine is about to be gone: that counts also when it comes later.
            failed: it cannot go on, and has failed however well it ends.
        """
        self.refuse_when_lost()
        request = {"reason": reason, "time_s": time.time(), "finished": finished, "failed": failed}
        if write_once(self.path / "stop.json", json.dumps(request) + "\n"):
            return True
        if not finished and self.has_finished():
            request = {**request, "reason": self.stop_reason(), "then": reason, "failed": False}
            write_atomically(self.path / "stop.json", json.dumps(request) + "\n")
        return False

    def stop_here(self, reason: str, finished: bool = False, failed: bool = False) -> None:
        """`request_stop` of who cannot be told that the disk refuses: at least this process then ends."""
        self._stop_here = reason
        try:
            self.request_stop(reason, finished, failed)
        except UserError as error:
            warn_on_stderr(f"{error}; this process ends, the others were not told")

    def stop_reason(self) -> str | None:
        """Why the run was asked to end, None when it was not. Two opens, one of a missing file: fine once a second."""
        request = self._stop_request()
        return self._stop_here if request is None else str(request["reason"])

    def has_finished(self) -> bool:
        """Whether the run was asked to end because it has had what it was to have, and nobody waits for its end."""
        return bool((self._stop_request() or {}).get("finished"))

    def has_failed(self) -> bool:
        """Whether the run was asked to end because it could not go on."""
        return bool((self._stop_request() or {}).get("failed"))

    def _stop_request(self) -> dict[str, Any] | None:
        look_anew(self.path)
        try:
            text = (self.path / "stop.json").read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ESTALE or self._stop_here:  # NFS: replaced under us, the next look sees it
                return None
            raise
        try:
            request = json.loads(text)
            return {**request, "reason": str(request["reason"])}
        except (ValueError, KeyError, TypeError):
            return {"reason": "stop.json was written by hand"}

    def publish(self, name: str, address: Mapping[str, Any]) -> None:
        """Writes rendezvous/NAME.json atomically, e.g. {"host": ..., "port": ..., "incarnation": ...}."""
        self.refuse_when_lost()
        write_atomically(self.rendezvous / f"{name}.json", json.dumps(dict(address)) + "\n")

    def note_left(self, role: str, rank: int) -> None:
        """A process has ended as asked; one of the training: the last checkpoint is there, or will be at once."""
        self.publish(f"left-{role}-{rank}", {})

    def has_left(self, role: str, rank: int) -> bool:
        """Whether it has, in this life."""
        return (self.rendezvous / f"left-{role}-{rank}.json").exists()

    def published(self, name: str) -> dict[str, Any] | None:
        """What `publish(name)` wrote in this life, None when it has not yet."""
        path = self.rendezvous / f"{name}.json"
        return self._parse(f"rendezvous/{name}.json") if is_there(path) else None

    def _read(self, name: str) -> str:
        path = self.path / name
        try:
            try:
                return path.read_text(encoding="utf-8-sig")  # some editors put a byte-order mark before it
            except OSError as error:
                if error.errno != errno.ESTALE:  # NFS: it was replaced under us, and is there anew
                    raise
                return path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.path / name}: {getattr(error, 'strerror', None) or error}") from error

    def _parse(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self._read(name))
        except ValueError as error:
            raise UserError(f"{self.path / name} is not valid JSON ({error})") from error
        if not isinstance(value, dict):
            raise UserError(f"{self.path / name} should hold one JSON object")
        return value
