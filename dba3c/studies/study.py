"""A study: points × seeds, declared in study.json; each run is a run folder POINT/seed-S beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dba3c.errors import UserError, writing
from dba3c.runs.atomic_files import write_atomically
from dba3c.runs.run_folder import RunFolder

STUDY_FILE = "study.json"
KINDS = ("scaling", "parameter_servers", "stragglers", "learning_curves", "architectures", "games")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One place of the grid."""

    name: str
    """Also the folder's name."""
    words: tuple[str, ...]
    """What follows `dba3c train` on this machine, without seed and run folder."""
    x: float = 0.0
    """Where it stands on the study's axis: nodes, servers, backup workers."""
    nodes: int = 1
    """Nodes that it takes on a cluster, one rank on each."""
    cluster_words: tuple[str, ...] = ()
    """What follows `dba3c train` on a cluster, where the number of ranks says how many workers there are."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a study."""

    point: Point
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.point.name}/seed-{self.seed}"

    def state(self) -> str:
        """ "missing", "live", "broken" or "stopped" (it can be resumed), "failed" (it noted that) or "finished"."""
        if not (self.folder / "config.json").exists():
            return "missing"
        folder = RunFolder.open(self.folder)
        state = folder.status()
        how = folder.life()["ended"].get("outcome") if state == "finished" else None
        return how if how in ("failed", "stopped") else state


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared with what."""

    kind: str
    """Which figures are made of it: one of `KINDS`."""
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    x_name: str = ""
    """Of `Point.x`."""

    def __post_init__(self) -> None:
        names = [point.name for point in self.points]
        twice = {name for name in names if names.count(name) > 1}
        if twice or not names or not self.seeds:
            raise UserError(f"a study needs points and seeds, each point once; twice: {sorted(twice) or 'none'}")

    def runs(self, folder: str | Path) -> Iterator[Run]:
        """All runs: first every point with the first seed, so that a first picture is there early."""
        for seed in self.seeds:
            for point in self.points:
                yield Run(point=point, seed=seed, folder=Path(folder) / point.name / f"seed-{seed}")

    def save(self, folder: str | Path) -> None:
        """Declares the study in a folder; a folder that holds another one is refused.

        More points or seeds of the same study are added to what is there.
        """
        path = Path(folder) / STUDY_FILE
        if path.exists():
            before = load(folder)
            shared = {point.name: point for point in before.points}
            changed = [point.name for point in self.points if point.name in shared and shared[point.name] != point]
            if before.kind != self.kind or changed:
                what = f"point {changed[0]} with other options" if changed else f"study {before.kind}"
                raise UserError(f"{folder} already holds {what}: choose another folder (--into)")
            added = [point for point in before.points if point.name not in {mine.name for mine in self.points}]
            seeds = tuple(sorted({*before.seeds, *self.seeds}))
            points = tuple(sorted((*self.points, *added), key=lambda point: point.x))
            Study(kind=self.kind, points=points, seeds=seeds, x_name=self.x_name)._write(path)
        else:
            self._write(path)

    def _write(self, path: Path) -> None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")


def load(folder: str | Path) -> Study:
    """The study declared in a folder. Raises UserError when there is none, or when study.json is broken."""
    path = Path(folder) / STUDY_FILE
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
        if tree["kind"] not in KINDS:
            raise UserError(
                f"{path} declares a study of an unknown kind, {tree['kind']!r}; there are {', '.join(KINDS)}"
            )
        points = tuple(_point(point) for point in tree.pop("points"))
        return Study(points=points, seeds=tuple(int(seed) for seed in tree.pop("seeds")), **tree)
    except OSError as error:
        raise UserError(f"{folder} is no study: cannot read {path.name} ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} does not declare a study ({type(error).__name__}: {error})") from error


def _point(tree: dict[str, Any]) -> Point:
    words, cluster_words = (tuple(str(word) for word in tree.pop(name, ())) for name in ("words", "cluster_words"))
    x, nodes = tree.pop("x", 0.0), tree.pop("nodes", 1)
    if not isinstance(tree["name"], str) or not isinstance(x, (int, float)) or not isinstance(nodes, int):
        raise TypeError(f"of point {tree['name']!r}, x or nodes is no number")
    return Point(words=words, x=x, nodes=nodes, cluster_words=cluster_words, **tree)
