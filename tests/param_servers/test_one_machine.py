"""A module trained by processes of this machine takes the steps that one process would take."""

import torch

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.one_machine import train_on_one_machine

INPUT = torch.arange(12.0).view(4, 3) / 12


def loss(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    """Worker 0 has the first two samples, worker 1 the others."""
    return model(INPUT[2 * rank : 2 * rank + 2]).square().mean()


def test_a_module_learns_on_one_machine_what_it_learns_in_one_process() -> None:
    torch.manual_seed(1)
    model, alone = (torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)) for _ in "12")
    alone.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        ((loss(alone, 0, 0) + loss(alone, 1, 0)) / 2).backward()
        optimizer.step()
    steps = train_on_one_machine(
        model,
        loss,
        OptimizerConfig(optimizer="sgd", learning_rate="0.5"),
        ExchangeConfig(exchange="servers", num_workers=2, num_servers=2, sharding="greedy_by_tensor"),
        data_points=2,
        should_stop=lambda step, data_points: "enough" if data_points >= 40 else None,
    )
    assert steps == 10
    for mine, reference in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, reference)
