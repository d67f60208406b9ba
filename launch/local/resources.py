"""What this machine has for a run: the cores a process was given (by affinity, cgroup and Slurm), not those the machine
has; threads and binding; and, before anything is started, whether what it needs is here."""

import errno
import importlib.util
import os
import resource
import socket
from collections.abc import Mapping

from dba3c.config import NetworkConfig, TrainConfig
from dba3c.errors import UserError, warn_on_stderr
from dba3c.metrics.trackers import check_clients
from dba3c.runs.folder import SECRET_VARIABLE
from dba3c.runs.host_facts import affinity_cores, cgroup_quota_cores, is_quick_in_bfloat16, launcher_pid
from param_servers.wire.handshake import check_secret
from param_servers.wire.tcp_sockets import listen_address, open_listener

FILES_OF_A_PROCESS = 64
"""Of its own, beside its links: libraries, logs, metrics, event loops."""
FILES_FOR_EACH_OTHER = 4
"""That it may be linked to: two links, the one that takes its place, and the supervisor's pipe."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def given_cores(environ: Mapping[str, str], local_world_size: int = 1) -> int:
    """Cores that this process may use: the least of what affinity, cgroup quota and Slurm give, at least 1.

    Args:
        local_world_size: ranks that share this node's cores, unless Slurm gave each its own (it did not where torchrun
            started several in one of its tasks: it then has too few on this node). They share what their launcher has,
            which may have bound each of them to a core, or many to a socket, as mpirun does.
    """
    affinity = len(affinity_cores())
    quota = cgroup_quota_cores()
    shared = affinity if quota is None else min(affinity, max(1, int(quota)))
    per_task = _slurm_cores_per_task(environ)
    if per_task is not None:
        on_node = _slurm_number(environ, "SLURM_CPUS_ON_NODE") or per_task * local_world_size
        return max(1, min(shared, per_task, on_node // max(1, local_world_size)))
    of_all = max(affinity, _cores_of_the_launcher(environ))
    of_all = of_all if quota is None else min(of_all, int(quota))
    return max(1, min(shared, of_all // max(1, local_world_size)))


def _cores_of_the_launcher(environ: Mapping[str, str]) -> int:
    """That started this process, or the script around it; 0 where it cannot be asked."""
    try:
        return len(os.sched_getaffinity(launcher_pid(environ)))
    except OSError:
        return 0


def _slurm_cores_per_task(environ: Mapping[str, str]) -> int | None:
    """Cores that Slurm promised each task of this step, in a heterogeneous job each of this one's part."""
    first, rank = 0, _slurm_number(environ, "SLURM_PROCID", at_least=0) or 0
    for part in range(_slurm_number(environ, "SLURM_HET_SIZE") or 0):
        first += _slurm_number(environ, f"SLURM_NTASKS_HET_GROUP_{part}") or 0
        if rank < first:
            return _slurm_number(environ, f"SLURM_CPUS_PER_TASK_HET_GROUP_{part}")
    return _slurm_number(environ, "SLURM_CPUS_PER_TASK")


def cores_of_all_ranks(environ: Mapping[str, str], cores: int, world_size: int) -> int:
    """Cores of all ranks, each with as many as this one; the parts of a heterogeneous job have their own."""
    parts = range(_slurm_number(environ, "SLURM_HET_SIZE") or 0)
    names = ("SLURM_NTASKS_HET_GROUP", "SLURM_CPUS_PER_TASK_HET_GROUP")
    numbers = [[_slurm_number(environ, f"{name}_{part}") or 0 for name in names] for part in parts]
    return sum(tasks * cores_of_task for tasks, cores_of_task in numbers) or cores * world_size


def _slurm_number(environ: Mapping[str, str], name: str, at_least: int = 1) -> int | None:
    """A count in one of Slurm's variables; None outside of Slurm or where it does not say.

    Raises:
        UserError: the variable is not a number, or too small a one.
    """
    text = environ.get(name, "")
    if not text:
        return None
    if not text.isdigit() or int(text) < at_least:
        raise UserError(f"{name} should be a number from {at_least} on, it is {text!r}")
    return int(text)


def thread_environment(threads: int, environ: Mapping[str, str], by_torchrun: bool = False) -> dict[str, str]:
    """Variables for a child that computes with ``threads`` threads; what the user set stays as it is (torchrun itself
    sets OMP_NUM_THREADS to 1 where it starts several ranks on a node, which says nothing).

    Idle OpenMP threads sleep instead of spinning: on a shared core a spinning thread takes it from the emulators.
    """
    wanted = dict.fromkeys(THREAD_VARIABLES, str(max(1, threads)))
    wanted |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    unsaid = {"OMP_NUM_THREADS"} if by_torchrun and environ.get("OMP_NUM_THREADS") == "1" else set()
    return {name: value if name in unsaid else environ.get(name, value) for name, value in wanted.items()}


def said_threads(environ: Mapping[str, str]) -> int:
    """OMP_NUM_THREADS; 0 where it says nothing. For nested regions a site may say several: "4,1"."""
    said = environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(said) if said.isdigit() else 0


def warn_of_few_threads(environ: Mapping[str, str], cores: int) -> None:
    """Of a learner, which computes with as many as it is told: a site's modules may say 1, which nobody meant."""
    threads = said_threads(environ)
    if 0 < threads < cores:
        warn_on_stderr(f"OMP_NUM_THREADS={threads}: the learner computes with {threads} of its {cores} cores")


def bind_to_own_cores(environ: Mapping[str, str], local_rank: int, local_world_size: int) -> list[int]:
    """Pin this process, and what it starts from now on, to its own part of the cores that all ranks of this node see.

    Only where Slurm says that these cores are the job's alone: as many as its tasks here were promised together. With
    fewer, Slurm has pinned each task itself; with more, other jobs may sit on any of them. Returns the cores, [] when
    nothing was done.
    """
    seen, promised = affinity_cores(), _slurm_cores_per_task(environ)
    if promised is None or local_world_size < 2 or len(seen) != promised * local_world_size:
        return []
    own = seen[local_rank * promised : (local_rank + 1) * promised]
    os.sched_setaffinity(0, own)
    return own


def check_machine(config: TrainConfig, processes: int) -> None:
    """All but the disk, for a run whose processes are all here: so many; and whether its precision is slow here.

    Raises:
        UserError: a tracker's client or a collective backend is not installed, `listen_host` is no address of this
            host, the port is taken or several servers are to have one, or too few files may be open.
        ConfigError: the environment's secret is too short.
    """
    check_clients(config.run.track)
    exchange = config.exchange
    sums_by_mpi = exchange.exchange == "allreduce" and exchange.collective_backend == "mpi"
    if sums_by_mpi and importlib.util.find_spec("mpi4py") is None:
        raise UserError("--collective-backend mpi needs mpi4py: pip install 'dba3c[mpi]'")
    if exchange.port and exchange.has_servers and exchange.num_servers > 1:
        raise UserError(f"{exchange.num_servers} servers cannot all listen on --port {exchange.port} of one machine")
    check_listen_host(listen_address(exchange.listen_host, exchange.interface), exchange.port)
    if secret := os.environ.get(SECRET_VARIABLE):
        check_secret(secret.encode())
    check_open_files(processes + config.environment.lanes - 1)
    if slow := slow_precision(config.network):
        warn_on_stderr(slow)


def slow_precision(network: NetworkConfig) -> str:
    """What this machine's processor is slow in; "" where it computes nothing, or in float32, or quickly."""
    if network.device != "cpu" or network.precision == "float32" or is_quick_in_bfloat16():
        return ""
    return f"this processor is slower in {network.precision} than in float32, maybe much: --precision float32"


def check_listen_host(host: str, port: int = 0) -> None:
    """Raise UserError where `host` is no address of this machine, or the port there is taken."""
    try:
        open_listener(host, port, None).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"--port {port} of {host} is taken: choose another, or 0 for any that is free") from error
        why = error.strerror or str(error)
        raise UserError(f"--listen-host {host} is no address of this host, {socket.gethostname()}: {why}") from error


def check_open_files(processes: int) -> None:
    """Raise the limit on open files to what one of so many processes may need, its own lanes among them; UserError
    where that may not be."""
    needed = FILES_OF_A_PROCESS + FILES_FOR_EACH_OTHER * processes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"{processes} processes may need {needed:,} open files each ({FILES_OF_A_PROCESS} + {FILES_FOR_EACH_OTHER} "
            f"for each process), and no more than {hard:,} are allowed here: raise the hard limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
