"""How inference and learning share a process: a thread of its own, with its own copy of the network, answers the actors
while the learner's computes gradients."""

import threading
from collections import defaultdict, deque
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dba3c.algorithms.agent import FlatNetwork
from dba3c.central.service import InferenceService
from dba3c.central.unrolls import GroupUnroll
from dba3c.metrics.registry import INFERENCE_THREAD_SECTIONS
from dba3c.metrics.writer import Sections
from param_servers.errors import PeerLost

LAST_TURN_S = 30.0
"""Longest time that the end waits for the service's thread."""
SHARES_EVERY_S = 1.0
"""Of the service's thread's time."""
PATIENCE_S = 1.0
"""After this long without a full batch the learner looks whether the run is over."""
_NAP_S = 0.05


class Serving:
    """What the learner asks of it: ``publish`` new parameters, ``collect`` complete unrolls, ``close``.

    Args:
        service: answers the actors.
        expected: ranks of the actors that should be here.
        timeout_s: longest wait for unrolls to grow: time that the learner spent elsewhere is no silence of its actors.
        network: the learner's.
        most_ready: complete unrolls that may wait for the learner; then actors wait too, so that lag stays bounded.
    """

    def __init__(
        self, service: InferenceService, expected: range, timeout_s: float, network: FlatNetwork, most_ready: int
    ) -> None:
        self.service, self._expected, self._timeout_s = service, expected, timeout_s
        self._network, self._most_ready = network, most_ready
        self._waited_s, self._most_steps = 0.0, 0
        """Since there have been so many steps of unrolls, the most since the last batch."""
        self.sections = Sections()
        """Where the service's thread spends its time."""
        self._spent_s: dict[str, float] = defaultdict(float)
        """Of that, what `thread_shares` has not told yet."""
        self._weights: deque[tuple[Tensor, int]] = deque(maxlen=1)
        """The newest that the service's thread has not taken; for both threads one operation at a time."""
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="inference", daemon=True)

    def publish(self, parameters: Tensor, step: int) -> None:
        """Actions and gradients come from these parameters [P] of version ``step`` from now on."""
        self._network.load(parameters)
        self._weights.append((parameters.clone(), step))  # the exchange's own buffer changes with its next pull
        if self._thread.ident is None:
            self._thread.start()

    def collect(self, count: int, sections: Sections) -> list[GroupUnroll]:
        """``count`` complete unrolls, oldest first; [] when there are not so many within ``PATIENCE_S``.

        Raises PeerLost when for too long they have not grown: it names the actors that are missing. What a lost actor
        had begun must be made good first: of those that are lost again and again no batch would ever be full. Raises
        what broke in the service's thread.
        """
        self._wait_for(count, sections)
        if self.service.store.ready >= count:
            self._waited_s, self._most_steps = 0.0, 0
            taken = self.service.store.take(count)
            with self._changed:
                self._changed.notify_all()
            return taken
        if (steps := self.service.store.steps) > self._most_steps:
            self._waited_s, self._most_steps = 0.0, steps
            return []
        self._waited_s += PATIENCE_S
        if self._waited_s <= self._timeout_s:
            return []
        missing = [str(actor) for actor in self._expected if actor not in self.service.actors]
        here = "all actors are here, but silent or lost again and again"
        who = f"actors {', '.join(missing)} are missing" if missing else here
        raise PeerLost(f"no unroll has grown for {self._timeout_s:.0f} s: {who}")

    def _wait_for(self, count: int, sections: Sections) -> None:
        """Until there are ``count`` complete unrolls, but no longer than ``PATIENCE_S``."""
        store = self.service.store
        with self._changed, sections("waiting"):
            self._changed.wait_for(lambda: store.ready >= count or self._failure is not None, PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    def thread_shares(self) -> dict[str, float]:
        """Shares of the service's thread's time since they were told last, by their names in the registry; {} before
        `SHARES_EVERY_S` of it have passed: a mean of those of single gradients would weigh a short one as a long one.
        """
        for name, spent_s in self.sections.take().items():
            self._spent_s[name] += spent_s
        total_s = sum(self._spent_s.values())
        if total_s < SHARES_EVERY_S:
            return {}
        spent, self._spent_s = self._spent_s, defaultdict(float)
        return {f"inference_thread_{name}": spent[name] / total_s for name in INFERENCE_THREAD_SECTIONS}

    def close(self, reason: str | None) -> None:
        """Tell the actors that the run is over, or (None) let them look for this learner's next life.

        Safe to call twice.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(LAST_TURN_S)
        if not self._thread.is_alive():  # a hung call (a GPU's) is left behind; the end of the process closes the links
            self.service.close(reason)

    def _serve(self) -> None:
        try:
            with self._own_stream():
                self._serve_until_told()
        except BaseException as error:  # handed to the learner, whose thread ends the run
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _own_stream(self) -> AbstractContextManager[object]:
        """On a GPU, inference does not queue behind learning."""
        cuda = self._network.device.type == "cuda"
        return torch.cuda.stream(torch.cuda.Stream(self._network.device)) if cuda else nullcontext()

    def _serve_until_told(self) -> None:
        while not self._closed:
            self._take_weights()
            ready = self.service.store.ready
            if ready < self._most_ready:
                self.service.turn(_NAP_S, self.sections)
                if self.service.store.ready == ready:
                    continue
            with self._changed:
                self._changed.notify_all()
                if self.service.store.ready >= self._most_ready and not self._closed:
                    with self.sections("holding"):
                        self._changed.wait(_NAP_S)

    def _take_weights(self) -> None:
        if self._weights:
            self.service.policy.load(*self._weights.pop())
