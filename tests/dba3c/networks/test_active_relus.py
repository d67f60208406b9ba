"""The share of live ReLU units: counted by hand, rarely, and in any network."""

import torch
from torch import nn
from torch.nn import functional

from dba3c.networks.active_relus import ActiveRelus


def test_the_share_of_outputs_above_zero_is_counted_over_all_layers_and_calls() -> None:
    relus = ActiveRelus()
    with relus.watch():
        functional.relu(torch.tensor([-1.0, 0.0, 2.0, 3.0]), inplace=True)  # 2 of 4
        nn.ReLU()(torch.tensor([[1.0, -1.0]]))  # 1 of 2
    functional.relu(torch.ones(100))
    assert relus.take() == {"active_relus": 0.5}
    assert relus.take() == {}


def test_one_step_a_second_is_watched() -> None:
    now_s = [0.0]
    relus, seen = ActiveRelus(every_s=1.0, clock=lambda: now_s[0]), []
    for tick in range(25):
        now_s[0] = tick / 10
        with relus.watch():
            functional.relu(torch.ones(3))
        seen.append(bool(relus.take()))
    assert [tick for tick, watched in enumerate(seen) if watched] == [0, 10, 20]


def test_long_steps_are_watched_for_a_twentieth_of_the_time() -> None:
    now_s, watched = [0.0], 0
    relus = ActiveRelus(every_s=1.0, clock=lambda: now_s[0])
    for _ in range(200):
        with relus.watch():
            functional.relu(torch.ones(3))
            now_s[0] += 2.0
        watched += bool(relus.take())
    assert watched == 10


def test_a_network_without_relus_has_no_such_number_and_gradients_stay_the_same() -> None:
    relus = ActiveRelus()
    weight = torch.tensor([1.0, -2.0], requires_grad=True)
    with relus.watch():
        torch.tanh(weight).sum()
    assert relus.take() == {}
    watched = ActiveRelus()
    with watched.watch():
        loss = (functional.relu(weight) * torch.tensor([3.0, 5.0])).sum()
    loss.backward()
    assert weight.grad is not None and weight.grad.tolist() == [3.0, 0.0]
