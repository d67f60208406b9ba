"""Who am I? Each launcher tells its ranks in its own variables: `LAUNCHERS`.

The innermost launcher speaks: under ``srun torchrun`` a process is one of torchrun's ranks, and srun started torchrun.
"""

import bisect
import itertools
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dba3c.errors import UserError


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
    address: tuple[str, ...] = ()
    """A host that every rank can reach."""
    launch_id: tuple[str, ...] = ()
    """Together: equal in the ranks of one launch, different in the next."""
    restart_count: tuple[str, ...] = ()
    """How often the launcher has started the same launch again; where it is part of `launch_id`, a life's own part."""


REPLACEMENT = "a replacement of a lost node"
REPLACES_VARIABLE = "DBA3C_REPLACES_RANK"
TORCHRUN = "torchrun"
MPIRUN = "mpirun"
MPICH = "MPICH's mpirun"
SRUN = "srun"
ALONE_IN_ITS_STEP = dict.fromkeys(
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_NODES"), "1"
)
ENDS_ALL_RANKS = (TORCHRUN, "horovodrun", MPIRUN, MPICH)
"""When one of them ends otherwise than well."""
STARTS_RANKS_AGAIN = (TORCHRUN, "an indexed Kubernetes Job", "the environment")
"""Launchers (and those that set the variables by hand) whose rank 0, started again, goes on with its run."""

LAUNCHERS = (
    Launcher(
        name=REPLACEMENT,
        sign=REPLACES_VARIABLE,
        rank=(REPLACES_VARIABLE,),
        world_size=("DBA3C_WORLD_SIZE",),
        local_rank=("SLURM_PROCID",),
        local_world_size=("DBA3C_LOCAL_WORLD_SIZE",),
        address=("DBA3C_CHIEF_ADDRESS",),
        launch_id=("DBA3C_LAUNCH_ID",),
    ),
    Launcher(
        name=TORCHRUN,
        sign="TORCHELASTIC_RUN_ID",
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
        num_nodes=("GROUP_WORLD_SIZE",),
        address=("MASTER_ADDR",),
        launch_id=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),  # each torchrun counts its own restarts
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
        local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),  # the second ones are Cray's (PALS)
        local_world_size=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        # of few MPICHs; what else there is are each rank's own descriptors
        launch_id=("PMI_JOBID", "PMI_KVSNAME", "PALS_APID"),
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
starts, though it sets MPICH's variables too: see `detect`."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlace:
    """Who a process is among those that were started with it."""

    launcher: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    """Ranks on this node, which may be more than on others."""
    tasks_per_node: tuple[int, ...] = (1,)
    """Ranks on each node, which they fill one after the other: by this roles are dealt, so it is equal in all ranks.
    Where a launcher tells each rank of its own node only, ranks count as if each had a node of its own."""
    node_name: str = ""
    """What people call the node, for messages and logs."""
    address: str = ""
    """A host that every rank can reach; "" where the launcher tells none."""
    launch_id: str = ""
    """Equal in the ranks of one launch, different in the next, but torchrun's, which starts its ranks again under it;
    "" where the launcher tells nothing of the kind."""
    run_name: str = ""
    """As `launch_id`, but a launch that its launcher starts again keeps it."""
    restart_count: int = 0

    @property
    def is_chief(self) -> bool:
        """Rank 0 makes the run folder; the others wait for it."""
        return self.rank == 0


PLAIN = LaunchPlace(launcher="plain")


def detect(environ: Mapping[str, str]) -> LaunchPlace:
    """The place that the environment gives this process; `PLAIN` when no launcher started it.

    Raises:
        UserError: variables that are missing, no numbers, or contradict each other.
    """
    present = [launcher for launcher in LAUNCHERS if launcher.sign in environ]
    if _is_srun_with_pmi(environ):
        present = [launcher for launcher in present if launcher.name != MPICH]
    if is_typed_in_its_shell(environ):
        environ = {**environ, **ALONE_IN_ITS_STEP}
    if not present:
        return PLAIN
    inner, outer = present[0], present[1:]
    place = _read_place(inner, environ)
    if inner.name == REPLACEMENT:  # what started it is a job of its own
        return place
    for launcher in outer:
        if launcher.name == SRUN and "SLURM_PTY_PORT" in environ and environ.get("SLURM_PROCID") == "0":
            continue  # typed in its shell, the first task; the others have ended
        # Kubernetes numbers every indexed job's pods, also where torchrun starts what is in them.
        if launcher.name != "the environment" and _first(environ, launcher.world_size):
            _refuse_contradiction(place, _read_place(launcher, environ))
    return place


def _read_place(launcher: Launcher, environ: Mapping[str, str]) -> LaunchPlace:
    """What one launcher's variables say."""
    rank = _number(launcher, launcher.rank, environ)
    world_size = _number(launcher, launcher.world_size, environ)
    if rank is None or world_size is None:
        missing = launcher.rank if rank is None else launcher.world_size
        raise UserError(
            f"{launcher.name} set {launcher.sign}, but not {' or '.join(missing)}: this process has no place"
        )
    local_rank = _number(launcher, launcher.local_rank, environ)
    if launcher.name == REPLACEMENT:  # its n-th task is the n-th rank of the lost node, whose first is named
        rank += local_rank or 0
    if not 0 <= rank < world_size:
        raise UserError(f"{launcher.name} says rank {rank} of {world_size}: ranks count from 0 to {world_size - 1}")
    tasks_per_node = _tasks_per_node(launcher, world_size, environ)
    ends = list(itertools.accumulate(tasks_per_node))
    node = bisect.bisect_right(ends, rank)
    number = rank - ends[node] + tasks_per_node[node]
    node_rank = _number(launcher, launcher.node_rank, environ)
    # Ranks that go round the nodes (srun's --distribution=cyclic) are not where roles are dealt to. Where each counts
    # as a node of its own (mpirun on several nodes) they may: roles are dealt by rank alone. Nor need mpirun's local
    # ranks be in the order of the ranks: Open MPI 5 maps more ranks than cores core by core.
    if node_rank is not None and (node_rank != node or local_rank not in (None, number)):
        raise UserError(
            f"{launcher.name} put rank {rank} on node {node_rank} as its number {local_rank}, but filling nodes "
            f"one after the other puts it on node {node} as number {number}: start ranks in blocks "
            "(srun --distribution=block)"
        )
    return LaunchPlace(
        launcher=launcher.name,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank or 0,
        local_world_size=_number(launcher, launcher.local_world_size, environ) or tasks_per_node[node],
        tasks_per_node=tasks_per_node,
        node_name=environ.get("SLURMD_NODENAME") or socket.gethostname(),
        address=_first(environ, launcher.address) or "",
        launch_id=_joined(environ, launcher.launch_id),
        run_name=_joined(environ, [name for name in launcher.launch_id if name not in launcher.restart_count]),
        restart_count=_number(launcher, launcher.restart_count, environ) or 0,
    )


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The first variable that is set; None where none is."""
    return next((environ[name] for name in names if environ.get(name)), None)


def _joined(environ: Mapping[str, str], names: Sequence[str]) -> str:
    return "-".join(environ[name] for name in names if environ.get(name))


def _is_srun_with_pmi(environ: Mapping[str, str]) -> bool:
    """Whether Slurm's own PMI (MpiDefault=pmi2) set MPICH's variables, of this step or of a shell that it was submitted
    from: it counts no ranks of a node, as MPICH's mpirun does."""
    return "SLURM_STEP_ID" in environ and not environ.keys() & {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}


def is_typed_in_its_shell(environ: Mapping[str, str]) -> bool:
    """Whether this was started from the shell of `srun -n 8 --pty bash`. The other seven shells had no input, and have
    ended. What is one of srun's own tasks, the first with its terminal, belongs to no job of an interactive shell."""
    return "SLURM_PTY_PORT" in environ and os.isatty(0) and os.getpgrp() != os.getsid(0)


def _tasks_per_node(launcher: Launcher, world_size: int, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Ranks on each node, from what is equal in all ranks: they deal roles by it, each for itself.

    A rank's local size is not: with 2 ranks on one node and 4 on another each would take the nodes for even, and they
    would disagree. It is, where it is the whole world.
    """
    if launcher.name == SRUN:
        for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
            if name in environ and sum(tasks := parse_tasks_per_node(environ[name])) == world_size:
                return tuple(tasks)
    local = _number(launcher, launcher.local_world_size, environ)
    if local and (local == world_size or (launcher.name == REPLACEMENT and world_size % local == 0)):
        return (local,) * (world_size // local)
    nodes = _number(launcher, launcher.num_nodes, environ)
    if nodes and world_size % nodes == 0:
        return (world_size // nodes,) * nodes
    return (1,) * world_size


def parse_tasks_per_node(text: str) -> list[int]:
    """``2(x3),1`` → ``[2, 2, 2, 1]``. Raises UserError: not of this form."""
    items = [re.fullmatch(r"(\d+)(?:\(x(\d{1,5})\))?", item.strip()) for item in text.split(",")]
    if None in items:
        raise UserError(f"tasks per node should look like 2(x3),1; got {text!r}")
    return [int(item[1]) for item in items if item for _ in range(int(item[2] or 1))]


def _refuse_contradiction(inner: LaunchPlace, outer: LaunchPlace) -> None:
    """``srun -N 4 torchrun`` without ``--nnodes 4`` makes four runs of one node each: surely not what was meant."""
    if outer.world_size in (1, inner.world_size):
        return
    most = outer.world_size * inner.local_world_size  # of an elastic torchrun nodes may be missing
    if inner.launcher == TORCHRUN and (inner.world_size == most or 1 < len(inner.tasks_per_node) < outer.world_size):
        return
    if inner.launcher in (MPIRUN, MPICH) and outer.launcher == SRUN:
        return  # mpirun's own daemons are what srun started
    raise UserError(
        f"{outer.launcher} started {outer.world_size} ranks, but {inner.launcher} inside it counts {inner.world_size}: "
        f"tell {inner.launcher} of all {outer.world_size}, or use {outer.launcher} alone"
    )


def _number(launcher: Launcher, names: Sequence[str], environ: Mapping[str, str]) -> int | None:
    """The first of the launcher's variables that is set; None where none is."""
    for name in names:
        if environ.get(name):
            try:
                return int(environ[name])
            except ValueError:
                raise UserError(f"{launcher.name} should set {name} to a number, it is {environ[name]!r}") from None
    return None
