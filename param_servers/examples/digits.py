"""scikit-learn's digits: 2 servers, 4 workers + 1 backup, one is killed. python -m param_servers.examples.digits"""

import os
import signal

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy, linear

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.exchange import GradientExchange
from param_servers.layout import FlatLayout
from param_servers.one_machine import run_on_one_machine
from param_servers.sharding import plan_shards

LAYOUT = FlatLayout.of({"weight": (10, 64), "bias": (10,)})  # one flat float32 buffer [650]
IMAGES, LABELS = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
INPUT = IMAGES.float() / 16  # [1797, 64]


def worker(exchange: GradientExchange, rank: int) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(rank)
    while True:  # until the servers say that the run has ended
        parameters, step, _ = exchange.pull()  # [650], the newest committed version
        if rank == 4 and step >= 20:
            os.kill(os.getpid(), signal.SIGKILL)  # nobody is told
        leaf = parameters.clone().requires_grad_()
        batch = torch.randint(len(INPUT), (64,), generator=generator)
        loss = cross_entropy(linear(INPUT[batch], **LAYOUT.views(leaf)), LABELS[batch])
        (gradient,) = torch.autograd.grad(loss, leaf)
        exchange.push(gradient, step, data_points=64)  # accepted, or stale: four others were faster


told: list[str] = []


def tell(event: dict[str, str]) -> None:
    told.append(event["message"])
    print(told[-1], flush=True)


def should_stop(step: int, data_points: int) -> str | None:
    return "100 steps, and one worker less" if step >= 100 and any("worker 4 left" in line for line in told) else None


if __name__ == "__main__":
    learned = run_on_one_machine(
        worker,
        plan=plan_shards(LAYOUT, 2),
        initial_parameters=torch.zeros(LAYOUT.numel),
        optimizer_config=OptimizerConfig(optimizer="adam", learning_rate="0.03"),
        exchange_config=ExchangeConfig(exchange="servers", num_servers=2, num_workers=5, num_backup_workers=1),
        should_stop=should_stop,
        on_event=tell,
    )
    right = linear(INPUT, **LAYOUT.views(learned.parameters)).argmax(1) == LABELS
    print(f"accuracy after {learned.step} steps: {right.float().mean():.3f}")
