"""How inference and learning share a process: one thread that alternates, or a thread for each.

Both give the learner the same three things: ``publish`` new parameters, ``collect`` complete unrolls, ``close``.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from dba3c.algorithms.agent import FlatNetwork
from dba3c.central.service import InferenceService
from dba3c.central.unrolls import Unroll
from dba3c.metrics.writer import Sections
from param_servers.errors import PeerLost

LAST_TURN_S = 30.0
"""Longest time that the end waits for the service's thread."""
PATIENCE_S = 1.0
"""After this long without a full batch the learner looks whether the run is over."""
_NAP_S = 0.05


class Serving(Protocol):
    """What the learner asks."""

    service: InferenceService

    def publish(self, parameters: Tensor, step: int) -> None:
        """Actions and gradients come from these parameters [P] of version ``step`` from now on."""
        ...

    def collect(self, count: int, sections: Sections) -> list[Unroll]:
        """``count`` complete unrolls, oldest first; [] when there are not so many within ``PATIENCE_S``.

        Raises PeerLost when for too long there were none: it names the actors that are missing.
        """
        ...

    def thread_shares(self) -> dict[str, float]:
        """Shares of a second thread's time since the last call, by their names in the registry; {} without one."""
        ...

    def close(self, reason: str | None) -> None:
        """Tell the actors that the run is over, or (None) let them look for this learner's next life.

        Safe to call twice.
        """
        ...


class ActorWatch:
    """Bounds the waits for a full batch: time that the learner spent elsewhere is no silence of its actors.

    Args:
        expected: ranks of the actors that should be here.
        timeout_s: longest wait for a batch.
    """

    def __init__(self, expected: range, timeout_s: float) -> None:
        self._expected, self._timeout_s = expected, timeout_s
        self._waited_s = 0.0

    def batch(self) -> None:
        """There was one."""
        self._waited_s = 0.0

    def check(self, present: set[int]) -> None:
        """Waited ``PATIENCE_S`` in vain. Raises PeerLost naming the missing when the time is up."""
        self._waited_s += PATIENCE_S
        if self._waited_s <= self._timeout_s:
            return
        missing = [str(actor) for actor in self._expected if actor not in present]
        who = f"actors {', '.join(missing)} are missing" if missing else "all actors are here but silent"
        raise PeerLost(f"no batch of unrolls for {self._timeout_s:.0f} s: {who}")


class SharedThread:
    """The service takes its turns while the learner waits for unrolls. Its policy must be the learner's agent."""

    def __init__(self, service: InferenceService, watch: ActorWatch) -> None:
        self.service, self._watch = service, watch

    def publish(self, parameters: Tensor, step: int) -> None:
        """See ``Serving``."""
        self.service.policy.load(parameters, step)

    def collect(self, count: int, sections: Sections) -> list[Unroll]:
        """See ``Serving``."""
        store, deadline_s = self.service.store, time.monotonic() + PATIENCE_S
        while store.ready < count:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._watch.check(self.service.actors)
                return []
            self.service.turn(left_s, sections)
        self._watch.batch()
        return store.take(count)

    def thread_shares(self) -> dict[str, float]:
        """See ``Serving``. What the service spends is in the sections that ``collect`` was given."""
        return {}

    def close(self, reason: str | None) -> None:
        """See ``Serving``."""
        self.service.close(reason)


class OwnThread:
    """The service runs beside the learner, with a policy of its own.

    Args:
        most_ready: complete unrolls that may wait for the learner; then actors wait too, so that lag stays bounded.
    """

    def __init__(self, service: InferenceService, watch: ActorWatch, network: FlatNetwork, most_ready: int) -> None:
        self.service, self._watch, self._network, self._most_ready = service, watch, network, most_ready
        self.sections = Sections()
        """Where the service's thread spends its time."""
        self._weights: tuple[Tensor, int] | None = None
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="inference", daemon=True)

    def publish(self, parameters: Tensor, step: int) -> None:
        """See ``Serving``."""
        self._network.load(parameters)
        self._weights = (parameters.clone(), step)  # the exchange's own buffer changes with its next pull
        if self._thread.ident is None:
            self._thread.start()

    def collect(self, count: int, sections: Sections) -> list[Unroll]:
        """See ``Serving``."""
        store = self.service.store
        with self._changed, sections("waiting"):
            self._changed.wait_for(lambda: store.ready >= count or self._failure is not None, PATIENCE_S)
        if self._failure is not None:
            raise self._failure
        if store.ready < count:
            self._watch.check(self.service.actors)
            return []
        self._watch.batch()
        taken = store.take(count)
        with self._changed:
            self._changed.notify_all()
        return taken

    def thread_shares(self) -> dict[str, float]:
        """See ``Serving``."""
        spent_s = self.sections.take()
        total_s = sum(spent_s.values())
        return {f"inference_thread_{name}": s / total_s for name, s in spent_s.items()} if total_s else {}

    def close(self, reason: str | None) -> None:
        """See ``Serving``."""
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
        weights, self._weights = self._weights, None
        if weights is not None:
            self.service.policy.load(*weights)
