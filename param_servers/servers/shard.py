"""One shard's tensors: its slice of the parameters, its optimizer, and the update. No sockets.

The slice is updated in parts: no more at once than stays in the processor's cache, and as little as has arrived. Since
every optimizer here works element by element, parts change nothing in the result.
"""

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from param_servers.config import OptimizerConfig
from param_servers.errors import CheckpointError
from param_servers.optim import SliceOptimizer, State
from param_servers.servers.accumulator import Elements, mean_into

LARGEST_PART, PART_MULTIPLE = 65536, 64
"""Elements: 256 KB stay in the cache; a multiple, so that vector instructions do the same everywhere."""
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
        self._optimizer = SliceOptimizer(config, self.parameters)
        self._kept: State = {}
        """The optimizer's state as it was when `keep` was called."""
        self._mean = torch.empty(min(self.numel, LARGEST_PART))
        self._published: Tensor | None = None
        self._measured_from: Tensor | None = None
        self.update_norm: float | None = None
        """L2 norm of the change that the measured update made; None until it is committed."""
        self.aggregating_s = self.applying_s = 0.0

    def learning_rate(self, data_points: int) -> float:
        """The learning rate of the step that begins with `data_points` committed."""
        return self._schedule(data_points)

    def parts(self, start: int, stop: int) -> Iterator[slice]:
        """[start, stop) in pieces of at most `LARGEST_PART`."""
        for begin in range(start, stop, LARGEST_PART):
            yield slice(begin, min(begin + LARGEST_PART, stop))

    def update_part(self, part: slice, gradients: Sequence[Elements], learning_rate: float) -> None:
        """Average a part of `gradients` (each [n]) and step with it; an update is all parts in order."""
        start_s = time.perf_counter()
        parts = [gradient[part] for gradient in gradients]
        mean = torch.from_numpy(parts[0]) if len(parts) == 1 else self._mean[: part.stop - part.start]
        if len(parts) > 1:
            mean_into(mean.numpy(), parts)
        averaged_s = time.perf_counter()
        self._optimizer.step(part, mean, learning_rate)
        self.aggregating_s += averaged_s - start_s
        self.applying_s += time.perf_counter() - averaged_s

    def apply(self, gradients: list[Tensor], learning_rate: float) -> None:
        """One update with the mean of `gradients`, each [n] float32, in the order given."""
        elements = [gradient.numpy() for gradient in gradients]
        for part in self.parts(0, self.numel):
            self.update_part(part, elements, learning_rate)
        self._published = None
        self.committed()

    def measure_next_update(self) -> None:
        """Let `update_norm` be that of the next committed update: one copy now and one pass then, no other costs."""
        self._measured_from, self.update_norm = self.parameters.clone(), None

    def committed(self) -> None:
        """An update is whole and stays: to be called by who steps parts; `apply` does."""
        if self._measured_from is not None:
            self.update_norm = torch.dist(self.parameters, self._measured_from).item()
            self._measured_from = None

    def keep(self) -> None:
        """Be ready to `go_back` to the version that is published now."""
        self.published()
        for name, tensor in self._optimizer.state.items():
            self._kept.setdefault(name, torch.empty_like(tensor)).copy_(tensor)

    def go_back(self) -> None:
        """Undo every step of a part since `keep`."""
        self.parameters.copy_(self.published())
        self._optimizer.load(self._kept)

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
        return {name: tensor.clone() for name, tensor in self._optimizer.state.items()}

    def moment_norms(self) -> dict[str, float]:
        """L2 norms of the optimizer's moments over this shard, by `first_moment_norm` and `second_moment_norm`.

        Empty for a rule that keeps none. Reads the state once: milliseconds for a million parameters.
        """
        state = self._optimizer.state
        return {MOMENTS[name]: float(torch.linalg.vector_norm(state[name])) for name in state if name in MOMENTS}

    def load(self, parameters: Tensor, state: State | None) -> None:
        """Go back to saved parameters [n] and optimizer state; None: a fresh optimizer.

        Raises:
            CheckpointError: another length.
        """
        if parameters.numel() != self.numel:
            raise CheckpointError(f"a slice of {parameters.numel()} elements cannot be loaded into {self.numel}")
        self.parameters.copy_(parameters)
        self._published = None
        if self._measured_from is not None:
            self._measured_from.copy_(parameters)  # going back is no update
        if state is None:
            for tensor in self._optimizer.state.values():
                tensor.zero_()
        else:
            self._optimizer.load(state)
