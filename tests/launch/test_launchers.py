"""Every launcher's ranks find their place; contradictions are refused."""

from __future__ import annotations

import pytest

from dba3c.errors import UserError
from launch.launchers import PLAIN, detect

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "2",
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
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "3"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "6", "DBA3C_WORLD_SIZE": "7", "DBA3C_CHIEF_ADDRESS": "dba3c-0.dba3c"}


def test_without_a_launcher_a_process_is_alone() -> None:
    assert detect({"HOME": "/root"}) == PLAIN
    assert detect({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "64"}) == PLAIN  # the batch script itself


@pytest.mark.parametrize(
    ("environ", "launcher", "rank", "world_size", "local_rank", "node_rank", "tasks_per_node", "address"),
    [
        (TORCHRUN, "torchrun", 5, 8, 1, 2, (2, 2, 2, 2), "10.0.0.1"),
        (MPIRUN, "mpirun", 3, 4, 1, 1, (2, 2), ""),
        (SRUN, "srun", 4, 5, 0, 2, (2, 2, 1), "10.1.0.1"),
        (HOROVODRUN, "horovodrun", 1, 2, 1, 0, (2,), "127.0.0.1"),
        (MPICH, "MPICH's mpirun", 0, 3, 0, 0, (3,), ""),
        (KUBERNETES, "an indexed Kubernetes Job", 6, 7, 0, 6, (1,) * 7, "dba3c-0.dba3c"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "the environment", 1, 2, 0, 1, (1, 1), "a"),
    ],
)
def test_a_rank_finds_its_place(
    environ: dict[str, str],
    launcher: str,
    rank: int,
    world_size: int,
    local_rank: int,
    node_rank: int,
    tasks_per_node: tuple[int, ...],
    address: str,
) -> None:
    place = detect(environ)
    assert (place.launcher, place.rank, place.world_size) == (launcher, rank, world_size)
    assert (place.local_rank, place.node_rank, place.tasks_per_node) == (local_rank, node_rank, tasks_per_node)
    assert place.address == address


def test_a_second_life_has_another_launch_id() -> None:
    assert detect(SRUN).launch_id == "17-0-1"
    assert detect(SRUN).restart_count == 1
    assert detect({**SRUN, "SLURM_RESTART_COUNT": "2"}).launch_id != detect(SRUN).launch_id
    assert detect({**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}).launch_id == detect(SRUN).launch_id


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
    ],
)
def test_a_contradiction_is_refused_in_one_line(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        detect(environ)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
