"""The campaign's reader finds what was falsified, in runs that are made up here and then changed in one place."""

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.chaos.verify import Reference, Verifier
from tests.chaos.worker import RECORD

ADAM = {"betas": (0.9, 0.999), "eps": 1e-5}
NUMEL, RATE = 10, (0.01, 0.01, 1.0)
Line = dict[str, Any]


class MadeUp:
    """Two lives of 2 of 3 workers: 6 steps with checkpoints of 3 and 6, then 3 more from there."""

    def __init__(self, folder: Path) -> None:
        self.run, self.records = folder / "run", folder / "records"
        for name in ("audit", "checkpoints"):
            (self.run / name).mkdir(parents=True)
        self.records.mkdir()
        self.rng = np.random.default_rng(0)
        initial = self.rng.standard_normal(NUMEL).astype(np.float32)
        initial.tofile(self.records / "initial")
        self.reference, self.points = Reference(initial, ADAM), [0]
        self.verifier = Verifier(self.run, self.records, 2, ADAM, RATE)

    def life(self, life: int, term: int, steps: range) -> list[Line]:
        lines: list[Line] = [{"kind": "rollback", "term": term, "step": steps.start, "data_points": self.points[-1]}]
        for step in steps:
            gradients = [self.rng.standard_normal(NUMEL).astype(np.float32) for _ in range(2)]
            members = [[worker, 0, step - steps.start + 1] for worker in (0, 2)]
            for (worker, incarnation, sequence), gradient in zip(members, gradients, strict=True):
                crc = zlib.crc32(self.reference.parameters.detach().numpy())
                with (self.records / f"life-{life}.worker-{worker}.incarnation-{incarnation}.pid-7").open("ab") as file:
                    file.write(RECORD.pack(b"GRAD", crc, sequence, step, 16) + gradient.tobytes())
                    file.write(RECORD.pack(b"DONE", 1, sequence, step + 1, 0))
            self.reference.apply(gradients, RATE[0])
            self.points.append(self.points[-1] + 32)
            lines.append({
                "kind": "commit", "term": term, "step": step, "members": members, "learning_rate": RATE[0],
                "data_points_before": self.points[-2], "data_points": self.points[-1],
            })  # fmt: skip
            if (step + 1) % 3 == 0:
                self.checkpoint(step + 1)
        return lines

    def checkpoint(self, step: int) -> None:
        path = self.run / "checkpoints" / f"step-{step}"
        path.mkdir()
        save_file(self.reference.state(), path / "shard-0-of-1.safetensors")
        digest = hashlib.sha256((path / "shard-0-of-1.safetensors").read_bytes()).hexdigest()
        files = [{"file": "shard-0-of-1.safetensors", "sha256": digest}]
        (path / "manifest.json").write_text(json.dumps({"step": step, "data_points": self.points[-1], "files": files}))

    def log(self, lines: list[Line]) -> None:
        with (self.run / "audit" / "commits.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def test_a_true_run_of_two_lives_gives_no_finding(tmp_path: Path) -> None:
    made = MadeUp(tmp_path)
    made.log(made.life(0, 1, range(6)))
    assert made.verifier.life_over(0, last_step_saved=True) == []
    made.log(made.life(1, 2, range(6, 9)))
    assert made.verifier.life_over(1, last_step_saved=True) == []
    assert (made.verifier.steps_checked, made.verifier.checkpoints_checked) == (9, 4)


def _swap(lines: list[Line]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


FALSIFIED: dict[str, tuple[Callable[[list[Line]], Any], str]] = {
    "a step is missing": (lambda lines: lines.pop(2), "step 2 of term 1 follows 1 steps"),
    "two steps change places": (_swap, "step 2 of term 1 follows 1 steps"),
    "a worker counts twice": (lambda lines: lines[1].update(members=[[0, 0, 1], [0, 0, 1]]), "a worker twice"),
    "one member too few": (lambda lines: lines[1].update(members=[[0, 0, 1]]), "1 members, g is 2"),
    "a gradient counts again": (lambda lines: lines[4].update(members=lines[1]["members"]), "counts again in step 3"),
    "a gradient that nobody pushed": (lambda lines: lines[1]["members"][0].__setitem__(2, 99), "nobody pushed"),
    "data points are added": (lambda lines: lines[1].update(data_points=33), "adds 33, not 32"),
    "another learning rate": (lambda lines: lines[1].update(learning_rate=0.02), "has the learning rate"),
    "nothing begins the term": (lambda lines: lines.pop(0), "before a term began"),
    "a roll-back into the future": (
        lambda lines: lines.insert(3, {"kind": "rollback", "term": 2, "step": 9, "data_points": 0}),
        "a roll-back to step 9, where 2 were made",
    ),
}


@pytest.mark.parametrize("what", FALSIFIED)
def test_a_falsified_log_is_found(tmp_path: Path, what: str) -> None:
    falsify, finding = FALSIFIED[what]
    made = MadeUp(tmp_path)
    lines = made.life(0, 1, range(6))
    falsify(lines)
    made.log(lines)
    assert any(finding in found for found in made.verifier.life_over(0, last_step_saved=True))


def test_one_bit_of_a_gradient_or_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    for name, where in (("gradient", "records/life-0.worker-0.*"), ("shard", "run/checkpoints/step-3/shard*")):
        folder = tmp_path / name
        made = MadeUp(folder)
        made.log(made.life(0, 1, range(6)))
        path = next(folder.glob(where))
        raw = bytearray(path.read_bytes())
        raw[RECORD.size if name == "gradient" else -1] ^= 1
        path.write_bytes(raw)
        found = " ".join(made.verifier.life_over(0, last_step_saved=True))
        assert ("differs from the replay" if name == "gradient" else "step-3 is torn") in found


def test_an_end_without_its_last_checkpoint_and_a_resume_from_an_older_one_are_found(tmp_path: Path) -> None:
    made = MadeUp(tmp_path)
    made.log(made.life(0, 1, range(7)))
    assert "step 7 is in no checkpoint: the newest is 6" in made.verifier.life_over(0, last_step_saved=True)[0]
    made.log([{"kind": "rollback", "term": 2, "step": 3, "data_points": 96}])
    found = " ".join(made.verifier.life_over(1, last_step_saved=False))
    assert "it began at step 3; the newest valid checkpoint was of 6" in found


def test_an_answer_that_does_not_fit_the_log_is_found(tmp_path: Path) -> None:
    made = MadeUp(tmp_path)
    lines = made.life(0, 1, range(6))
    record = next(made.records.glob("life-0.worker-2.*"))
    raw = record.read_bytes().replace(RECORD.pack(b"DONE", 1, 2, 2, 0), RECORD.pack(b"DONE", 0, 2, 2, 0))
    record.write_bytes(raw + RECORD.pack(b"GRAD", 0, 7, 6, 16) + bytes(4 * NUMEL) + RECORD.pack(b"DONE", 1, 7, 7, 0))
    made.log(lines)
    found = " ".join(made.verifier.life_over(0, last_step_saved=True))
    assert "(0, 2, 0, 2) was called not accepted, and counts" in found
    assert "(0, 2, 0, 7) was called accepted, and is in no step" in found
