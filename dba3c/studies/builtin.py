"""The built-in studies: what DBA3C's paper showed (arXiv 1801.02852), and what it left open."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dba3c.errors import UserError
from dba3c.studies.study import Point, Study

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
    """What a built-in study can be told."""

    env: str = "ALE/Breakout-v5"
    """Environment or preset."""
    values: tuple[int, ...] = ()
    """Workers (scaling), servers (parameter_servers) or backup workers (stragglers) to try; () for the study's own."""
    workers: int = 8
    """Workers where they are not what is varied."""
    servers: int = 2
    """Servers where they are not what is varied."""
    seeds: int = 0
    """Number of seeds: 0, 1, …; 0 for the study's own."""
    words: tuple[str, ...] = ()
    """Further options of `dba3c train`, for every run."""


def _servers_point(name: str, x: int, shape: Shape, workers: int, servers: int, backup: int = 0) -> Point:
    """Synchronous servers: dedicated ones, a node each on a cluster."""
    extra = ("--backup-workers", str(backup), *shape.words)
    here = (shape.env, "--exchange", "servers", "--workers", str(workers), "--servers", str(servers), *extra)
    there = (shape.env, "--exchange", "servers", "--servers", str(servers), *extra)
    return Point(name=name, x=x, words=here, nodes=workers + servers, cluster_words=there)


def _seeds(shape: Shape, own: int) -> tuple[int, ...]:
    return tuple(range(shape.seeds or own))


def scaling(shape: Shape) -> Study:
    """Time to the stop score and data points/s against the number of workers."""
    points = [
        _servers_point(f"workers-{n}", n, shape, workers=n, servers=min(n, MOST_SERVERS))
        for n in shape.values or (1, 2, 4, 8, 16, 32, 64)
    ]
    return Study(kind="scaling", points=tuple(points), seeds=_seeds(shape, 3), x_name="workers")


def parameter_servers(shape: Shape) -> Study:
    """Data points/s against the number of servers."""
    points = [
        _servers_point(f"servers-{k}", k, shape, workers=shape.workers, servers=k) for k in shape.values or (1, 2, 4, 8)
    ]
    return Study(kind="parameter_servers", points=tuple(points), seeds=_seeds(shape, 3), x_name="parameter servers")


def stragglers(shape: Shape) -> Study:
    """Data points/s against the number of backup workers, all workers counted."""
    points = [
        _servers_point(f"backup-{b}", b, shape, workers=shape.workers, servers=shape.servers, backup=b)
        for b in shape.values or tuple(b for b in (0, 1, 2, 4) if b < shape.workers)
    ]
    return Study(kind="stragglers", points=tuple(points), seeds=_seeds(shape, 3), x_name="backup workers")


def learning_curves(shape: Shape) -> Study:
    """The live mean score of ten experiments."""
    point = _servers_point("learning", 0, shape, workers=shape.workers, servers=shape.servers)
    return Study(kind="learning_curves", points=(point,), seeds=_seeds(shape, 10))


NETWORK_SIZES = ("small", "nature", "resnet")
"""Of the comparison of architectures, whose answer depends on it."""
_ENVIRONMENTS, _UNROLL = 32, 5


def architectures(shape: Shape) -> Study:
    """The same agent trained in four ways: sync servers, sync all-reduce, async servers, central inference.

    For each size of network the same environments in the same number, unrolls of one length, and (but for async, where
    each worker's gradient is an update) the same number of samples in an update.
    """
    n = shape.workers
    each = max(4, _ENVIRONMENTS // n)
    of_workers = ("--envs-per-worker", str(each), "--rollout-length", str(_UNROLL))
    of_actors = ("--envs-per-actor", str(each), "--unroll-length", str(_UNROLL), "--batch-unrolls", str(n * each))
    workers, k = ("--workers", str(n)), ("--servers", str(shape.servers))
    ranks = n + shape.servers
    sync, majority, free = (("--exchange", name) for name in ("servers", "allreduce", "async"))
    central = ("--mode", "central", *of_actors)
    made: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
        "sync-servers": ((*sync, *workers, *k, *of_workers), (*sync, *k, *of_workers), ranks),
        "sync-allreduce": ((*majority, *workers, *of_workers), (*majority, *of_workers), n),
        "async-servers": ((*free, *workers, *k, *of_workers), (*free, *k, *of_workers), ranks),
        "central": ((*central, "--actors", str(n)), central, n + 1),
    }
    points: list[Point] = []
    for network in NETWORK_SIZES:
        for name, (here, there, nodes) in made.items():
            words = (shape.env, "--network", network, *here, *shape.words)
            cluster_words = (shape.env, "--network", network, *there, *shape.words)
            point = Point(
                name=f"{name}-{network}", x=len(points), words=words, nodes=nodes, cluster_words=cluster_words
            )
            points.append(point)
    return Study(kind="architectures", points=tuple(points), seeds=_seeds(shape, 3))


def games(shape: Shape) -> Study:
    """DBA3C's six games and Pong, with its scores beside ours."""
    points = []
    for place, game in enumerate(DBA3C_SCORES):
        name = game.removeprefix("ALE/").removesuffix("-v5")
        of_game = Shape(env=game, workers=shape.workers, servers=shape.servers, words=shape.words)
        points.append(_servers_point(name, place, of_game, workers=shape.workers, servers=shape.servers))
    return Study(kind="games", points=tuple(points), seeds=_seeds(shape, 3))


STUDIES: dict[str, Callable[[Shape], Study]] = {
    "scaling": scaling,
    "parameter_servers": parameter_servers,
    "stragglers": stragglers,
    "learning_curves": learning_curves,
    "architectures": architectures,
    "games": games,
}


def build(name: str, shape: Shape) -> Study:
    """The built-in study of a name. Raises UserError for an unknown one, naming those that there are."""
    known = name.replace("-", "_")
    if known not in STUDIES:
        close: Sequence[str] = difflib.get_close_matches(known, STUDIES) or list(STUDIES)
        raise UserError(f"no study is called {name!r}; there are {', '.join(close)}")
    return STUDIES[known](shape)
