"""Random schedules of whole runs: deaths, losses, repetitions, old incarnations. A failing seed is in the message;
`python -m tests.param_servers.servers.simulation SEED` replays it."""

import pytest

from param_servers.servers.client import ServersExchange
from param_servers.servers.coordinator import Coordinator
from param_servers.servers.shard_node import ShardNode
from param_servers.servers.step_commits import Commit, Decision, StepCommits
from param_servers.wire.messages import MEMBER, Row
from tests.param_servers.servers.simulation import Broken, Simulation, play


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_schedule_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + 100):
        play(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1000, 11_000, 500))
def test_ten_thousand_schedules_break_no_invariant(first: int) -> None:
    for seed in range(first, first + 500):
        play(seed)


@pytest.mark.parametrize("seed", [432, 2361, 9009, 13091, 14983])
def test_schedules_that_once_broke_an_invariant_do_not(seed: int) -> None:
    play(seed)


def test_a_schedule_replays_exactly() -> None:
    first, second = play(12345), play(12345)
    assert first.lines == second.lines
    assert first.network.now_s == second.network.now_s


def test_the_simulation_notices_a_shard_that_differs_from_the_log() -> None:
    simulation = Simulation(3)
    with pytest.raises(Broken, match="differs from the log"):
        for _ in range(2000):
            simulation.turn(faults=False)
            shard = simulation.servers[0].core.node
            if shard.step > 1:
                shard.shard.parameters[0] += 1


def test_the_simulation_notices_a_push_that_counts_twice() -> None:
    simulation = Simulation(3)
    while not simulation.lines or simulation.lines[-1]["kind"] != "commit":
        simulation.turn(faults=False)
    line = simulation.lines[-1]
    rows = tuple(Row(*member, MEMBER) for member in line["members"])
    again = Commit(line["term"], line["step"], 0, 0, rows, ())
    with pytest.raises(Broken, match="counts twice"):
        simulation.commit(again, 1.0)


def _undone_again(coordinator: Coordinator, now_s: float) -> list[Decision]:
    """Every second step is undone, and the one before."""
    return coordinator._restore(now_s) if coordinator.step % 2 == 0 else []


_commit = ShardNode._commit


def _answer_members_only(node: ShardNode, commit: Commit) -> None:
    """Who gave no gradient of this step, or came too late with it, is told nothing of its end."""
    workers, members = node.workers, {row.worker for row in commit.members}
    node.workers = {worker: incarnation for worker, incarnation in workers.items() if worker in members}
    _commit(node, commit)
    node.workers = workers


NOWHERE = {
    "servers that never get ready": (Coordinator, "server_ready", lambda *_: []),
    "servers that do not come back": (Coordinator, "server_left", lambda *_: []),
    "workers that are waited for without end": (Coordinator, "tick", lambda *_: []),
    "commits that no shard carries out": (ShardNode, "_commit", lambda *_: None),
    "gradients that never make a step": (StepCommits, "commit", lambda _: []),
    "steps that are undone again and again": (Coordinator, "_step_ended", _undone_again),
    "workers that are never sent parameters": (ShardNode, "_send_parameters", lambda *_: None),
    "workers that never ask": (ServersExchange, "_ask", lambda _: None),
    "late gradients that are never answered": (ShardNode, "_commit", _answer_members_only),
}


@pytest.mark.parametrize("what", NOWHERE)
def test_the_simulation_notices_code_that_never_gets_anywhere(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*NOWHERE[what])
    with pytest.raises(Broken, match=r"nowhere|nothing was wrong"):
        for seed in range(8):
            play(seed)
