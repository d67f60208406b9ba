"""Servers and workers that know each other's addresses: a module, an optimizer and an address are all that they need.

Where servers come and go (a cluster's ranks, fixed by nobody), use `ParameterServer` and `ServersExchange` themselves:
they ask again for an address before each attempt.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.layout import FlatLayout, ShardPlan, plan_shards
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer

Address = tuple[str, int]
"""Host and port."""


def serve(
    module: nn.Module,
    optimizer_config: OptimizerConfig,
    address: Address | Sequence[Address],
    *,
    shard: int = 0,
    steps: int | None = None,
    exchange_config: ExchangeConfig | None = None,
    secret: bytes | None = None,
    **options: Any,
) -> str:
    """Be a parameter server until the run ends; the reason why it ended. One call in one process for each address.

    Args:
        module: its parameters are those of step 0, the same in all servers; it is not changed.
        address: where this server listens; of several servers, all their addresses in order.
        shard: which of them this is.
        steps: after so many the run ends; None: `should_stop` says when, or nobody.
        exchange_config: how many workers, backup workers, how patient; None: one worker, and the defaults.
        secret: at least 16 bytes that every process of the run knows; None: `shared_secret`.
        options: further ones of `ParameterServer`: should_stop, checkpoint_dir, on_event, …

    Raises: as `ParameterServer.run`.
    """
    addresses, config, plan = _run_of(module, address, exchange_config)
    host, port = addresses[shard]
    if steps is not None:
        options["should_stop"] = lambda step, data_points: f"{steps} steps" if step >= steps else None
    return ParameterServer(
        shard=shard,
        plan=plan,
        initial_parameters=plan.layout.flatten(module),
        optimizer_config=optimizer_config,
        exchange_config=replace(config, listen_host=host, port=port),
        resolve=lambda server: addresses[server],
        secret=shared_secret() if secret is None else secret,
        **options,
    ).run()


def connect(
    module: nn.Module,
    address: Address | Sequence[Address],
    *,
    worker: int = 0,
    exchange_config: ExchangeConfig | None = None,
    secret: bytes | None = None,
) -> ServersExchange:
    """A worker's exchange with the servers at these addresses; all but `worker`, its rank, as in `serve`.

    Gradients and parameters are [P] in the order of `module.parameters()`.
    """
    addresses, config, plan = _run_of(module, address, exchange_config)
    return ServersExchange(
        worker=worker,
        plan=plan,
        exchange_config=config,
        resolve=lambda server: addresses[server],
        secret=shared_secret() if secret is None else secret,
    )


def shared_secret() -> bytes:
    """32 bytes in `~/.cache/param_servers/secret`, which only this user can read; drawn when they are first wanted.

    They join processes of one user that see one home. Others (containers, hosts without a shared home) are given one.
    """
    path = Path.home() / ".cache" / "param_servers" / "secret"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = path.with_name(f"secret.{os.getpid()}-{secrets.token_hex(4)}")
        drawn.touch(mode=0o600, exist_ok=False)
        drawn.write_bytes(secrets.token_bytes(32))
        try:
            os.link(drawn, path)  # the first process wins, and nobody reads half a secret
        except FileExistsError:
            pass
        finally:
            drawn.unlink()
    return path.read_bytes()


def _run_of(
    module: nn.Module, address: Address | Sequence[Address], config: ExchangeConfig | None
) -> tuple[list[Address], ExchangeConfig, ShardPlan]:
    addresses = cast(list[Address], [address] if isinstance(address[0], str) else list(address))
    config = replace(config or ExchangeConfig(exchange="servers"), num_servers=len(addresses))
    return addresses, config, plan_shards(FlatLayout.of_module(module), len(addresses), config.sharding)
