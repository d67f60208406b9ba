"""One shard's tensors: its slice of the parameters, its optimizer, and the update. No sockets.

The slice is updated in chunks that stay in the processor's cache while they are summed and stepped; since every
optimizer here works element by element, chunks change nothing in the result.
"""

import math
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

CHUNKS, LEAST_CHUNK, LARGEST_CHUNK, CHUNK_MULTIPLE = 16, 4096, 65536, 64
"""Chunks in a slice where that leaves them between 16 KB (less does not pay) and 256 KB (more leaves the cache)."""
MOMENTS = {
    "exp_avg": "first_moment_norm",
    "momentum_buffer": "first_moment_norm",
    "exp_avg_sq": "second_moment_norm",
    "square_avg": "second_moment_norm",
    "sum": "second_moment_norm",
}
"""torch.optim's names of running means of the gradient, and of its square."""


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
        size = min(LARGEST_CHUNK, max(LEAST_CHUNK, -(-self.numel // CHUNKS)))
        size = -(-size // CHUNK_MULTIPLE) * CHUNK_MULTIPLE
        self.chunks = [slice(start, min(start + size, self.numel)) for start in range(0, self.numel, size)]
        self._optimizers: list[Optimizer] = [build_optimizer(config, self.parameters[chunk]) for chunk in self.chunks]
        self._mean = torch.empty(size)
        self._published: Tensor | None = None
        self.aggregating_s = self.applying_s = 0.0

    def learning_rate(self, data_points: int) -> float:
        """The learning rate of the step that begins with `data_points` committed."""
        return self._schedule(data_points)

    def mean_of_chunk(self, index: int, gradients: list[Tensor]) -> Tensor:
        """Average chunk `index` of `gradients` (each [n]); valid until the next call."""
        start_s = time.perf_counter()
        chunk = self.chunks[index]
        mean = mean_into(self._mean[: chunk.stop - chunk.start], [gradient[chunk] for gradient in gradients])
        self.aggregating_s += time.perf_counter() - start_s
        return mean

    def step_chunk(self, index: int, learning_rate: float) -> None:
        """Step chunk `index` with the mean that was just computed."""
        start_s = time.perf_counter()
        chunk = self.chunks[index]
        apply_gradient(self._optimizers[index], self._mean[: chunk.stop - chunk.start], learning_rate)
        self.applying_s += time.perf_counter() - start_s

    def apply(self, gradients: list[Tensor], learning_rate: float) -> None:
        """One update with the mean of `gradients`, each [n] float32, in the order given."""
        for index in range(len(self.chunks)):
            self.mean_of_chunk(index, gradients)
            self.step_chunk(index, learning_rate)
        self._published = None

    def chunk_state(self, index: int) -> State:
        """A copy of the optimizer's state of one chunk."""
        return {name: tensor.clone() for name, tensor in state_tensors(self._optimizers[index]).items()}

    def restore_chunk(self, index: int, parameters: Tensor, state: State) -> None:
        """Put one chunk of `parameters` [n] and its optimizer state back."""
        self.parameters[self.chunks[index]].copy_(parameters[self.chunks[index]])
        load_state_tensors(self._optimizers[index], state)

    def publish(self, parameters: Tensor) -> None:
        """`parameters` [n] equal the current ones, and nobody will change them."""
        self._published = parameters

    def published(self) -> Tensor:
        """The current parameters [n] in a buffer of their own that no later update touches."""
        if self._published is None:
            self._published = self.parameters.clone()
        return self._published

    def optimizer_state(self) -> State:
        """A copy of the optimizer's state: moments [n], counters []."""
        return merge_states([state_tensors(optimizer) for optimizer in self._optimizers])

    def moment_norms(self) -> dict[str, float]:
        """L2 norms of the optimizer's moments over this shard, by `first_moment_norm` and `second_moment_norm`.

        Empty for a rule that keeps none. Reads the state once: milliseconds for a million parameters.
        """
        squares: dict[str, float] = {}
        for optimizer in self._optimizers:
            for name, tensor in state_tensors(optimizer).items():
                if name in MOMENTS:
                    norm = float(torch.linalg.vector_norm(tensor))
                    squares[MOMENTS[name]] = squares.get(MOMENTS[name], 0.0) + norm**2
        return {name: math.sqrt(square) for name, square in squares.items()}

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


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return tensor.detach().numpy().data.cast("B")


def tensor_of(payload: memoryview) -> Tensor:
    """The tensor whose memory `as_bytes` gave: a received payload brings its own, whatever has arrived since."""
    tensor = getattr(payload.obj, "base", None)
    assert isinstance(tensor, Tensor)
    return tensor
