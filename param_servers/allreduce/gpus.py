"""Whether the ranks of an all-reduce can sum on their GPUs, by NCCL. None of this was ever run on a GPU."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

NO_GPU = "none"


def numbered(device: str) -> str:
    """`device` with its number: "cuda" is the calling thread's current GPU, and another one's in another thread."""
    if device == "cuda" and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return device


def gpu_of(device: str) -> str:
    """What names the GPU of `device` ("cuda", "cuda:1") in the world; NO_GPU for "cpu", and where NCCL is missing."""
    if not device.startswith("cuda") or not torch.cuda.is_available() or not dist.is_nccl_available():
        return NO_GPU
    return str(torch.cuda.get_device_properties(torch.device(device)).uuid)


def sum_by_nccl(gpus: Sequence[str]) -> bool:
    """Whether NCCL can carry the sum of ranks with these GPUs: each needs one of its own. Else Gloo does, on CPUs."""
    return NO_GPU not in gpus and len(set(gpus)) == len(gpus)
