"""An independent reader of what a campaign's run has left: nothing here calls the project's readers, log or replay.

It knows the formats (audit/commits.jsonl, checkpoints in safetensors, the records of `tests.chaos.worker`) and
torch.optim's Adam.
`Verifier.life_over` is to be called after each life of the run; it returns what does not hold.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file

from tests.chaos.worker import RECORD

Key = tuple[int, int, int, int]
"""(life, worker, incarnation, sequence): a gradient, which may count once."""
Vector = npt.NDArray[np.float32]
_RECORD_NAME = re.compile(r"life-(\d+)\.worker-(\d+)\.incarnation-(\d+)\.pid-\d+")
_CHECKPOINT_NAME = re.compile(r"step-(\d+)")


@dataclass
class Commit:
    """A committed step."""

    step: int
    term: int
    members: list[Key]
    data_points_before: int
    data_points: int
    learning_rate: float


@dataclass
class Push:
    """A gradient as its worker recorded it."""

    path: Path
    offset: int
    """Of its [P] float32 in the file."""
    step: int
    data_points: int
    pulled_crc: int
    accepted: bool | None = None
    """The answer; None: the worker died before."""


class Reference:
    """The run in one process: parameters [P] and Adam."""

    def __init__(self, initial: Vector, adam: dict[str, Any]) -> None:
        self.parameters = torch.nn.Parameter(torch.from_numpy(initial.copy()))
        self._adam = torch.optim.Adam([self.parameters], foreach=False, fused=False, **adam)

    def apply(self, gradients: list[Vector], learning_rate: float) -> None:
        """One step with the mean of `gradients`, summed in the order given."""
        total = gradients[0].copy()
        for gradient in gradients[1:]:
            total += gradient
        self.parameters.grad = torch.from_numpy(total / np.float32(len(gradients)))
        self._adam.param_groups[0]["lr"] = learning_rate
        self._adam.step()

    def state(self) -> dict[str, Vector]:
        """What a checkpoint of this version has to hold, by its names."""
        moments = self._adam.state.get(self.parameters) or {}
        named = {f"optimizer.{name}": value.detach().numpy().copy() for name, value in moments.items()}
        return {"parameters": self.parameters.detach().numpy().copy(), **named}

    def copy_state(self) -> tuple[Any, Any]:
        return self.parameters.detach().clone(), copy.deepcopy(self._adam.state_dict())

    def load_state(self, saved: tuple[Any, Any]) -> None:
        with torch.no_grad():
            self.parameters.copy_(saved[0])
        self._adam.load_state_dict(copy.deepcopy(saved[1]))


@dataclass
class Verifier:
    """Follows a run over its lives.

    Args:
        run, records: its folder, and that of its workers' records.
        num_gradients: g, as configured.
        adam: betas and eps.
        schedule: (from, to, over data points), linear.
    """

    run: Path
    records: Path
    num_gradients: int
    adam: dict[str, Any]
    schedule: tuple[float, float, float]
    history: list[Commit] = field(default_factory=list)
    """The commits that count, one for each step from 0 on."""
    steps_checked: int = 0
    checkpoints_checked: int = 0
    _ever: set[Key] = field(default_factory=set)
    _read: int = 0
    """Bytes of the log that earlier lives wrote."""
    _counted: tuple[int, int] = (0, 0)
    """Bytes of the log that `commits_now` has seen, and the commits in them."""
    _term: int = 0
    _newest: int = 0
    """Step of the newest valid checkpoint when the last life was over."""
    _base: tuple[int, Any] | None = None
    """(step, state) of the reference there."""
    _findings: list[str] = field(default_factory=list)

    def commits_now(self) -> int:
        """Commits in the log so far, for whoever waits for the run to go on."""
        path = self.run / "audit" / "commits.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._counted[0])
                new = file.read().rpartition(b"\n")[0]
            self._counted = (self._counted[0] + len(new), self._counted[1] + new.count(b'{"kind": "commit"'))
        return self._counted[1]

    def life_over(self, life: int, last_step_saved: bool, disk_was_full: bool = False) -> list[str]:
        """Check life `life` (from 0 on), all of whose processes are gone.

        Args:
            last_step_saved: whether there has to be a checkpoint of its last step: its launcher ended with exit code 0.
            disk_was_full: for a while: lines that waited for room die with their server, and the steps with them.
        """
        self._findings = []
        pushes = self._pushes(life)
        commits = self._walk(life, self._lines(may_be_torn=not last_step_saved))
        self._check_members(commits, pushes)
        self._check_answers(commits, pushes, all_are_there=not disk_was_full)
        checkpoints = self._checkpoints()
        self._replay(pushes, checkpoints)
        self._newest = max(checkpoints, default=0)
        if last_step_saved and self._newest != len(self.history):
            self._find(
                f"it ended as asked, but step {len(self.history)} is in no checkpoint: the newest is {self._newest}"
            )
        for path in self.records.glob(f"life-{life}.*"):
            path.unlink()
        return [f"life {life}: {finding}" for finding in self._findings]

    def _find(self, what: str) -> None:
        if len(self._findings) < 20:
            self._findings.append(what)

    # -- the log ---------------------------------------------------------------------------------------------------

    def _lines(self, may_be_torn: bool) -> list[dict[str, Any]]:
        """This life's lines. A last one that a sudden end has torn is for the next life to cut off."""
        path = self.run / "audit" / "commits.jsonl"
        raw = path.read_bytes()[self._read :] if path.exists() else b""
        whole, _, torn = raw.rpartition(b"\n")
        if torn and not may_be_torn:
            self._find(f"the log ends in a part of a line: {torn[:80]!r}")
        self._read += len(raw) - len(torn)
        lines = []
        for line in whole.split(b"\n") if whole else []:
            try:
                lines.append(dict(json.loads(line)))
            except ValueError:
                self._find(f"a line of the log is no JSON: {line[:80]!r}")
        return lines

    def _walk(self, life: int, lines: list[dict[str, Any]]) -> list[Commit]:
        """Order, membership, data points. Returns all commits of this life, the undone ones too."""
        commits: list[Commit] = []
        gradients, stopped, begun = self.num_gradients, False, False
        for line in lines:
            kind = line["kind"]
            if line.get("life", life) != life:
                self._find(f"a line says that it is of life {line['life']}")
            if kind == "commit":
                commit = self._commit(life, line)
                if commit.step != len(self.history) - 1:  # what follows cannot be right
                    break
                if not begun or stopped:
                    self._find(
                        f"step {commit.step} is committed {'after the end' if stopped else 'before a term began'}"
                    )
                if len(commit.members) != gradients:
                    self._find(f"step {commit.step} has {len(commit.members)} members, g is {gradients}")
                commits.append(commit)
            elif kind == "rollback":
                if not begun and line["step"] != self._newest:
                    self._find(f"it began at step {line['step']}; the newest valid checkpoint was of {self._newest}")
                if (
                    begun and line["term"] >> 12 > self._term >> 12
                ):  # another life of server 0, which begins with all of g
                    gradients = self.num_gradients
                begun = True
                self._roll_back(line)
            elif kind in ("shrunk", "grown"):
                gradients = line["num_gradients"]
                if not 1 <= gradients <= self.num_gradients:
                    self._find(f"g has become {gradients}")
            elif kind == "stopped":
                stopped = True
        return commits

    def _commit(self, life: int, line: dict[str, Any]) -> Commit:
        members = [(life, *member) for member in line["members"]]
        commit = Commit(
            line["step"], line["term"], members, line["data_points_before"], line["data_points"], line["learning_rate"]
        )
        before = self.history[-1].data_points if self.history else 0
        if commit.step != len(self.history) or commit.term != self._term:
            self._find(f"step {commit.step} of term {commit.term} follows {len(self.history)} steps in {self._term}")
        if commit.data_points_before != before:
            self._find(f"step {commit.step} begins with {commit.data_points_before} data points, {before} were there")
        if len({worker for _, worker, _, _ in members}) != len(members):
            self._find(f"step {commit.step} counts a worker twice: {members}")
        for key in self._ever.intersection(members):
            self._find(f"gradient {key} counts again in step {commit.step}")
        first, last, over = self.schedule
        rate = first + (last - first) * min(1.0, before / over)
        if abs(rate - commit.learning_rate) > 1e-9:
            self._find(f"step {commit.step} has the learning rate {commit.learning_rate}, not {rate}")
        self._ever.update(members)
        self.history.append(commit)
        return commit

    def _roll_back(self, line: dict[str, Any]) -> None:
        step, term = line["step"], line["term"]
        if term <= self._term:
            self._find(f"term {term} follows term {self._term}")
        if step > len(self.history):
            self._find(f"a roll-back to step {step}, where {len(self.history)} were made")
        self._term = term
        del self.history[step:]
        points = self.history[-1].data_points if self.history else 0
        if line["data_points"] != points:
            self._find(f"term {term} begins at step {step} with {line['data_points']} data points, not {points}")

    # -- the workers' records --------------------------------------------------------------------------------------

    def _pushes(self, life: int) -> dict[Key, Push]:
        pushes: dict[Key, Push] = {}
        payload = (self.records / "initial").stat().st_size if (self.records / "initial").exists() else 0
        for path in sorted(self.records.glob(f"life-{life}.*")):
            found = _RECORD_NAME.fullmatch(path.name)
            assert found is not None
            identity = (int(found[1]), int(found[2]), int(found[3]))
            with path.open("rb") as file:
                while len(head := file.read(RECORD.size)) == RECORD.size:
                    kind, number, sequence, step, data_points = RECORD.unpack(head)
                    key = (*identity, sequence)
                    if kind == b"DONE":
                        pushes[key].accepted = bool(number)
                        continue
                    if key in pushes:
                        self._find(f"two processes pushed as {key}")
                    pushes[key] = Push(path, file.tell(), step, data_points, number)
                    file.seek(payload, 1)
        return pushes

    def _check_members(self, commits: list[Commit], pushes: dict[Key, Push]) -> None:
        for commit in commits:
            unknown = [key for key in commit.members if key not in pushes]
            if unknown:
                self._find(f"step {commit.step} counts what nobody pushed: {unknown}")
                continue
            points = sum(pushes[key].data_points for key in commit.members)
            if commit.data_points - commit.data_points_before != points:
                self._find(f"step {commit.step} adds {commit.data_points - commit.data_points_before}, not {points}")
            late = [key for key in commit.members if pushes[key].step != commit.step]
            if late:
                self._find(f"step {commit.step} takes gradients of other steps: {late}")

    def _check_answers(self, commits: list[Commit], pushes: dict[Key, Push], all_are_there: bool) -> None:
        ever = {key for commit in commits for key in commit.members}
        last_term = {key for commit in commits if commit.term == self._term for key in commit.members}
        for key, push in pushes.items():
            if push.accepted and key not in ever and all_are_there:
                self._find(f"gradient {key} was called accepted, and is in no step")
            if push.accepted is False and key in last_term:
                self._find(f"gradient {key} was called not accepted, and counts")

    # -- parameters --------------------------------------------------------------------------------------------------

    def _replay(self, pushes: dict[Key, Push], checkpoints: dict[int, Path]) -> None:
        """From where this life began to its end, with a look at each version that a checkpoint or a worker saw."""
        if not (self.records / "initial").exists():
            return
        initial = np.fromfile(self.records / "initial", np.float32)
        reference = Reference(initial, self.adam)
        begin = 0
        if self._base is not None:
            begin = self._base[0]
            reference.load_state(self._base[1])
        newest = max(checkpoints, default=0)
        for later in [step for step in checkpoints if step > len(self.history)]:
            self._find(f"there is a checkpoint of step {later}, but {len(self.history)} steps count")
        if len(self.history) < begin:
            self._find(f"the history ends at step {len(self.history)}, before the checkpoint of step {begin}")
            return
        for step in range(begin, len(self.history) + 1):
            if step in checkpoints:
                self._check_checkpoint(step, checkpoints[step], reference)
            if step == newest:
                self._base = (step, reference.copy_state())
            if step == len(self.history):
                break
            commit = self.history[step]
            known = [pushes[key] for key in sorted(commit.members) if key in pushes]
            if len(known) < len(commit.members):
                return
            crc = zlib.crc32(reference.parameters.detach().numpy())
            if any(push.pulled_crc != crc for push in known):
                self._find(f"step {step}: a gradient was computed on other parameters than the replay's")
                return
            reference.apply([_gradient(push, initial.size) for push in known], commit.learning_rate)
            self.steps_checked += 1

    def _check_checkpoint(self, step: int, path: Path, reference: Reference) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        points = self.history[step - 1].data_points if step else 0
        if manifest["step"] != step or manifest["data_points"] != points:
            self._find(f"{path.name} says step {manifest['step']}, {manifest['data_points']} data points, not {points}")
        shards = [load_file(path / entry["file"]) for entry in sorted(manifest["files"], key=lambda e: e["file"])]
        for name, expected in reference.state().items():
            parts = [shard[name] for shard in shards]
            whole = np.concatenate(parts) if parts[0].ndim else parts[0]
            if whole.tobytes() != expected.tobytes():
                self._find(f"{path.name}: {name} differs from the replay")
        self.checkpoints_checked += 1

    def _checkpoints(self) -> dict[int, Path]:
        """The valid ones by step; one that is neither valid nor unfinished nor set aside is a finding."""
        valid = {}
        for path in (self.run / "checkpoints").glob("step-*"):
            named = _CHECKPOINT_NAME.fullmatch(path.name)
            if named and self._is_whole(path):
                valid[int(named[1])] = path
            elif named:
                self._find(f"checkpoint {path.name} is torn")
        return valid

    @staticmethod
    def _is_whole(path: Path) -> bool:
        try:
            files = json.loads((path / "manifest.json").read_text())["files"]
            return all(
                hashlib.sha256((path / entry["file"]).read_bytes()).hexdigest() == entry["sha256"] for entry in files
            )
        except (OSError, ValueError, KeyError):
            return False


def _gradient(push: Push, numel: int) -> Vector:
    with push.path.open("rb") as file:
        file.seek(push.offset)
        return np.frombuffer(file.read(4 * numel), np.float32)
