"""One shard's tensors: its slice of the parameters, its optimizer, and the update. No sockets.

The slice is updated in chunks that stay in the processor's cache while they are summed and stepped; since every
optimizer here works element by element, chunks change nothing in the result.
"""

import time

import torch
from torch import Tensor
from torch.optim import Optimizer

from param_servers.accumulator import mean_into
from param_servers.config import OptimizerConfig
from param_servers.errors import SnapshotError
from param_servers.optimizers import (
    State,
    apply_gradient,
    build_optimizer,
    load_state_tensors,
    merge_states,
    slice_state,
    state_tensors,
)

_CHUNKS, _LEAST_CHUNK, _LARGEST_CHUNK = 16, 4096, 65536


class Shard:
    """Parameters [n] float32 of one shard and their optimizer.

    Args:
        parameters: [n] float32, copied.
        config: the update rule and its learning rate over data points.
    """

    def __init__(self, parameters: Tensor, config: OptimizerConfig) -> None:
        self.config = config
        self._schedule = config.schedule
        self.parameters = parameters.detach().to(torch.float32).clone().contiguous()
        self.numel = self.parameters.numel()
        size = min(_LARGEST_CHUNK, max(_LEAST_CHUNK, -(-self.numel // _CHUNKS)))
        size = -(-size // 64) * 64
        self.chunks = [slice(start, min(start + size, self.numel)) for start in range(0, self.numel, size)]
        self._optimizers: list[Optimizer] = [build_optimizer(config, self.parameters[chunk]) for chunk in self.chunks]
        self._mean = torch.empty(size)
        self._published: Tensor | None = None
        self.aggregating_s = self.applying_s = 0.0

    def learning_rate(self, data_points: int) -> float:
        """The learning rate of the step that begins with `data_points` committed."""
        return self._schedule(data_points)

    def apply_chunk(self, index: int, gradients: list[Tensor], learning_rate: float) -> None:
        """Average chunk `index` of `gradients` (each [n]) and step the optimizer on it."""
        chunk = self.chunks[index]
        start_s = time.perf_counter()
        mean = mean_into(self._mean[: chunk.stop - chunk.start], [gradient[chunk] for gradient in gradients])
        summed_s = time.perf_counter()
        apply_gradient(self._optimizers[index], mean, learning_rate)
        self.aggregating_s += summed_s - start_s
        self.applying_s += time.perf_counter() - summed_s

    def apply(self, gradients: list[Tensor], learning_rate: float) -> None:
        """One update with the mean of `gradients`, each [n] float32, in the order given."""
        for index in range(len(self.chunks)):
            self.apply_chunk(index, gradients, learning_rate)
        self._published = None

    def published(self) -> Tensor:
        """The current parameters [n] in a buffer of their own that no later update touches."""
        if self._published is None:
            self._published = self.parameters.clone()
        return self._published

    def optimizer_state(self) -> State:
        """A copy of the optimizer's state: moments [n], counters []."""
        return merge_states([state_tensors(optimizer) for optimizer in self._optimizers])

    def load(self, parameters: Tensor, state: State | None) -> None:
        """Go back to saved parameters [n] and optimizer state; None: a fresh optimizer.

        Raises:
            SnapshotError: another length.
        """
        if parameters.numel() != self.numel:
            raise SnapshotError(f"a slice of {parameters.numel()} elements cannot be loaded into {self.numel}")
        self.parameters.copy_(parameters)
        self._published = None
        for chunk, optimizer in zip(self.chunks, self._optimizers, strict=True):
            if state is None:
                for tensor in state_tensors(optimizer).values():
                    tensor.zero_()
            else:
                load_state_tensors(optimizer, slice_state(state, chunk))
