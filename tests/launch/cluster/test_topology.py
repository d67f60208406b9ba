"""Which rank plays which role, and the arithmetic of shapes that cannot be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dba3c.errors import UserError
from launch.cluster.topology import Assignment, Topology, fit

PAPER = {"servers": 4, "evaluators": 1, "recorders": 1}


def test_the_paper_s_71_nodes_are_servers_first_then_the_evaluator_the_recorder_and_workers() -> None:
    topology = fit(71, **PAPER, gradients=60)
    roles = [str(rank[0]) for rank in topology.place([1] * topology.ranks)]
    assert roles[:7] == ["server 0", "server 1", "server 2", "server 3", "evaluator 0", "recorder 0", "worker 0"]
    assert roles[70] == "worker 64"


@pytest.mark.parametrize(
    ("world_size", "counts", "message"),
    [
        (70, {**PAPER, "workers": 65}, "ask for 4 servers + 1 evaluator + 1 recorder + 65 workers = 71"),
        (8, {"workers": 4}, "mpirun started 8 ranks, but the options ask for 4 workers = 4"),
        (2, {"servers": 2}, "mpirun started 2 ranks, but 2 servers leave none for a worker"),
        (5, {"servers": 1, "gradients": 5}, "5 gradients need as many workers, but 5 ranks leave 4"),
        (5, {"gradients": 3, "backup_workers": 1}, "3 gradients + 1 backup = 4 workers, but 5 ranks leave 5"),
        (5, {"servers": 1, "backup_workers": 4}, "4 backup of 4 workers leave no gradient for an update"),
        (2, {"servers": 3, "colocated_servers": True}, "3 servers beside 2 workers"),
        (1, {"learners": 1}, "1 learner + 0 actors"),
        (5, {"learners": 2, "servers": 20}, "started 5 ranks, but 20 servers + 2 learners leave none for an actor"),
        (8, {"learners": 1, "backup_workers": 2}, "8 ranks = 1 learner + 7 actors leave no worker, but the options"),
    ],
)  # fmt: skip
def test_an_impossible_shape_prints_its_arithmetic(world_size: int, counts: dict[str, int], message: str) -> None:
    with pytest.raises(UserError) as refused:
        fit(world_size, started_by="mpirun", **counts)  # type: ignore[arg-type]
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_servers_are_spread_over_nodes_that_run_several_tasks() -> None:
    ranks = fit(6, servers=2).place(tasks_per_node=[3, 3])
    assert [str(rank[0]) for rank in ranks] == ["server 0", "worker 0", "worker 1", "server 1", "worker 2", "worker 3"]


def test_more_servers_than_nodes_go_round_again() -> None:
    ranks = fit(5, servers=3).place(tasks_per_node=[3, 2])
    assert [str(rank[0]) for rank in ranks] == ["server 0", "server 2", "worker 0", "server 1", "worker 1"]


def test_tasks_that_are_not_as_many_as_ranks_are_refused() -> None:
    with pytest.raises(UserError, match=r"3 \+ 1 = 4 tasks on 2 nodes, but 5 = 5 workers"):
        fit(5).place(tasks_per_node=[3, 1])


def test_colocated_servers_take_no_ranks_and_sit_on_different_nodes() -> None:
    topology = fit(4, servers=2, colocated_servers=True)
    assert topology.arithmetic() == "4 = 4 workers (4 gradients + 0 backup), 2 servers beside workers"
    ranks = topology.place(tasks_per_node=[2, 2])
    assert ranks[0] == (Assignment("worker", 0), Assignment("server", 0))
    assert ranks[2] == (Assignment("worker", 2), Assignment("server", 1))
    assert [len(rank) for rank in ranks] == [2, 1, 2, 1]


def test_where_no_server_has_a_rank_of_its_own_rank_0_trains_and_knows_how_the_run_ends() -> None:
    for servers in (0, 2):
        topology = fit(4, servers=servers, evaluators=1, recorders=1, colocated_servers=servers > 0)
        roles = [rank[0].role for rank in topology.place([1] * topology.ranks)]
        assert roles == ["worker", "worker", "evaluator", "recorder"]


def test_central_inference_has_learners_first_and_actors_in_the_rest() -> None:
    topology = fit(6, learners=1, evaluators=1)
    assert topology.arithmetic() == "6 = 1 learner + 1 evaluator + 4 actors"
    assert [rank[0].role for rank in topology.place([1] * topology.ranks)] == ["learner", "evaluator", *["actor"] * 4]


def test_learners_that_exchange_through_servers_share_the_ranks_with_them() -> None:
    assert fit(6, servers=1, learners=2).arithmetic() == "6 = 1 server + 2 learners + 3 actors"
    with pytest.raises(UserError, match=r"started 6 ranks, but the options ask for 2 learners \+ 8 actors = 10"):
        fit(6, learners=2, actors=8)


def test_a_learner_without_an_actor_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match="3 learners \\+ 2 actors: each learner needs an actor"):
        Topology(learners=3, actors=2)


def test_actors_may_sit_beside_their_learners() -> None:
    topology = Topology(learners=2, actors=3, colocated_actors=True)
    assert topology.arithmetic() == "2 = 2 learners, 3 actors beside learners"
    assert topology.place([1] * topology.ranks) == [
        (Assignment("learner", 0), Assignment("actor", 0), Assignment("actor", 2)),
        (Assignment("learner", 1), Assignment("actor", 1)),
    ]


@given(
    servers=st.integers(0, 5),
    evaluators=st.integers(0, 2),
    tasks=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    colocated=st.booleans(),
)
def test_every_process_has_exactly_one_rank(servers: int, evaluators: int, tasks: list[int], colocated: bool) -> None:
    try:
        topology = fit(sum(tasks), servers=servers, evaluators=evaluators, colocated_servers=colocated)
    except UserError:
        return
    placed = [assignment for rank in topology.place(tasks) for assignment in rank]
    assert len(set(placed)) == len(placed)
    counts = Counter(assignment.role for assignment in placed)
    assert counts == Counter(server=servers, evaluator=evaluators, worker=topology.workers)
    for role, number in counts.items():
        assert {a.rank for a in placed if a.role == role} == set(range(number))
