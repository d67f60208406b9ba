"""Every launcher's ranks find their place; contradictions are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dba3c.errors import UserError
from dba3c.runs.host_facts import RANK_SIGNS
from launch.cluster.launchers import ENDS_ALL_RANKS, LAUNCHERS, PLAIN, detect, parse_tasks_per_node
from launch.cluster.topology import fit

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "2",
    "GROUP_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-77@1",
}
SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "4",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_NNODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.1.0.1",
    "SLURM_RESTART_COUNT": "1",
}
HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
}
MPICH = {  # 5.0.2's own; the descriptor differs between ranks
    "PMI_RANK": "1",
    "PMI_SIZE": "3",
    "PMI_FD": "11",
    "PMI_HOSTNAME": "vm",
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "3",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "6", "DBA3C_WORLD_SIZE": "7", "DBA3C_CHIEF_ADDRESS": "dba3c-0.dba3c"}


def test_without_a_launcher_a_process_is_alone() -> None:
    assert detect({"HOME": "/root"}) == PLAIN
    assert detect({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "64"}) == PLAIN  # the batch script itself


@pytest.mark.parametrize(
    ("environ", "launcher", "place_of_rank", "address"),
    [
        (TORCHRUN, "torchrun", (5, 8, 1, (2, 2, 2, 2)), "10.0.0.1"),
        (MPIRUN, "mpirun", (3, 4, 1, (1, 1, 1, 1)), ""),
        (SRUN, "srun", (4, 5, 0, (2, 2, 1)), "10.1.0.1"),
        (HOROVODRUN, "horovodrun", (1, 2, 1, (2,)), "127.0.0.1"),
        (MPICH, "MPICH's mpirun", (1, 3, 1, (3,)), ""),
        (KUBERNETES, "an indexed Kubernetes Job", (6, 7, 0, (1,) * 7), "dba3c-0.dba3c"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "the environment", (1, 2, 0, (1, 1)), "a"),
    ],
)
def test_a_rank_finds_its_place(
    environ: dict[str, str], launcher: str, place_of_rank: tuple[object, ...], address: str
) -> None:
    place = detect(environ)
    assert (place.launcher, place.address) == (launcher, address)
    assert (place.rank, place.world_size, place.local_rank, place.tasks_per_node) == place_of_rank


def test_a_second_life_has_another_launch_id() -> None:
    assert detect(SRUN).launch_id == "17-0-1"
    assert detect(SRUN).restart_count == 1
    assert detect({**SRUN, "SLURM_RESTART_COUNT": "2"}).launch_id != detect(SRUN).launch_id
    assert detect({**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}).launch_id == detect(SRUN).launch_id


def test_ranks_of_several_torchruns_know_each_other_though_each_torchrun_counts_its_own_restarts() -> None:
    first, second = (detect({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": count}) for count in "01")
    assert first.launch_id == second.launch_id == first.run_name
    assert (first.restart_count, second.restart_count) == (0, 1)
    assert detect({**TORCHRUN, "MASTER_PORT": "29501"}).run_name != first.run_name


def test_what_ranks_of_mpich_share_is_no_descriptor() -> None:
    assert detect(MPICH).launch_id == detect({**MPICH, "PMI_RANK": "0", "MPI_LOCALRANKID": "0"}).launch_id == ""
    assert detect({**MPICH, "PMI_JOBID": "77"}).launch_id == "77"


def test_slurm_s_own_pmi_does_not_make_mpich_of_srun() -> None:
    pmi2 = {"PMI_RANK": "4", "PMI_SIZE": "5", "PMI_FD": "12", "PMI_JOBID": "17.0"}
    place = detect({**SRUN, **pmi2})
    assert (place.launcher, place.rank, place.tasks_per_node) == ("srun", 4, (2, 2, 1))
    shell = {**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}
    shell["SLURM_STEP_TASKS_PER_NODE"] = "1"
    assert detect({**shell, **MPICH}).launcher == "MPICH's mpirun"  # typed in the shell of srun --pty
    assert detect({**shell, **MPICH, "PMI_RANK": "0", "MPI_LOCALRANKID": "0"}).launcher == "MPICH's mpirun"


def test_what_a_shell_on_a_cluster_with_pmi2_has_left_in_a_job_s_environment_is_not_its_ranks() -> None:
    left = {"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_FD": "12", "PMI_JOBID": "16.0"}
    place = detect({**SRUN, **left})
    assert (place.launcher, place.rank, place.world_size) == ("srun", 4, 5)


def test_ranks_of_mpich_in_the_shell_of_several_tasks_are_all_mpich_s() -> None:
    shell = {**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "3"}
    shell["SLURM_STEP_TASKS_PER_NODE"] = "3"
    places = [detect({**shell, **MPICH, "PMI_RANK": rank, "MPI_LOCALRANKID": rank}) for rank in "012"]
    assert [(place.launcher, place.rank) for place in places] == [("MPICH's mpirun", rank) for rank in range(3)]


def test_ranks_of_cray_s_mpiexec_know_how_many_share_their_node() -> None:
    pals = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4", "PALS_APID": "a-b"}
    place = detect(pals)
    assert (place.rank, place.local_rank, place.local_world_size, place.launch_id) == (5, 1, 4, "a-b")
    shell = {**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert detect({**shell, "SLURM_STEP_TASKS_PER_NODE": "1", **pals}).rank == 5


def test_an_elastic_torchrun_under_srun_goes_on_with_fewer_nodes() -> None:
    step = {**SRUN, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_PROCID": "2"}
    step["SLURM_NODEID"] = "2"
    with_three = {**TORCHRUN, "WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "3", "RANK": "3"}
    place = detect({**step, **with_three})
    assert (place.launcher, place.rank, place.world_size) == ("torchrun", 3, 6)


def test_torchrun_may_be_typed_in_the_shell_of_several_tasks() -> None:
    shell = {**SRUN, "SLURM_PTY_PORT": "38161", "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "16"}
    shell |= {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert detect({**shell, **TORCHRUN}).world_size == 8
    alone = {**TORCHRUN, "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    with pytest.raises(UserError, match="srun started 16 ranks, but torchrun inside it counts 2"):
        detect({**shell, **alone, "SLURM_PROCID": "3", "SLURM_LOCALID": "3"})  # by another srun in that shell


def of_uneven_nodes(launcher: str, nodes: list[int]) -> Iterator[dict[str, str]]:
    """What each rank is told by a launcher that fills nodes with different numbers of ranks."""
    world = sum(nodes)
    for node, tasks in enumerate(nodes):
        for local in range(tasks):
            own = [sum(nodes[:node]) + local, world, local, tasks]
            names = {
                "mpirun": [
                    "OMPI_COMM_WORLD_RANK",
                    "OMPI_COMM_WORLD_SIZE",
                    "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                ],
                "MPICH's mpirun": ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
                "torchrun": ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
                "horovodrun": ["HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"],
            }[launcher]
            environ = {name: str(value) for name, value in zip(names, own, strict=True)}
            if launcher == "torchrun":
                environ |= {"TORCHELASTIC_RUN_ID": "a", "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": str(len(nodes))}
            if launcher == "horovodrun":
                peers = [n for n in nodes if n > local]
                environ |= {"HOROVOD_CROSS_RANK": str(sum(n > local for n in nodes[:node]))}
                environ |= {"HOROVOD_CROSS_SIZE": str(len(peers))}
            yield environ


@pytest.mark.parametrize("launcher", ["mpirun", "MPICH's mpirun", "torchrun", "horovodrun"])
@pytest.mark.parametrize("nodes", [[2, 4], [4, 2], [2, 3, 1], [2, 4, 2], [1, 2, 1], [3, 3], [6]])
def test_ranks_of_uneven_nodes_agree_on_who_plays_what(launcher: str, nodes: list[int]) -> None:
    places = [detect(environ) for environ in of_uneven_nodes(launcher, nodes)]
    assert [place.rank for place in places] == list(range(sum(nodes)))
    assert [place.local_world_size for place in places] == [tasks for tasks in nodes for _ in range(tasks)]
    topology = fit(sum(nodes), servers=2)
    played = [assignment for place in places for assignment in topology.place(place.tasks_per_node)[place.rank]]
    assert sorted(map(str, played)) == [f"server {i}" for i in range(2)] + [
        f"worker {i}" for i in range(sum(nodes) - 2)
    ]


def test_ranks_of_mpirun_may_go_round_the_nodes() -> None:
    for rank in range(4):
        own = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank // 2)}
        place = detect({**MPIRUN, **own})
        assert (place.rank, place.local_rank, place.local_world_size) == (rank, rank // 2, 2)
        assert place.tasks_per_node == (1, 1, 1, 1)  # roles are dealt by rank, and all ranks agree on it


OVERSUBSCRIBED = {3: [0, 2, 1], 4: [0, 2, 1, 3], 7: [0, 2, 4, 6, 1, 3, 5]}
"""Ranks on a machine of two cores → the local rank of each, as Open MPI 5.0.11's `mpirun --oversubscribe` told them."""


@pytest.mark.parametrize("local_ranks", OVERSUBSCRIBED.values(), ids=len)
def test_an_oversubscribed_open_mpi_numbers_its_local_ranks_out_of_order(local_ranks: list[int]) -> None:
    size = str(len(local_ranks))
    for rank, local in enumerate(local_ranks):
        told = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": size}
        told |= {"OMPI_COMM_WORLD_LOCAL_RANK": str(local), "OMPI_COMM_WORLD_LOCAL_SIZE": size}
        place = detect(told)
        assert (place.rank, place.local_rank, place.tasks_per_node) == (rank, local, (len(local_ranks),))


def test_the_innermost_launcher_speaks() -> None:
    one_torchrun_per_node = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_STEP_NUM_TASKS": "4"}
    one_torchrun_per_node |= {"SLURM_PROCID": "2", "SLURM_NODEID": "2"}
    assert detect({**one_torchrun_per_node, **TORCHRUN}).launcher == "torchrun"
    assert detect({**SRUN, **MPIRUN}).launcher == "mpirun"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**SRUN, "SLURM_PROCID": "9"}, "srun says rank 9 of 5"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "not OMPI_COMM_WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "not RANK"),
        ({"JOB_COMPLETION_INDEX": "1"}, "not DBA3C_WORLD_SIZE"),
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "four"}, "OMPI_COMM_WORLD_SIZE to a number, it is 'four'"),
        (
            {**SRUN, **TORCHRUN, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"},
            "srun started 5 ranks, but torchrun inside it counts 1",
        ),
        ({**HOROVODRUN, **MPIRUN}, "mpirun started 4 ranks, but horovodrun inside it counts 2"),
        ({**SRUN, "SLURM_NODEID": "1"}, "srun --distribution=block"),
        ({**SRUN, "SLURM_LOCALID": "1"}, "on node 2 as its number 1, but filling nodes one after the other puts it on"),
    ],
)
def test_a_contradiction_is_refused_in_one_line(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        detect(environ)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tasks_per_node_are_spelled_out() -> None:
    assert parse_tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(UserError, match=r"should look like 2\(x3\),1"):
        parse_tasks_per_node("2x3")


def test_a_rank_s_launcher_is_looked_for_by_the_variables_of_those_that_start_ranks_on_this_host() -> None:
    assert tuple(each.sign for each in LAUNCHERS if each.name in ENDS_ALL_RANKS) == RANK_SIGNS
