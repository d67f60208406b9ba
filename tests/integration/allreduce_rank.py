"""One rank of an all-reduce on its own: does it work on this machine, and does it agree with torch.optim?

    mpirun -n 4 python -m tests.integration.allreduce_rank --backend mpi
    horovodrun -np 4 python -m tests.integration.allreduce_rank --backend horovod
    python -m tests.integration.allreduce_rank --backend torch --rank R --size N --meet DIR (on each rank R; DIR shared)

Each rank pushes a fixed stream of gradients and compares the parameters with those of one process. Exits with 0 if
they agree, 1 if not, 2 with one line if the ranks could not work together.
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
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ParamServersError
from param_servers.layout import FlatLayout

LAYOUT = FlatLayout.of({"torso.weight": (31, 11), "torso.bias": (31,), "head.weight": (5, 31), "head.bias": (5,)})
OPTIMIZER = OptimizerConfig(optimizer="adam", learning_rate="piecewise:1e-2@0,5e-3@40", beta1=0.8, beta2=0.75)
BATCH = 4
"""Data points of each gradient."""
TOLERANCE = 1e-5
"""Largest difference of parameters of about 1: the order of sums differs from three ranks on."""


def initial_parameters() -> Tensor:
    """[P] float32, the same everywhere."""
    return torch.linspace(-1, 1, LAYOUT.numel)


def gradient(worker: int, step: int) -> Tensor:
    """[P] float32: what `worker` pushes at `step`."""
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(100_003 * worker + step))


def reference(workers: Sequence[int], steps: int) -> Tensor:
    """[P] float32: parameters after `steps` steps of torch.optim on the mean gradient of `workers`."""
    parameter = torch.nn.Parameter(initial_parameters())
    adam = torch.optim.Adam([parameter], 1.0, (OPTIMIZER.beta1, OPTIMIZER.beta2), OPTIMIZER.epsilon)
    for step in range(steps):
        adam.param_groups[0]["lr"] = OPTIMIZER.schedule(step * BATCH * len(workers))
        total = gradient(workers[0], step)
        for worker in workers[1:]:
            total += gradient(worker, step)
        parameter.grad = total / len(workers)
        adam.step()
    return parameter.detach()


def join(arguments: argparse.Namespace) -> Collective:
    """The collective that the arguments name."""
    timeouts = {"step_timeout_s": arguments.timeout_s, "join_timeout_s": arguments.join_timeout_s}
    if arguments.backend == "mpi":
        from param_servers.allreduce.mpi import MpiCollective

        return MpiCollective(**timeouts)
    if arguments.backend == "horovod":
        from param_servers.allreduce.horovod import HorovodCollective

        return HorovodCollective(**timeouts)
    meeting = Path(arguments.meet) / "address.json"

    def publish(host: str, port: int) -> None:
        meeting.with_suffix(".tmp").write_text(json.dumps([host, port]))
        os.replace(meeting.with_suffix(".tmp"), meeting)

    def resolve(rank: int) -> tuple[str, int] | None:
        return tuple(json.loads(meeting.read_text())) if meeting.exists() else None

    # Nothing but these made-up numbers can be read or written through this group, so its secret need not be one.
    return TorchCollective.join(
        arguments.rank,
        arguments.size,
        secret=b"param_servers all-reduce",
        publish=publish,
        resolve=resolve,
        **timeouts,
    )


def train(collective: Collective, arguments: argparse.Namespace) -> float:
    """Run the stream; the largest difference from the reference, over all parameters."""
    config = ExchangeConfig(exchange="allreduce", num_workers=collective.size, checkpoint_every_steps=50)
    exchange = AllReduceExchange(
        collective=collective,
        layout=LAYOUT,
        initial_parameters=initial_parameters(),
        optimizer_config=OPTIMIZER,
        exchange_config=config,
        checkpoint_dir=Path(arguments.checkpoint_dir) if arguments.checkpoint_dir else None,
    )
    try:
        pulled = exchange.pull()
        while pulled.step < arguments.steps:
            exchange.push(gradient(collective.rank, pulled.step), pulled.step, BATCH)
            pulled = exchange.pull()
        expected = reference(range(collective.size), arguments.steps)
        return (pulled.parameters - expected).abs().max().item()
    finally:
        exchange.close()


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.allreduce_rank")
    parser.add_argument("--backend", choices=["torch", "mpi", "horovod"], required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--timeout-s", type=float, default=30.0)
    parser.add_argument("--join-timeout-s", type=float, default=60.0)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--meet", default=".")
    parser.add_argument("--checkpoint-dir")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        collective = join(arguments)
        difference = train(collective, arguments)
    except ParamServersError as error:
        print(f"allreduce: {error}", file=sys.stderr, flush=True)
        return 2
    what = f"rank {collective.rank} of {collective.size}, {arguments.backend}, {arguments.steps} steps"
    print(f"allreduce: {what}: largest difference from torch.optim {difference:.2g}", flush=True)
    return 0 if difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
