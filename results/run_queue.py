"""The long learning runs of `results/`, one at a time, at the lowest priority; stopped, they go on where they were.

    python results/run_queue.py list           what is done, what is under way, what is to come
    python results/run_queue.py run            go on with the queue until it is empty or stopped (Ctrl-C: a checkpoint)
    python results/run_queue.py save           pack the run under way into results/under_way/, small enough to commit

With names (games/Pong, or algorithms/classic-CartPole/seed-3) all three do so for these alone, and `list` says their
commands, too.

On a kernel that schedules by session the lowest priority means little: sysctl kernel.sched_autogroup_enabled=0.
Then a busy machine leaves a run nothing for minutes, so its steps have a long timeout.

Runs live in runs/queue/ (not committed). One that has ended leaves its curve, configuration and machine in
results/<topic>/<name>/, and where its agent is kept the parameters of its last checkpoint: dba3c evaluate, record and
load take such a folder like a run's. One that is packed is unpacked wherever the queue goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from queued_runs import QUEUE, UNDER_WAY, Entry

from dba3c.environments.normalization import FOLDER as STATISTICS
from dba3c.errors import UserError, did_you_mean, warn_on_stderr, writing
from dba3c.runs.checkpoints import find_parameters
from dba3c.runs.files import checkpoint_steps, write_atomically
from dba3c.runs.folder import RunFolder
from dba3c.studies.curve import downsample
from launch.cli.study import train, train_command
from param_servers.checkpoint.files import publish, write_shard
from param_servers.layout import plan_shards

SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Pythons before 3.11.4 know no filter; what is unpacked is our own."""


def chosen(names: Iterable[str]) -> tuple[Entry, ...]:
    """Those whose label begins with one of the names, part by part; without names all.

    Raises:
        UserError: a name that is none's.
    """
    found = {name: [entry for entry in QUEUE if f"{entry.label}/".startswith(f"{name.rstrip('/')}/")] for name in names}
    for name, entries in found.items():
        if not entries:
            raise UserError(f"nothing in the queue is called {name}; {did_you_mean(name, [e.label for e in QUEUE])}")
    return tuple(entry for entry in QUEUE if not found or any(entry in entries for entries in found.values()))


def is_done(entry: Entry) -> bool:
    """Whether its curve is there, as it must be, and was not given more core-hours, or a higher stop score, since."""
    if not (entry.results / "curve.csv").exists():
        return False
    config = json.loads((entry.results / "config.json").read_text(encoding="utf-8"))
    words = entry.run.point.words
    goal = float(dict(pairwise(words)).get("--stop-score", -math.inf))
    reached = config["run"]["stop_score"]
    if not is_of(config, entry):
        return False
    return float(config["run"]["max_core_hours"]) >= entry.core_hours and (reached is None or reached >= goal)


def is_of(config: Mapping[str, Any], entry: Entry) -> bool:
    """Whether a run so configured is one of it."""
    return all(config[section][option] == value for section, option, value in entry.must_have)


def state(entry: Entry) -> str:
    if is_done(entry):
        return "done"
    return "packed" if entry.packed.exists() and not entry.run.folder.exists() else entry.run.state()


def go_on(entries: Iterable[Entry]) -> int:
    os.nice(19)
    for entry in entries:
        before = state(entry)
        if before == "done":
            keep_agent(entry)
            continue
        if before == "diverged":
            print(f"{entry.label}: diverged, left alone; its run is in {entry.run.folder}", flush=True)
            continue
        if before == "live":
            raise UserError(f"{entry.label} is under way in another process: one at a time")
        if before == "packed":
            unpack(entry)
        goes_on = (entry.run.folder / "config.json").exists()
        if goes_on and not is_of(RunFolder.open(entry.run.folder).config(), entry):
            raise UserError(f"{entry.run.folder} is of what the preset was before: remove it, and its archive")
        print(f"{entry.label}: {before}; budget {entry.core_hours:g} core-hours", flush=True)
        code = train(train_command(entry.run, resume=goes_on))
        if entry.run.state() == "diverged":
            print(f"{entry.label}: diverged, going on with the next", flush=True)
            continue
        if entry.run.state() != "finished":
            print(f"{entry.label}: {entry.run.state()} (exit {code}); the same command goes on from here", flush=True)
            return code or 1
        shutil.rmtree(entry.results / "checkpoints", ignore_errors=True)  # of a budget before
        downsample(entry.run.folder, entry.results, every_s=entry.window_s)
        keep_agent(entry)
        entry.packed.unlink(missing_ok=True)
    return 0


def keep_agent(entry: Entry) -> None:
    """The parameters of its last checkpoint, where they are worth it and it is still there."""
    if (
        entry.is_kept
        and (entry.run.folder / "config.json").exists()
        and not checkpoint_steps(entry.results / "checkpoints")
    ):
        keep_policy(RunFolder.open(entry.run.folder), entry.results, warn_on_stderr)


def keep_policy(run: RunFolder, into: Path, on_skip: Callable[[str], None]) -> Path:
    """Writes the newest whole checkpoint's parameters, one float32 file without optimizer state, where a folder that is
    worth committing (config.json, meta.json, a curve) keeps them: INTO/checkpoints/step-N. Returns that.

    It is read like any other; nothing can go on training from it.

    Raises:
        UserError: the run has no whole checkpoint, or `into` cannot be written.
    """
    policy = find_parameters(run.checkpoints, None, on_skip)
    plan, checkpoints = plan_shards(policy.layout, 1), into / "checkpoints"
    with writing(checkpoints):
        entry = write_shard(checkpoints, policy.step, 0, 0, 1, policy.parameters, {})
        kept = publish(
            checkpoints, policy.step, data_points=policy.data_points, term=0, plan=plan, files=[entry], keep=1
        )
        if policy.observation_statistics is not None:
            (into / STATISTICS).mkdir(exist_ok=True)
            text = json.dumps({policy.step: policy.observation_statistics})
            write_atomically(into / STATISTICS / "all.json", text + "\n")
    return kept


def unpack(entry: Entry) -> None:
    part = entry.run.folder.with_name(f"{entry.run.folder.name}.part")  # half a run would begin anew
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(entry.packed) as archive:
        archive.extractall(part, **SAFELY)
    part.rename(entry.run.folder)


def save(entries: Iterable[Entry]) -> int:
    """What a run needs to be resumed elsewhere: configuration, records, its newest checkpoint.

    Of a run that is not here its archive stays as it is.
    """
    for entry in entries:
        run = entry.run
        if is_done(entry):
            entry.packed.unlink(missing_ok=True)
            continue
        if not (run.folder / "config.json").exists():
            continue
        if run.state() == "live":
            raise UserError(f"{entry.label} is live: stop it first (dba3c stop {run.folder})")
        checkpoints = RunFolder.open(run.folder).checkpoints
        newest = {f"step-{step}" for step in checkpoint_steps(checkpoints)[-1:]}
        UNDER_WAY.mkdir(exist_ok=True)
        part = entry.packed.with_suffix(".part")
        with tarfile.open(part, "w:xz") as archive:
            for path in sorted(run.folder.iterdir()):
                if path.name in ("tensorboard", "logs", "audit", "videos", "checkpoints", "secret"):
                    continue  # its next life draws a new secret
                archive.add(path, path.name)
            for path in sorted(checkpoints.iterdir()):
                if path.name in newest or not path.name.startswith("step-"):
                    archive.add(path, f"checkpoints/{path.name}")
        part.replace(entry.packed)
        print(f"{entry.label}: {entry.packed.stat().st_size / 1e6:.1f} MB")
    return 0


def show(entries: Iterable[Entry], commands: bool) -> int:
    for entry in entries:
        print(f"{state(entry):10} {entry.label:50} {entry.core_hours:g} core-hours")
        if commands:
            print(f"    dba3c train {shlex.join([*entry.run.point.words, '--seed', str(entry.seed)])}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "run", "save"))
    parser.add_argument("names", nargs="*", help="of the queue's runs; without them all")
    asked = parser.parse_args()
    try:
        entries = chosen(asked.names)
        if asked.what == "list":
            return show(entries, commands=bool(asked.names))
        return {"run": go_on, "save": save}[asked.what](entries)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.SubprocessError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
