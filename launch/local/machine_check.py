"""What a run needs of this machine, looked at before anything is started: whatever is missing is one line.

In: the configuration. Out: nothing, or a UserError. The limit on open files is raised where it may be.
"""

from __future__ import annotations

import importlib.util
import resource
import shutil
import socket
from pathlib import Path

from dba3c.config import TrainConfig
from dba3c.errors import UserError
from dba3c.metrics.sinks.sink import check_clients
from param_servers.wire.tcp_sockets import listen_address

FILES_OF_A_PROCESS = 64
"""Of its own, beside its links: libraries, logs, metrics, event loops."""
FILES_FOR_EACH_OTHER = 4
"""That it may be linked to: two links, the one that takes its place, and the supervisor's pipe."""
COPIES_OF_A_CHECKPOINT = 3
"""In parameters' sizes: they and two moments."""
SPARE_BYTES = 64_000_000
"""For everything else in a run's folder."""


def check_machine(config: TrainConfig, processes: int) -> None:
    """All but the disk, for a run whose processes are all here: so many.

    Raises:
        UserError: a tracker's client or a collective backend is not installed, `listen_host` is no address of this
            host, or too few files may be open.
    """
    check_clients(config.run.track)
    exchange = config.exchange
    sums_by_mpi = exchange.exchange == "allreduce" and exchange.collective_backend == "mpi"
    if sums_by_mpi and importlib.util.find_spec("mpi4py") is None:
        raise UserError("--collective-backend mpi needs mpi4py: pip install 'dba3c[mpi]'")
    check_listen_host(listen_address(exchange.listen_host, exchange.interface))
    check_open_files(processes)


def check_listen_host(host: str) -> None:
    """Raise UserError where `host` is no address of this machine."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"--listen-host {host} is no address of this host, {socket.gethostname()}: {why}") from error


def check_disk(run_dir: Path, parameters: int, keep: int) -> None:
    """Raise UserError where there is no room for as many checkpoints as are kept, and one that is being written."""
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    checkpoint = 4 * parameters * COPIES_OF_A_CHECKPOINT
    needed, free = (keep + 1) * checkpoint + SPARE_BYTES, shutil.disk_usage(there).free
    if free < needed:
        raise UserError(
            f"{there} has {free / 1e6:,.0f} MB left, the run may need {needed / 1e6:,.0f}: {keep} + 1 checkpoints of "
            f"{checkpoint / 1e6:,.1f} MB and {SPARE_BYTES / 1e6:.0f} MB for records; see --keep-checkpoints, --run-dir"
        )


def check_open_files(processes: int) -> None:
    """Raise the limit on open files to what one of so many processes may need; UserError where that may not be."""
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
