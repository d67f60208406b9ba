"""scikit-learn's digits: 2 servers, 4 workers + 1 backup, one is killed. python -m param_servers.examples.digits"""

import os
import signal

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from param_servers import ExchangeConfig, OptimizerConfig, train_on_one_machine

IMAGES, LABELS = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
INPUT = IMAGES.float() / 16  # [1797, 64]
told: list[str] = []


def loss(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    if rank == 4 and step >= 20:
        os.kill(os.getpid(), signal.SIGKILL)  # nobody is told
    batch = torch.randint(len(INPUT), (64,))
    return cross_entropy(model(INPUT[batch]), LABELS[batch])


def tell(event: dict[str, str]) -> None:
    told.append(event["message"])
    print(told[-1], flush=True)


def enough(step: int, data_points: int) -> str | None:
    return "100 steps, and one worker less" if step >= 100 and any("worker 4 left" in line for line in told) else None


if __name__ == "__main__":
    model = torch.nn.Linear(64, 10)
    optimizer = OptimizerConfig(optimizer="adam", learning_rate="0.03")
    exchange = ExchangeConfig(exchange="servers", num_servers=2, num_workers=5, num_backup_workers=1)
    steps = train_on_one_machine(model, loss, optimizer, exchange, data_points=64, should_stop=enough, on_event=tell)
    print(f"accuracy after {steps} steps: {(model(INPUT).argmax(1) == LABELS).float().mean():.3f}")
