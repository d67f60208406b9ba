"""Consistent checkpoints: one file per shard, then a manifest, then one rename.

    checkpoints/
        LATEST                                   the name of the newest directory below
        step-2000/
            manifest.json                        written last: sizes and SHA-256 of all files, layout, step, data points
            shard-0-of-2.safetensors             "parameters" [n] and "optimizer.<name>" [n] or []
            shard-1-of-2.safetensors

A directory is complete when its name does not end in `.tmp`: every file in it was flushed to disk before the rename.
Whoever crashes halfway leaves a `.tmp` or, at worst, a torn directory, which is named and skipped.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from param_servers.errors import ConfigError, SnapshotError
from param_servers.layout import FlatLayout
from param_servers.optimizers import merge_states
from param_servers.sharding import ShardPlan
from param_servers.update_rules import State

FORMAT = "param_servers checkpoint 1"


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
    extra: dict[str, Any] = field(default_factory=dict)

    def slice_for(self, plan: ShardPlan, shard: int) -> tuple[Tensor, State]:
        """Parameters [n] and optimizer state of one shard of `plan`, which may cut and order the tensors otherwise.

        Raises:
            SnapshotError: `plan` holds other tensors.
        """
        if dict(zip(plan.layout.names, plan.layout.shapes, strict=True)) != dict(
            zip(self.layout.names, self.layout.shapes, strict=True)
        ):
            raise SnapshotError(f"the checkpoint of step {self.step} holds other tensors than this model")
        part = plan.slice_of(shard)
        state = {
            name: tensor if tensor.dim() == 0 else self._reordered(tensor, plan.layout)[part]
            for name, tensor in self.optimizer_state.items()
        }
        return self._reordered(self.parameters, plan.layout)[part], state

    def _reordered(self, flat: Tensor, layout: FlatLayout) -> Tensor:
        if layout.names == self.layout.names:
            return flat
        views = self.layout.views(flat)
        return torch.cat([views[name].reshape(-1) for name in layout.names])


def shard_file(shard: int, num_shards: int) -> str:
    return f"shard-{shard}-of-{num_shards}.safetensors"


def write_shard(
    directory: Path, step: int, term: int, shard: int, num_shards: int, parameters: Tensor, state: State
) -> dict[str, Any]:
    """Write and flush one shard's file of checkpoint `step`; returns its entry for the manifest. Raises OSError."""
    folder = _unfinished(directory, step, term)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / shard_file(shard, num_shards)
    tensors = {"parameters": parameters} | {f"optimizer.{name}": tensor for name, tensor in state.items()}
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # a full disk comes out as this
        raise OSError(f"{path}: {error}") from error
    _sync(path)
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": _sha256(path)}


def publish(
    directory: Path,
    step: int,
    *,
    data_points: int,
    term: int,
    plan: ShardPlan,
    files: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Any],
    keep: int,
) -> Path:
    """All shards are on disk: write the manifest, make the checkpoint visible, delete old ones. Raises OSError."""
    folder, final = _unfinished(directory, step, term), directory / f"step-{step}"
    for stray in set(os.listdir(folder)) - {entry["file"] for entry in files}:
        (folder / stray).unlink()
    manifest = {
        "format": FORMAT,
        "step": step,
        "data_points": data_points,
        "term": term,
        "layout": [[name, list(shape)] for name, shape in zip(plan.layout.names, plan.layout.shapes, strict=True)],
        "cuts": list(plan.cuts),
        "fingerprint": plan.fingerprint,
        "files": sorted(files, key=lambda entry: str(entry["file"])),
        "extra": dict(extra),
    }
    _write_text(folder / "manifest.json", json.dumps(manifest, indent=1))
    _sync(folder)
    if final.exists():  # a torn one, or one from before a roll-back
        shutil.rmtree(final)
    os.rename(folder, final)
    _write_text(directory / "LATEST.tmp", final.name + "\n")
    os.replace(directory / "LATEST.tmp", directory / "LATEST")
    _sync(directory)
    for _, old in _found(directory)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    for abandoned in directory.glob("step-*.tmp"):
        shutil.rmtree(abandoned, ignore_errors=True)
    return final


def discard_after(directory: Path, step: int) -> None:
    """Delete checkpoints of later steps than `step`: the run goes back to it. Raises OSError."""
    for later, path in _found(directory):
        if later > step:
            shutil.rmtree(path)


def find_newest(directory: Path, on_skip: Callable[[str], None] = lambda line: None) -> Path | None:
    """The newest valid checkpoint in `directory`, or None; each torn one is named through `on_skip`."""
    for _, path in reversed(_found(directory)):
        try:
            _check(path)
        except SnapshotError as error:
            on_skip(f"skipped: {error}")
            continue
        return path
    return None


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint directory.

    Raises:
        SnapshotError: there is none, or it is not one of ours.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise SnapshotError(f"checkpoint {path.name} has the format {manifest['format']!r}, not {FORMAT!r}")
        for name, kind in (("step", int), ("data_points", int), ("term", int), ("files", list), ("layout", list)):
            if not isinstance(manifest[name], kind):
                raise SnapshotError(f"checkpoint {path.name} is torn: its manifest's {name} is no {kind.__name__}")
        return dict(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"checkpoint {path.name} is torn: {type(error).__name__} in manifest.json") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Check and load a checkpoint written by any number of shards.

    Raises:
        SnapshotError: it is torn, or its files do not fit its manifest; nothing is half-loaded.
    """
    manifest = _check(path)
    try:
        layout = FlatLayout.of([(name, shape) for name, shape in manifest["layout"]])
        shards = [load_file(path / shard_file(i, len(manifest["files"]))) for i in range(len(manifest["files"]))]
        parameters = torch.cat([shard.pop("parameters") for shard in shards])
        layout.check(parameters)
        states = [{name.removeprefix("optimizer."): shard[name] for name in shard} for shard in shards]
        state = merge_states(states)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError, ConfigError) as error:
        raise SnapshotError(f"checkpoint {path.name} is torn: {error}") from error
    return Checkpoint(
        manifest["step"], manifest["data_points"], manifest["term"], layout, parameters, state, manifest["extra"]
    )


def _check(path: Path) -> dict[str, Any]:
    manifest = read_manifest(path)
    for entry in manifest["files"]:
        file = path / str(entry["file"])
        if not file.is_file() or file.stat().st_size != entry["bytes"] or _sha256(file) != entry["sha256"]:
            raise SnapshotError(f"checkpoint {path.name} is torn: {file.name} does not fit the manifest")
    return manifest


def _unfinished(directory: Path, step: int, term: int) -> Path:
    # The term keeps a writer that was slow to die from spoiling the files of the one that took its place.
    return directory / f"step-{step}.term-{term}.tmp"


def _found(directory: Path) -> list[tuple[int, Path]]:
    """Checkpoint directories by step, oldest first, valid or not."""
    if not directory.is_dir():
        return []
    named = [(path.name.removeprefix("step-"), path) for path in directory.iterdir() if path.name.startswith("step-")]
    return sorted((int(step), path) for step, path in named if step.isdigit())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
