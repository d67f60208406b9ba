import torch

from param_servers.allreduce import collective_torch
from param_servers.allreduce.gpus import NO_GPU, gpu_of, numbered, sum_by_nccl


def test_the_sum_is_by_nccl_only_where_each_rank_has_a_gpu_of_its_own():
    assert sum_by_nccl(["GPU-1", "GPU-2"]) and sum_by_nccl(["GPU-1"])
    assert not sum_by_nccl(["GPU-1", "GPU-2", "GPU-1"])
    assert not sum_by_nccl(["GPU-1", NO_GPU])
    assert gpu_of("cpu") == NO_GPU


def test_a_gpu_without_a_number_is_the_callers_current_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert [numbered(device) for device in ("cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]


def test_ranks_that_share_a_gpu_sum_over_gloo(run_ranks, monkeypatch):
    monkeypatch.setattr(collective_torch, "gpu_of", lambda device: {"cpu": NO_GPU, "cuda": "GPU-1"}[device])

    def body(collective):
        tensor = torch.ones(3)
        collective.all_reduce_sum_(tensor)
        return collective.device.type, tensor.tolist()

    assert run_ranks(2, body, device="cuda") == [("cpu", [2.0] * 3)] * 2
