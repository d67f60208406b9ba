"""The exchange a worker trains through, as the configuration names it."""

from __future__ import annotations

from dba3c.config import TrainConfig
from dba3c.run_folder import RunFolder
from dba3c.rendezvous import Rendezvous
from param_servers.exchange import GradientExchange
from param_servers.sharding import ShardPlan


def connect(
    folder: RunFolder, config: TrainConfig, plan: ShardPlan, rank: int, incarnation: int
) -> GradientExchange:
    """Join the run as worker ``rank``.

    Raises:
        ParamServersError: the others could not be reached within the configured time.
    """
    from param_servers.client import ServersExchange

    rendezvous = Rendezvous(folder, config.exchange.join_timeout_s)
    return ServersExchange(
        worker=rank,
        incarnation=incarnation,
        plan=plan,
        exchange_config=config.exchange,
        resolve=rendezvous.address_of_server,
        secret=folder.secret(),
    )
