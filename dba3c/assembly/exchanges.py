"""The exchange that a worker trains through, as the configuration names it; and the role of its servers."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dba3c.assembly.model import initial_parameters
from dba3c.metrics.writer import MetricsWriter
from dba3c.roles import RunProcess
from dba3c.runs.ending import StopRule
from param_servers.allreduce.collective import Collective, TorchCollective
from param_servers.allreduce.exchange import AllReduceExchange
from param_servers.allreduce.mpi_horovod import HorovodCollective, MpiCollective
from param_servers.errors import RunBroken, RunStopped
from param_servers.exchange import GradientExchange
from param_servers.layout import ShardPlan
from param_servers.majority.exchange import MajorityExchange
from param_servers.optim import ClippedExchange
from param_servers.replica import LocalExchange
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer


def connect(process: RunProcess, plan: ShardPlan, parameters: Tensor, metrics: MetricsWriter) -> GradientExchange:
    """Join the run as worker ``process.rank``; `metrics` is where the rank that decides reports the run's figures.

    Raises:
        ParamServersError: the others could not be reached within the configured time.
    """
    config = process.config
    exchange: GradientExchange
    if config.exchange.has_servers:
        exchange = _servers(process, plan)
    else:
        duties = {"layout": plan.layout, **_duties(process, parameters, metrics)}
        if config.exchange.exchange == "local":
            exchange = LocalExchange(**duties)
        elif config.exchange.exchange == "allreduce":
            exchange = AllReduceExchange(collective=_collective(process), worker=process.rank, **duties)
        else:
            exchange = MajorityExchange(
                rank=process.rank,
                incarnation=process.incarnation,
                secret=process.secret,
                resolve=process.address_of("rank"),
                publish_address=process.publisher("rank"),
                **_audit(process),
                **duties,
            )
    return ClippedExchange(exchange, plan.layout, config.optimizer)


def _servers(process: RunProcess, plan: ShardPlan) -> GradientExchange:
    """By itself, for the chaos campaign to write down what goes through it."""
    return ServersExchange(
        worker=process.rank,
        incarnation=process.incarnation,
        plan=plan,
        exchange_config=process.config.exchange,
        resolve=process.address_until_the_end("server"),
        secret=process.secret,
    )


def _collective(process: RunProcess) -> Collective:
    exchange = process.config.exchange
    if exchange.collective_backend == "mpi":
        return MpiCollective(exchange)
    if exchange.collective_backend == "horovod":
        return HorovodCollective(exchange)
    publish, resolve = process.publisher("rank"), process.address_of("rank")
    return TorchCollective.join(process.rank, exchange, secret=process.secret, publish=publish, resolve=resolve)


def _duties(process: RunProcess, parameters: Tensor, metrics: MetricsWriter) -> dict[str, Any]:
    """What a server, or every rank where there are none, begins with, and what the one does that ends the run."""
    return {
        "initial_parameters": parameters,
        "optimizer_config": process.config.optimizer,
        "exchange_config": process.config.exchange,
        "checkpoint_dir": process.folder.checkpoints,
        "should_stop": StopRule(process.folder, process.config),
        "on_report": metrics.record_report,
        "on_event": metrics.record_told,
    }


def _audit(process: RunProcess) -> dict[str, Any]:
    """Where whoever decides about steps says which gradients made them."""
    return {"audit_path": process.folder.audit / "commits.jsonl", "life": process.folder.life_number()}


def _address_until_server_0_leaves(process: RunProcess) -> Callable[[int], tuple[str, int] | None]:
    """As `RunProcess.address_of`, but that a server 0 which has left is not dialled any more: a run may end before all
    servers have met, and then it has told this one nothing.

    Raises (when called):
        RunStopped: it has left, and the run has ended as asked.
        RunBroken: it has left because the run could not go on.
    """
    address_of, folder = process.address_of("server"), process.folder

    def resolve(rank: int) -> tuple[str, int] | None:
        try:
            if process.rank and folder.has_left("server", 0):
                reason = folder.stop_reason() or "server 0 has ended the run"
                raise RunBroken(reason) if folder.has_failed() else RunStopped(reason)
        except OSError:  # away for a while
            return None
        return address_of(rank)

    return resolve


def server(process: RunProcess) -> str:
    """Hold one shard of the parameters."""
    plan, parameters = initial_parameters(process.config)
    metrics = MetricsWriter.of(process, "server")
    try:
        return ParameterServer(
            shard=process.rank,
            plan=plan,
            resolve=_address_until_server_0_leaves(process),
            publish_address=process.publisher("server"),
            secret=process.secret,
            incarnation=process.incarnation,
            **_audit(process),
            **_duties(process, parameters, metrics),
        ).run()
    except RunStopped as stopped:
        return stopped.reason
    finally:
        metrics.close()
