"""The exchange that a worker trains through, as the configuration names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dba3c.metrics.exchange_records import to_event_records, to_server_records
from dba3c.runs.ending import StopRule
from dba3c.runs.rendezvous import Rendezvous
from param_servers.exchange import GradientExchange
from param_servers.layout import ShardPlan

if TYPE_CHECKING:
    from dba3c.assembly.place import Place
    from dba3c.metrics.writer import MetricsWriter
    from param_servers.allreduce.collective import Collective


def connect(place: Place, plan: ShardPlan, initial_parameters: Tensor, metrics: MetricsWriter) -> GradientExchange:
    """Join the run as worker ``place.rank``; `metrics` is where the rank that decides reports the run's figures.

    Raises:
        ParamServersError: the others could not be reached within the configured time.
    """
    return EXCHANGES[place.config.exchange.exchange](place, plan, initial_parameters, metrics)


def _servers(place: Place, plan: ShardPlan, initial_parameters: Tensor, metrics: MetricsWriter) -> GradientExchange:
    from param_servers.servers.client import ServersExchange

    return ServersExchange(
        worker=place.rank,
        incarnation=place.incarnation,
        plan=plan,
        exchange_config=place.config.exchange,
        resolve=Rendezvous(place.folder).address_until_the_end("server"),
        secret=place.secret,
    )


def _local(place: Place, plan: ShardPlan, initial_parameters: Tensor, metrics: MetricsWriter) -> GradientExchange:
    from param_servers.local import LocalExchange

    return LocalExchange(
        layout=plan.layout,
        initial_parameters=initial_parameters,
        optimizer_config=place.config.optimizer,
        exchange_config=place.config.exchange,
        **_duties_of_the_chief(place, metrics),
    )


def _allreduce(place: Place, plan: ShardPlan, initial_parameters: Tensor, metrics: MetricsWriter) -> GradientExchange:
    from param_servers.allreduce.exchange import AllReduceExchange

    return AllReduceExchange(
        collective=_collective(place),
        worker=place.rank,
        layout=plan.layout,
        initial_parameters=initial_parameters,
        optimizer_config=place.config.optimizer,
        exchange_config=place.config.exchange,
        **_duties_of_the_chief(place, metrics),
    )


def _majority(place: Place, plan: ShardPlan, initial_parameters: Tensor, metrics: MetricsWriter) -> GradientExchange:
    from param_servers.majority.exchange import MajorityExchange

    rendezvous = Rendezvous(place.folder)
    return MajorityExchange(
        rank=place.rank,
        incarnation=place.incarnation,
        layout=plan.layout,
        initial_parameters=initial_parameters,
        optimizer_config=place.config.optimizer,
        exchange_config=place.config.exchange,
        secret=place.secret,
        resolve=rendezvous.address_of("rank"),
        publish_address=rendezvous.publisher("rank", place.rank, place.incarnation),
        **_duties_of_the_chief(place, metrics),
    )


def _collective(place: Place) -> Collective:
    """The carrier of an all-reduce's sums, as the configuration names it."""
    exchange = place.config.exchange
    step_timeout_s, join_timeout_s = exchange.step_timeout_s, exchange.join_timeout_s
    if exchange.collective_backend == "mpi":
        from param_servers.allreduce.mpi import MpiCollective

        return MpiCollective(
            step_timeout_s=step_timeout_s,
            join_timeout_s=join_timeout_s,
            first_survivor_s=exchange.timeouts.first_survivor_s,
        )
    if exchange.collective_backend == "horovod":
        from param_servers.allreduce.horovod import HorovodCollective

        return HorovodCollective(step_timeout_s=step_timeout_s, join_timeout_s=join_timeout_s)
    from param_servers.allreduce.collective import TorchCollective

    rendezvous = Rendezvous(place.folder)
    return TorchCollective.join(
        place.rank,
        exchange.num_workers,
        secret=place.secret,
        publish=rendezvous.publisher("rank", place.rank, place.incarnation),
        resolve=rendezvous.address_of("rank"),
        host=exchange.listen_host,
        port=exchange.port,
        interface=exchange.interface,
        step_timeout_s=step_timeout_s,
        join_timeout_s=join_timeout_s,
    )


def _duties_of_the_chief(place: Place, metrics: MetricsWriter) -> dict[str, Any]:
    """What the process does that owns the run's checkpoints and decides when it ends."""
    return {
        "checkpoint_dir": place.folder.checkpoints,
        "should_stop": StopRule(place.folder, place.config),
        "on_report": to_server_records(metrics),
        "on_event": to_event_records(metrics),
    }


EXCHANGES: dict[str, Callable[[Place, ShardPlan, Tensor, MetricsWriter], GradientExchange]] = {
    "local": _local,
    "servers": _servers,
    "async": _servers,
    "allreduce": _allreduce,
    "majority": _majority,
}
