"""Consistent checkpoints: one file per shard, then a manifest, then one rename.

    checkpoints/
        step-2000/
            manifest.json                        written last: sizes and SHA-256 of all files and of itself, layout,
                                                 step, data points
            shard-0-of-2.safetensors             "parameters" [n] and "optimizer.<name>" [n] or []
            shard-1-of-2.safetensors

A directory is complete when its name does not end in `.tmp`: every file in it was flushed to disk before the rename.
Whoever crashes halfway leaves a `.tmp` or, at worst, a torn directory, which is named and skipped. What fails is
deleted, and whoever publishes sweeps the rest before the next one is written: else a full disk would stay full.

Torn is what is there and not as its manifest says. What the file system does not let us read (a stale handle of NFS, a
missing permission) is not torn: it is tried again for a few seconds and then refused, as is a folder in which
checkpoints are and none is whole. Nobody who reads changes anything. A run that goes on from an earlier checkpoint
renames the later ones, whether they are damaged or of steps that were undone, to `step-12.aside-1`, for people to look
at and delete. Old ones are deleted when enough newer ones are there.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from param_servers.errors import CheckpointError, CheckpointUnreadable, ConfigError
from param_servers.layout import FlatLayout, ShardPlan
from param_servers.optim import State, merge_states

FORMAT = "param_servers checkpoint 1"
_PAUSES_S = (0.1, 0.5, 1.0, 2.0)
"""Between attempts to read what the file system refuses."""
_LOOKS = 3
"""At a folder in which checkpoints come and go meanwhile."""
_TORN_NAMED = 3
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""What the file system knows for sure: the name is no file."""
T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint in memory, whatever number of shards wrote it."""

    step: int
    data_points: int
    term: int
    layout: FlatLayout
    parameters: Tensor
    """[P] float32 in the order of `layout`."""
    optimizer_state: State
    """Moments [P] and counters []."""

    def slice_for(self, plan: ShardPlan, shard: int) -> tuple[Tensor, State]:
        """Parameters [n] and optimizer state of one shard of `plan`, which may cut the tensors otherwise.

        Raises:
            CheckpointError: `plan` holds other tensors; those that differ are named.
        """
        try:
            self.layout.refuse_another(plan.layout)
        except ConfigError as error:
            raise CheckpointError(f"checkpoint step-{self.step} is of another network: {error}") from None
        part, state = plan.slice_of(shard), self.optimizer_state
        return self.parameters[part], {name: each[part] if each.dim() else each for name, each in state.items()}


def shard_file(shard: int, num_shards: int) -> str:
    return f"shard-{shard}-of-{num_shards}.safetensors"


def write_shard(
    directory: Path, step: int, term: int, shard: int, num_shards: int, parameters: Tensor, state: State
) -> dict[str, Any]:
    """Write and flush one shard's file of checkpoint `step`; returns its entry for the manifest.

    Raises:
        OSError: it could not; what was written is deleted.
    """
    folder = _unfinished(directory, step, term)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / shard_file(shard, num_shards)
    tensors = {"parameters": parameters} | {f"optimizer.{name}": tensor for name, tensor in state.items()}
    with _deleted_if_it_fails(path):
        try:
            save_file(tensors, path)  # `save` would keep the interpreter's lock twice as long
        except SafetensorError as error:  # a full disk comes out as this
            raise OSError(f"{path}: {error}") from error
        _sync(path)
        content = path.read_bytes()
    return {"file": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def publish(
    directory: Path,
    step: int,
    *,
    data_points: int,
    term: int,
    plan: ShardPlan,
    files: Sequence[Mapping[str, Any]],
    keep: int,
) -> Path:
    """All shards are on disk: write the manifest, make the checkpoint visible, delete old ones.

    Raises:
        OSError: it could not; what the shards have written is deleted, for none of them still writes there.
    """
    folder, final = _unfinished(directory, step, term), directory / f"step-{step}"
    with _deleted_if_it_fails(folder):
        there, named = set(os.listdir(folder)), {str(entry["file"]) for entry in files}
        for stray in there - named:
            (folder / stray).unlink()
        if missing := sorted(named - there):
            raise OSError(f"{folder} has no {', '.join(missing)}: all servers have to write into the same directory")
        manifest = {
            "format": FORMAT,
            "step": step,
            "data_points": data_points,
            "term": term,
            "layout": [[name, list(shape)] for name, shape in zip(plan.layout.names, plan.layout.shapes, strict=True)],
            "cuts": list(plan.cuts),
            "fingerprint": plan.fingerprint,
            "files": sorted(files, key=lambda entry: str(entry["file"])),
        }
        manifest |= {"sha256": _digest(manifest)}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
        _sync(folder / "manifest.json")
        _sync(folder)
        if final.exists():  # a torn one, or one from before a roll-back
            _set_aside(final)
        os.rename(folder, final)
        _sync(directory)
    with contextlib.suppress(OSError):  # this one is there, whatever becomes of the others; the next one sweeps, too
        _sweep(directory, step, term, keep)
    return final


def _sweep(directory: Path, step: int, term: int, keep: int) -> None:
    """What the checkpoint of `step` makes superfluous: older ones, and those of earlier terms that were not finished.
    A later one, which is torn, counts for nothing."""
    older = [path for saved, path in _found(directory) if saved < step]
    for old in older[: max(0, len(older) + 1 - keep)]:
        half_gone = old.with_name(f"{old.name}.term-0.tmp")  # a later `publish` sweeps it where this one is cut off
        with contextlib.suppress(OSError):
            os.rename(old, half_gone)
        shutil.rmtree(half_gone, ignore_errors=True)
    sweep_unfinished(directory, step, term)


def sweep_unfinished(directory: Path, step: int, term: int) -> None:
    """Delete what was not finished of this term and earlier ones, but for what is there of `step` in this term."""
    for abandoned in directory.glob("step-*.term-*.tmp"):
        number = abandoned.stem.rpartition("-")[2]
        is_old = number.isdigit() and int(number) <= term  # a later one is of the writer that took this one's place
        if is_old and abandoned != _unfinished(directory, step, term):
            shutil.rmtree(abandoned, ignore_errors=True)


def set_aside_after(directory: Path, step: int, among: Sequence[Path] | None = None) -> None:
    """Rename checkpoints of later steps than `step` (with `among`: of these alone): the run goes back to it.

    Raises OSError.
    """
    for path in [path for saved, path in _found(directory) if saved > step and (among is None or path in among)]:
        _set_aside(path)


def checkpoints_in(directory: Path) -> list[Path]:
    """All that are there now, oldest first, valid or not.

    Raises:
        CheckpointUnreadable: the directory cannot be read.
    """
    return [path for _, path in patiently(lambda: _found(directory), directory)]


def _set_aside(path: Path) -> None:
    names = (path.with_name(f"{path.name}.aside-{number}") for number in itertools.count(1))
    os.rename(path, next(name for name in names if not name.exists()))
    _sync(path.parent)


def is_there(path: Path) -> bool:
    """Raises OSError where that cannot be known, as `Path.exists` does before Python 3.14."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def patiently(read: Callable[[], T], path: Path) -> T:
    """The result of `read`, which is tried again where the file system refuses `path`.

    Raises:
        CheckpointUnreadable: it still refuses after a few seconds.
    """
    for pause_s in _PAUSES_S:
        try:
            return read()
        except OSError:
            time.sleep(pause_s)
    try:
        return read()
    except OSError as error:
        tries = f"{len(_PAUSES_S) + 1} times in {sum(_PAUSES_S):g} s"
        raise CheckpointUnreadable(f"{path} cannot be read, tried {tries}: {error}") from error


def find_newest(directory: str | Path, on_skip: Callable[[str], None] = lambda line: None) -> Path | None:
    """The newest valid checkpoint in `directory`, None where no checkpoint is; torn ones are named through `on_skip`.

    Raises:
        CheckpointError: checkpoints are there, and none is whole.
        CheckpointUnreadable: the directory, or one that may be the newest valid one, cannot be read.
    """
    directory, found = Path(directory), list[tuple[int, Path]]()
    torn: list[str] = []
    for _ in range(_LOOKS):
        before, found = found, patiently(lambda: _found(directory), directory)
        if not found:
            return None
        if found == before:
            break
        torn.clear()
        for _, path in reversed(found):
            why = _why_torn(path)
            if not why:
                return path
            torn.append(why)
            on_skip(f"skipped: {why}")
    named = "; ".join(torn[:_TORN_NAMED]) + ("; …" if len(torn) > _TORN_NAMED else "")
    raise CheckpointError(
        f"{directory}: none of its checkpoints is whole ({named}); nothing was changed there: "
        "move them away to begin from step 0"
    )


def _why_torn(path: Path) -> str:
    """ "" of a whole checkpoint. Raises CheckpointUnreadable."""
    try:
        patiently(lambda: sum(1 for _ in _contents(path, _manifest(path))), path)  # one file at a time
    except CheckpointError as error:
        return str(error)
    return ""


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint directory.

    Raises:
        CheckpointError: there is none, or it is not one of ours.
        CheckpointUnreadable: it cannot be read.
    """
    return patiently(lambda: _manifest(path), path)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Check and load a checkpoint written by any number of shards.

    Raises:
        CheckpointError: it is torn, or its files do not fit its manifest; nothing is half-loaded.
        CheckpointUnreadable: it cannot be read.
    """
    path = Path(path)
    return patiently(lambda: _load(path), path)


def _load(path: Path) -> Checkpoint:
    """Raises CheckpointError, OSError."""
    manifest = _manifest(path)
    try:
        found = {name: load(content) for name, content in _contents(path, manifest)}
        layout = FlatLayout.of([(name, shape) for name, shape in manifest["layout"]])
        shards = [found[shard_file(shard, len(found))] for shard in range(len(found))]
        parameters = torch.cat([shard.pop("parameters") for shard in shards])
        layout.check(parameters)
        states = [{name.removeprefix("optimizer."): shard[name] for name in shard} for shard in shards]
        state = merge_states(states)
    except (ValueError, TypeError, KeyError, RuntimeError, SafetensorError, ConfigError) as error:
        raise CheckpointError(f"checkpoint {path.name} is torn: {error}") from error
    return Checkpoint(manifest["step"], manifest["data_points"], manifest["term"], layout, parameters, state)


def _manifest(path: Path) -> dict[str, Any]:
    """Raises CheckpointError, OSError."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"checkpoint {path.name} has the format {manifest['format']!r}, not {FORMAT!r}")
        for name, kind in (("step", int), ("data_points", int), ("term", int), ("files", list), ("layout", list)):
            if not isinstance(manifest[name], kind):
                raise CheckpointError(f"checkpoint {path.name} is torn: its manifest's {name} is no {kind.__name__}")
        for entry in manifest["files"]:
            str(entry["file"]), int(entry["bytes"]), str(entry["sha256"])
    except (*_NOT_THERE, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path.name} is torn: {type(error).__name__} in manifest.json") from error
    said = path.resolve().name.removeprefix("step-")
    if said.isdigit() and int(said) != manifest["step"]:  # a copy, which who goes on from it would set aside
        raise CheckpointError(f"checkpoint {path.name} is torn: its manifest is of step {manifest['step']}")
    if manifest.get("sha256", _digest(manifest)) != _digest(manifest):  # older ones say nothing of themselves
        raise CheckpointError(f"checkpoint {path.name} is torn: its manifest is not as it was written")
    return dict(manifest)


def _digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of all that it says but for this."""
    said = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _contents(path: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Name and content of one file after the other, each as the manifest says: what was hashed is what is loaded, and
    no mapped file can fail under the tensors later. Raises CheckpointError, OSError."""
    names = [str(entry["file"]) for entry in manifest["files"]]
    if sorted(names) != sorted(shard_file(shard, len(names)) for shard in range(len(names))):
        raise CheckpointError(f"checkpoint {path.name} is torn: its manifest names other files than its shards")
    for entry, name in zip(manifest["files"], names, strict=True):
        content = None
        if not (path / name).exists() or (path / name).is_file():  # a pipe would not open, a device has no end
            with contextlib.suppress(*_NOT_THERE), (path / name).open("rb") as file:
                if os.fstat(file.fileno()).st_size == entry["bytes"]:  # before memory is taken for it
                    content = file.read(entry["bytes"] + 1)
        if content is None or hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise CheckpointError(f"checkpoint {path.name} is torn: {name} does not fit the manifest")
        yield name, content


def _unfinished(directory: Path, step: int, term: int) -> Path:
    # Servers: the term, another in each life, keeps a writer that was slow to die from spoiling its successor's files.
    return directory / f"step-{step}.term-{term}.tmp"


@contextlib.contextmanager
def _deleted_if_it_fails(path: Path) -> Iterator[None]:
    """A file or folder in the making does not stay where the body raises OSError."""
    try:
        yield
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _found(directory: Path) -> list[tuple[int, Path]]:
    """Checkpoint directories by step, oldest first, valid or not. Raises OSError."""
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return []
    named = [(path.name.removeprefix("step-"), path) for path in paths if path.name.startswith("step-")]
    return sorted((int(step), path) for step, path in named if step.isdigit())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():  # some cannot sync a folder
            raise
    finally:
        os.close(descriptor)
