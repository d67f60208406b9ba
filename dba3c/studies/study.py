"""A study: points × seeds, declared in study.json; each run is a run folder POINT/seed-S beside it.

Of a search only what is drawn from is declared: each trial is a point of its own, in TRIAL/point.json, so that trials
which are tried at once write no common file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dba3c.errors import UserError, did_you_mean, writing
from dba3c.runs.files import is_there, write_atomically, write_once
from dba3c.runs.folder import RunFolder
from param_servers.config import option
from param_servers.errors import HAS_DIVERGED

STUDY_FILE = "study.json"
POINT_FILE = "point.json"
SWEEP = "sweep"
"""The kind of a study of the user's own points (`dba3c.studies.sweep`)."""


@dataclass(frozen=True, kw_only=True)
class StudyPoint:
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


OVER = ("finished", "diverged")


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study."""

    point: StudyPoint
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.point.name}/seed-{self.seed}"

    def state(self) -> str:
        """ "missing", "live", "broken" or "stopped" (it can be resumed), "failed" (it noted that), "diverged" (it would
        again) or "finished".

        Of what cannot be read: "unreadable (why)".
        """
        try:
            if not is_there(self.folder / "config.json"):
                return "missing"
            folder = RunFolder.open(self.folder)
            state = folder.status()
            ended = folder.life().get("ended", {}) if state == "finished" else {}
        except (UserError, OSError) as error:
            return f"unreadable ({error})"
        if str(ended.get("reason")).endswith(HAS_DIVERGED):
            return "diverged"
        return ended["outcome"] if ended.get("outcome") in ("failed", "stopped") else state

    def is_over(self) -> bool:
        """Whether nothing of it is left to be trained."""
        return self.state() in OVER


@dataclass(frozen=True, kw_only=True)
class Search:
    """Points that are drawn one after the other, knowing how good those before were (`dba3c.studies.sweep`)."""

    trials: int
    words: tuple[str, ...]
    """What follows `dba3c train` in every trial."""
    axes: tuple[tuple[str, ...], ...]
    """Of each option that is drawn its name and what it is drawn from: values, or one range LOW..HIGH."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared with what."""

    kind: str
    """Which figures are made of it: one of `STUDIES`, or `SWEEP`."""
    points: tuple[StudyPoint, ...]
    seeds: tuple[int, ...]
    x_name: str = ""
    """Of `StudyPoint.x`."""
    search: Search | None = None
    """Of a sweep whose points are drawn: `points` are the trials that there are so far."""

    def __post_init__(self) -> None:
        names = [point.name for point in self.points]
        twice = {name for name in names if names.count(name) > 1}
        if twice or not (names or self.search) or not self.seeds:
            raise UserError(f"a study needs points and seeds, each point once; twice: {sorted(twice) or 'none'}")

    def runs(self, folder: str | Path, points: Sequence[StudyPoint] | None = None) -> Iterator[StudyRun]:
        """All runs, or those of some points: first each with the first seed, so that a first picture is there early."""
        for seed in self.seeds:
            for point in self.points if points is None else points:
                yield StudyRun(point=point, seed=seed, folder=Path(folder) / point.name / f"seed-{seed}")

    def joined_with(self, folder: str | Path) -> Study:
        """The study with what is declared of it in a folder already. Raises UserError where another one is."""
        return self._added_to(load(folder), folder) if is_there(Path(folder) / STUDY_FILE) else self

    def save(self, folder: str | Path) -> None:
        """Declares the study in a folder; a folder that holds another one is refused.

        More points or seeds of the same study are added to what is there. Raises UserError: another study, or a run.
        """
        if is_there(Path(folder) / "config.json"):
            raise UserError(f"{folder} is a run's folder: choose another for the study (--into)")
        path, declared = Path(folder) / STUDY_FILE, self.joined_with(folder)
        tree = asdict(declared if self.search is None else replace(declared, points=()))
        if self.search is None:
            del tree["search"]
        _write(path, tree)

    def _added_to(self, before: Study, folder: str | Path) -> Study:
        """This study with the points, seeds and trials of `before`. Raises UserError where that is another one."""
        sweep, known = self.kind == SWEEP, {point.name: point for point in before.points}
        again = [point for point in self.points if point.name in known]
        # the x of a sweep's point only counts it
        changed = [p.name for p in again if replace(p, x=known[p.name].x if sweep else p.x) != known[p.name]]
        drawn_from = [study.search and replace(study.search, trials=1) for study in (before, self)]
        other = f"point {changed[0]} with other options" if changed else ""
        if before.kind != self.kind:
            other = other or f"study {before.kind}"
        elif drawn_from[0] != drawn_from[1]:
            other = other or "another search, or none"
        if other:
            raise UserError(f"{folder} already holds {other}: choose another folder (--into)")
        search = self.search
        if search and before.search:
            search = replace(search, trials=max(search.trials, before.search.trials))
        if sweep:
            added = [point for point in self.points if point.name not in known]
            points = [replace(point, x=number) for number, point in enumerate((*before.points, *added))]
        else:
            ours = {point.name: point for point in self.points}
            points = sorted((known | ours).values(), key=lambda point: point.x)
        seeds = tuple(sorted({*before.seeds, *self.seeds}))
        return replace(self, points=tuple(points), seeds=seeds, search=search)


def load(folder: str | Path) -> Study:
    """The study declared in a folder. Raises UserError when there is none, or when study.json is broken."""
    path = Path(folder) / STUDY_FILE
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
        if tree["kind"] not in (*STUDIES, SWEEP):
            raise UserError(
                f"{path} declares a study of an unknown kind, {tree['kind']!r}; there are {', '.join(STUDIES)}, {SWEEP}"
            )
        search = tree.pop("search", None)
        if search:
            axes = tuple(tuple(map(str, axis)) for axis in search["axes"])
            search = Search(trials=int(search["trials"]), words=tuple(map(str, search["words"])), axes=axes)
        points = [_point(point) for point in tree.pop("points")]
        seeds = tuple(int(seed) for seed in tree.pop("seeds"))
        for trial in sorted(Path(folder).iterdir()) if search else ():
            if is_there(path := trial / POINT_FILE):
                points.append(_point(json.loads(path.read_text(encoding="utf-8"))))
        path = Path(folder) / STUDY_FILE
        return Study(points=tuple(points), seeds=seeds, search=search, **tree)
    except OSError as error:
        raise UserError(f"{folder} is no study: cannot read {path.relative_to(folder)} ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} does not declare a study ({type(error).__name__}: {error})") from error


def save_trial(point: StudyPoint, folder: str | Path) -> bool:
    """Adds a point to the search that is declared in a folder; False: another process has added one of its name."""
    return _write(Path(folder) / point.name / POINT_FILE, asdict(point), once=True)


def saved_trial(name: str, folder: str | Path) -> StudyPoint | None:
    """What `save_trial` has added, None where nobody has. Raises UserError: it cannot be read."""
    path = Path(folder) / name / POINT_FILE
    try:
        return _point(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def _write(path: Path, tree: dict[str, Any], once: bool = False) -> bool:
    text = json.dumps(tree, indent=1) + "\n"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if once:
            return write_once(path, text)
        write_atomically(path, text)
    return True


def _point(tree: dict[str, Any]) -> StudyPoint:
    words, cluster_words = (tuple(map(str, tree.pop(name, ()))) for name in ("words", "cluster_words"))
    x, nodes = tree.pop("x", 0.0), tree.pop("nodes", 1)
    if not isinstance(tree["name"], str) or not isinstance(x, (int, float)) or not isinstance(nodes, int):
        raise TypeError(f"of point {tree['name']!r}, x or nodes is no number")
    if tree["name"] != Path(tree["name"]).name or tree["name"] in ("", "..") or "\0" in tree["name"]:
        raise ValueError(f"point {tree['name']!r} is named like no folder of it")
    return StudyPoint(words=words, x=x, nodes=nodes, cluster_words=cluster_words, **tree)


# -- the built-in studies: what DBA3C's paper showed (arXiv 1801.02852), and what it left open -------------------------

MOST_RUNS = 10_000
"""Seeds of a study, or trials of a search; more are a slip."""
MOST_SERVERS = 4
"""Of a scaling study, as in the 2017 system."""
DBA3C_SCORES: dict[str, float | None] = {
    "ALE/Breakout-v5": 350.0,
    "ALE/Boxing-v5": 98.0,
    "ALE/Seaquest-v5": 1832.0,
    "ALE/SpaceInvaders-v5": 650.0,
    "ALE/StarGunner-v5": None,
    "ALE/Assault-v5": None,
    "ALE/Pong-v5": 20.0,
}
"""DBA3C's six games and Pong, with the mean scores that it published."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a built-in study can be told; the options of `dba3c study` are these."""

    env: str = "ALE/Breakout-v5"
    """Environment or preset."""
    values: tuple[int, ...] = ()
    """Workers (scaling), servers (parameter_servers) or backup workers (stragglers) to try."""
    workers: int = option(8, least=1)
    """Workers, where they are not what is varied."""
    servers: int = option(2, least=1)
    """Servers, where they are not what is varied."""
    seeds: int = option(0, least=0, most=MOST_RUNS)
    """How many seeds; 0: the study's own number."""


def _servers_point(name: str, x: int, shape: Shape, backup: int = 0) -> StudyPoint:
    """Synchronous servers: dedicated ones, a node each on a cluster."""
    extra = ("--servers", str(shape.servers), "--backup-workers", str(backup))
    here = (shape.env, "--exchange", "servers", "--workers", str(shape.workers), *extra)
    there = (shape.env, "--exchange", "servers", *extra)
    return StudyPoint(name=name, x=x, words=here, nodes=shape.workers + shape.servers, cluster_words=there)


def scaling(shape: Shape) -> list[StudyPoint]:
    """Time to the stop score and data points/s against the number of workers."""
    tried = shape.values or (1, 2, 4, 8, 16, 32, 64)
    return [_servers_point(f"workers-{n}", n, replace(shape, workers=n, servers=min(n, MOST_SERVERS))) for n in tried]


def parameter_servers(shape: Shape) -> list[StudyPoint]:
    """Data points/s against the number of servers."""
    return [_servers_point(f"servers-{k}", k, replace(shape, servers=k)) for k in shape.values or (1, 2, 4, 8)]


def stragglers(shape: Shape) -> list[StudyPoint]:
    """Data points/s against the number of backup workers, all workers counted."""
    tried = shape.values or tuple(b for b in (0, 1, 2, 4) if b < shape.workers)
    return [_servers_point(f"backup-{b}", b, shape, backup=b) for b in tried]


def learning_curves(shape: Shape) -> list[StudyPoint]:
    """The live mean score of ten experiments."""
    return [_servers_point("learning", 0, shape)]


NETWORK_SIZES = ("small", "nature", "resnet")
"""Of the comparison of architectures, whose answer depends on it."""
_ENVIRONMENTS, _UNROLL = 32, 5


def architectures(shape: Shape) -> list[StudyPoint]:
    """The same agent trained in four ways: sync servers, sync all-reduce, async servers, central inference.

    For each size of network the same environments in the same number, unrolls of one length, and (but for async, where
    each worker's gradient is an update) the same number of samples in an update.
    """
    n, k = shape.workers, shape.servers
    each = max(4, _ENVIRONMENTS // n // 2 * 2)  # an actor halves them
    workers, servers = f"--workers {n} ", f"--servers {k} "
    of_workers = f"--envs-per-worker {each} --rollout-length {_UNROLL}"
    central = f"--mode central --envs-per-actor {each} --unroll-length {_UNROLL} --batch-unrolls {n * each}"
    made = {
        "sync-servers": ("--exchange servers --backup-workers 0 ", workers, servers + of_workers, n + k),
        "sync-allreduce": ("--exchange allreduce ", workers, of_workers, n),
        "async-servers": ("--exchange async ", workers, servers + of_workers, n + k),
        "central": (central, f" --actors {n}", "", n + 1),
    }
    points: list[StudyPoint] = []
    for network in NETWORK_SIZES:
        for name, (first, on_this_machine, last, nodes) in made.items():
            here, there = (
                (shape.env, "--network", network, *said.split())
                for said in (first + on_this_machine + last, first + last)
            )
            point = StudyPoint(name=f"{name}-{network}", x=len(points), words=here, nodes=nodes, cluster_words=there)
            points.append(point)
    return points


def games(shape: Shape) -> list[StudyPoint]:
    """DBA3C's six games and Pong, with its scores beside ours."""
    named = {game.removeprefix("ALE/").removesuffix("-v5"): game for game in DBA3C_SCORES}
    return [_servers_point(name, x, replace(shape, env=game)) for x, (name, game) in enumerate(named.items())]


STUDIES: dict[str, tuple[Callable[[Shape], list[StudyPoint]], str, int]] = {
    "scaling": (scaling, "workers", 3),
    "parameter_servers": (parameter_servers, "parameter servers", 3),
    "stragglers": (stragglers, "backup workers", 3),
    "learning_curves": (learning_curves, "", 10),
    "architectures": (architectures, "", 3),
    "games": (games, "", 3),
}
"""Of each its points, what `StudyPoint.x` is of them, and how many seeds it has of its own."""


def _refuse_unread(name: str, shape: Shape) -> None:
    """Raises UserError: an option was given that changes nothing of the study's points, whatever it is."""
    points_of, _, _ = STUDIES[name]
    another = Shape(env="another", values=(*shape.values, 3), workers=shape.workers + 1, servers=shape.servers + 1)
    for each in ("env", "values", "workers", "servers"):
        given, changed = getattr(shape, each), replace(shape, **{each: getattr(another, each)})
        if given != getattr(Shape, each) and points_of(changed) == points_of(shape):
            raise UserError(f"--{each}: the study {name} does not look at it")


def build(name: str, shape: Shape, words: Sequence[str] = ()) -> Study:
    """The built-in study of a name; `words`: further options of `dba3c train`, for every run.

    Raises UserError for an unknown one, naming those that there are.
    """
    known = name.replace("-", "_")
    if known not in STUDIES:
        raise UserError(f"no study is called {name!r}; {did_you_mean(known, STUDIES)}")
    points_of, x_name, seeds = STUDIES[known]
    _refuse_unread(known, shape)
    points = tuple(
        replace(point, words=(*point.words, *words), cluster_words=(*point.cluster_words, *words))
        for point in points_of(shape)
    )
    return Study(kind=known, points=points, seeds=tuple(range(shape.seeds or seeds)), x_name=x_name)
