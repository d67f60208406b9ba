"""In which variables each launcher tells a rank who it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The variables in which one launcher tells a rank who it is (several names: the first that is set counts)."""

    name: str
    sign: str
    """The variable that only this launcher sets."""
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_world_size: tuple[str, ...] = ()
    node_rank: tuple[str, ...] = ()
    num_nodes: tuple[str, ...] = ()
    """Equal in all ranks."""
    even: bool = False
    """Its nodes all have as many ranks."""
    address: tuple[str, ...] = ()
    """A host that every rank can reach."""
    launch_id: tuple[str, ...] = ()
    """Together: equal in the ranks of one launch, different in the next."""
    restart_count: tuple[str, ...] = ()
    """How often the launcher has started the same launch again; where it is part of `launch_id`, a life's own part."""


REPLACEMENT = "a replacement of a lost node"
MPIRUN = "mpirun"
MPICH = "MPICH's mpirun"
SRUN = "srun"
STARTS_RANKS_AGAIN = ("torchrun", "an indexed Kubernetes Job", "the environment")
"""Launchers (and those that set the variables by hand) whose rank 0, started again, goes on with its run."""

LAUNCHERS = (
    Launcher(
        name=REPLACEMENT,
        sign="DBA3C_REPLACES_RANK",
        rank=("DBA3C_REPLACES_RANK",),
        world_size=("DBA3C_WORLD_SIZE",),
        local_world_size=("DBA3C_LOCAL_WORLD_SIZE",),
        even=True,
        address=("DBA3C_CHIEF_ADDRESS",),
        launch_id=("DBA3C_LAUNCH_ID",),
    ),
    Launcher(
        name="torchrun",
        sign="TORCHELASTIC_RUN_ID",
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
        num_nodes=("GROUP_WORLD_SIZE",),
        address=("MASTER_ADDR",),
        launch_id=("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
        restart_count=("TORCHELASTIC_RESTART_COUNT",),
    ),
    Launcher(
        name="horovodrun",
        sign="HOROVOD_RANK",
        rank=("HOROVOD_RANK",),
        world_size=("HOROVOD_SIZE",),
        local_rank=("HOROVOD_LOCAL_RANK",),
        local_world_size=("HOROVOD_LOCAL_SIZE",),
        address=("HOROVOD_GLOO_RENDEZVOUS_ADDR",),
        launch_id=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ),
    Launcher(
        name=MPIRUN,
        sign="OMPI_COMM_WORLD_RANK",
        rank=("OMPI_COMM_WORLD_RANK",),
        world_size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        launch_id=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    Launcher(
        name=MPICH,
        sign="PMI_RANK",
        rank=("PMI_RANK",),
        world_size=("PMI_SIZE",),
        local_rank=("MPI_LOCALRANKID",),
        local_world_size=("MPI_LOCALNRANKS",),
        launch_id=("PMI_JOBID", "PMI_KVSNAME"),  # of few MPICHs; what else there is are each rank's own descriptors
    ),
    Launcher(
        name=SRUN,
        sign="SLURM_STEP_ID",
        rank=("SLURM_PROCID",),
        world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        local_rank=("SLURM_LOCALID",),
        node_rank=("SLURM_NODEID",),
        num_nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        address=("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"),
        launch_id=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        restart_count=("SLURM_RESTART_COUNT",),
    ),
    Launcher(
        name="an indexed Kubernetes Job",
        sign="JOB_COMPLETION_INDEX",
        rank=("JOB_COMPLETION_INDEX",),
        world_size=("DBA3C_WORLD_SIZE",),
        address=("DBA3C_CHIEF_ADDRESS",),
        launch_id=("DBA3C_LAUNCH_ID",),
    ),
    Launcher(
        name="the environment",
        sign="WORLD_SIZE",
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
        address=("MASTER_ADDR",),
        launch_id=("DBA3C_LAUNCH_ID", "MASTER_ADDR", "MASTER_PORT"),
    ),
)
"""Innermost first. Open MPI under ``srun --mpi=pmix`` is srun's: Slurm starts its ranks. So is what ``srun --mpi=pmi2``
starts, though it sets MPICH's variables too: see `launch.cluster.launchers.detect`."""
