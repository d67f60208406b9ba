"""One rank of an all-reduce on its own: does it work on this machine, and does it agree with torch.optim?

    mpirun -n 4 python -m tests.integration.allreduce_rank --backend mpi [--lanes 2]
    horovodrun -np 4 python -m tests.integration.allreduce_rank --backend horovod
    python -m tests.integration.allreduce_rank --backend torch --rank R --size N --meet DIR (on each rank R; DIR shared)

Each rank, or each lane of it, pushes a fixed stream of gradients; lane 0 compares the parameters with those of one
process. Exits with 0 if they agree, 1 if not, 2 with one line if the ranks could not work together.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from param_servers.allreduce.collective import Collective, TorchCollective
from param_servers.allreduce.exchange import AllReduceExchange
from param_servers.allreduce.mpi_horovod import HorovodCollective, MpiCollective
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ParamServersError
from param_servers.exchange import GradientExchange
from param_servers.lanes import Lane, run_in_lanes
from param_servers.layout import FlatLayout
from param_servers.timeouts import Timeouts

LAYOUT = FlatLayout.of({"torso.weight": (31, 11), "torso.bias": (31,), "head.weight": (5, 31), "head.bias": (5,)})
OPTIMIZER = OptimizerConfig(optimizer="adam", learning_rate="linear:1e-2->5e-3@40", beta1=0.8, beta2=0.75)
BATCH = 4
"""Data points of each gradient."""
TOLERANCE = 1e-5
"""Largest difference of parameters of about 1: the order of sums differs from three ranks on."""


def initial_parameters() -> Tensor:
    """[P] float32, the same everywhere."""
    return torch.linspace(-1, 1, LAYOUT.numel)


def gradient(worker: int, step: int) -> Tensor:
    """[P] float32: what `worker`, or a lane of one, pushes at `step`."""
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(100_003 * worker + step))


def mean_of_lanes(worker: int, lanes: int, step: int) -> Tensor:
    """[P] float32: the worker's gradient, its lanes' added in their order."""
    total = gradient(worker * lanes, step)
    for lane in range(1, lanes):
        total += gradient(worker * lanes + lane, step)
    return total / lanes


def reference(workers: Sequence[int], lanes: int, steps: int) -> Tensor:
    """[P] float32: parameters after `steps` steps of torch.optim on the mean gradient of `workers`."""
    parameter = torch.nn.Parameter(initial_parameters())
    adam = torch.optim.Adam([parameter], 1.0, (OPTIMIZER.beta1, OPTIMIZER.beta2), OPTIMIZER.epsilon)
    for step in range(steps):
        adam.param_groups[0]["lr"] = OPTIMIZER.schedule(step * BATCH * lanes * len(workers))
        total = mean_of_lanes(workers[0], lanes, step)
        for worker in workers[1:]:
            total += mean_of_lanes(worker, lanes, step)
        parameter.grad = total / len(workers)
        adam.step()
    return parameter.detach()


def join(arguments: argparse.Namespace) -> Collective:
    """The collective that the arguments name."""
    config = ExchangeConfig(
        exchange="allreduce",
        num_workers=arguments.size,
        step_timeout_s=arguments.timeout_s,
        join_timeout_s=arguments.join_timeout_s,
    )
    if arguments.backend == "mpi":
        return MpiCollective(config)
    if arguments.backend == "horovod":
        return HorovodCollective(config)
    meeting = Path(arguments.meet) / "address.json"

    def publish(host: str, port: int) -> None:
        meeting.with_suffix(".tmp").write_text(json.dumps([host, port]))
        os.replace(meeting.with_suffix(".tmp"), meeting)

    def resolve(rank: int) -> tuple[str, int] | None:
        return tuple(json.loads(meeting.read_text())) if meeting.exists() else None

    # Nothing but these made-up numbers can be read or written through this group, so its secret need not be one.
    return TorchCollective.join(
        arguments.rank,
        config,
        secret=b"param_servers all-reduce",
        publish=publish,
        resolve=resolve,
    )


def over(collective: Collective, arguments: argparse.Namespace) -> GradientExchange:
    """The exchange of a rank of `collective`."""
    return AllReduceExchange(
        collective=collective,
        layout=LAYOUT,
        initial_parameters=initial_parameters(),
        optimizer_config=OPTIMIZER,
        exchange_config=ExchangeConfig(exchange="allreduce", num_workers=collective.size, checkpoint_every_steps=50),
        checkpoint_dir=Path(arguments.checkpoint_dir) if arguments.checkpoint_dir else None,
    )


def train(exchange: GradientExchange, worker: int, steps: int) -> Tensor:
    """[P] float32: the parameters after the stream of one worker or lane."""
    try:
        pulled = exchange.pull()
        while pulled.step < steps:
            try:
                exchange.push(gradient(worker, pulled.step), pulled.step, BATCH)
            except ParamServersError:
                print(f"allreduce: step {pulled.step} failed", flush=True)
                raise
            pulled = exchange.pull()
        return pulled.parameters.clone()
    finally:
        exchange.close()


def rank_of(arguments: argparse.Namespace) -> int:
    """Before it has joined, a rank knows its number from its launcher."""
    launchers = (os.environ.get(name) for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"))
    return int(next((number for number in launchers if number), arguments.rank))


def play(lane: Lane, arguments: argparse.Namespace) -> str:
    """One lane's part. Lane 0 joins, and returns by how much its parameters differ from the reference."""
    torch.set_num_threads(1)
    joined: list[Collective] = []

    def connect() -> GradientExchange:
        joined.append(join(arguments))
        return over(joined[0], arguments)

    worker = rank_of(arguments) * lane.count + lane.index
    parameters = train(lane.exchange(connect, LAYOUT.numel), worker, arguments.steps)
    if lane.index:
        return ""
    (collective,) = joined
    expected = reference(range(collective.size), lane.count, arguments.steps)
    what = f"rank {collective.rank} of {collective.size}, {arguments.backend}, {arguments.steps} steps"
    difference = (parameters - expected).abs().max().item()
    print(f"allreduce: {what}: largest difference from torch.optim {difference:.2g}", flush=True)
    return "agrees" if difference <= TOLERANCE else "differs"


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.allreduce_rank")
    parser.add_argument("--backend", choices=["torch", "mpi", "horovod"], required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=30.0)
    parser.add_argument("--join-timeout-s", type=float, default=60.0)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--meet", default=".")
    parser.add_argument("--checkpoint-dir")
    arguments = parser.parse_args(argv)
    timeouts = Timeouts(step_timeout_s=arguments.timeout_s)
    try:
        said = run_in_lanes(arguments.lanes, lambda lane: play(lane, arguments), timeouts=timeouts)
    except ParamServersError as error:
        print(f"allreduce: {error}", file=sys.stderr, flush=True)
        return 2
    return 0 if said == "agrees" else 1


if __name__ == "__main__":
    sys.exit(main())
