"""A worker's exchange over sharded parameter servers.

`pull` waits until every shard has delivered the same version. `push` first looks, without waiting, whether a newer
version exists: then the gradient is stale and its bytes are saved; else every shard is sent its slice at once.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError, PeerLost, RunBroken, RunStopped
from param_servers.exchange import Pull, Receipt
from param_servers.layout import ShardPlan
from param_servers.patience import AwakeClock
from param_servers.servers.client_core import ClientCore
from param_servers.timeouts import GOODBYE_S, NAP_S
from param_servers.wire.handshake import Peer, check_secret, new_incarnation
from param_servers.wire.hub import Hub
from param_servers.wire.links import WAKE_BYTES

_DIAL_NAP_S = 0.05
_ALONE_NAP_S = 0.1
"""Longest wait for one server, in which what another one says is not heard."""


class ServersExchange:
    """`GradientExchange` over sharded parameter servers. Connects at the first `pull`.

    Args:
        worker: rank of this worker.
        incarnation: higher than that of every earlier process that was this worker: an older one is turned away, and so
            is another process with the same. None: by the clock.
        plan: layout and cuts, as in the servers; gradients and parameters are [P] in the order of `plan.layout`.
        exchange_config: settings.
        resolve: server number -> (host, port) or None while unknown; asked again before every attempt. It may raise
            RunStopped or RunBroken to say that nobody is there any more.
        secret: the run's, at least 16 bytes.

    Raises:
        ConfigError: the secret is too short.
    """

    def __init__(
        self,
        *,
        worker: int,
        plan: ShardPlan,
        exchange_config: ExchangeConfig,
        resolve: Callable[[int], tuple[str, int] | None],
        secret: bytes,
        incarnation: int | None = None,
    ) -> None:
        check_secret(secret)
        self._answer_timeout_s = exchange_config.timeouts.answer_s
        self._now_s = AwakeClock(self._answer_timeout_s).now_s
        self._core = core = ClientCore(
            worker=worker,
            plan=plan,
            exchange_config=exchange_config,
            resolve=resolve,
            incarnation=new_incarnation() if incarnation is None else incarnation,
            clock=self._now_s,
        )
        silence_timeout_s = exchange_config.timeouts.silence_s
        self._hub = core.hub = Hub(secret, core.receive_into, silence_timeout_s=silence_timeout_s)
        largest = max(4 * (part.stop - part.start) for part in map(plan.slice_of, range(plan.num_shards)))
        self._waits_for_one = plan.num_shards > 1 and largest <= WAKE_BYTES
        """Whether what the others send meanwhile fits into the kernel's buffers."""
        self._in_vain = False
        """Whether nothing was heard in the last wait."""
        self._closed = False

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._hub.bytes_moved

    def pull(self) -> Pull:
        """The newest committed parameters, [P] float32; see `GradientExchange.pull`."""
        state = self._core.state
        self._turn(0.0)
        heard_s = self._now_s()
        while (pull := state.take()) is None:
            heard_s = self._wait(heard_s, f"parameters newer than step {state.current_version[1]}")
        return pull

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """Offer a gradient [P] float32; see `GradientExchange.push`."""
        if gradient.dtype != torch.float32 or not gradient.is_contiguous():
            raise ConfigError(f"a gradient must be contiguous float32, got {gradient.dtype}")
        self._turn(0.0)
        push = self._core.push(gradient, step, data_points)
        heard_s = self._now_s()
        while push.receipt is None:
            heard_s = self._wait(heard_s, f"the answer to the gradient of step {step}")
        if not push.receipt.accepted:
            self._core.give_up(push)
        return push.receipt

    def close(self) -> None:
        """Leave the run: the servers see the links close."""
        if not self._closed:
            self._closed = True
            self._hub.drain(GOODBYE_S)

    def _wait(self, heard_s: float, what: str) -> float:
        """One turn of a bounded wait; when something was heard, patience starts anew."""
        core = self._core
        if not core.connected:
            heard = self._turn(_DIAL_NAP_S)
        elif self._waits_for_one and not self._in_vain:  # being woken for each server costs more than its frame
            heard = self._turn(_ALONE_NAP_S, core.servers[core.state.laggard])
        else:
            heard = self._turn(NAP_S)
        self._in_vain = not heard
        if heard:
            return self._now_s()
        if self._now_s() - heard_s > self._answer_timeout_s:
            gone = [str(server) for server in core.servers if not self._hub.connected(server)]
            everyone = f"all {len(core.servers)} servers" if len(core.servers) > 1 else "server 0"
            who = ", ".join(gone) if gone else f"{everyone}, though connected"
            raise PeerLost(f"worker {core.worker} waited {self._answer_timeout_s:g} s for {what}; silent: {who}")
        return heard_s

    def _turn(self, timeout_s: float, until: Peer | None = None) -> bool:
        """Say what is to be said, move bytes, take in what was heard; True when there was something. See `Hub.poll`."""
        self._check_stopped()
        self._core.speak()
        events = self._hub.poll(timeout_s, until)
        for event in events:
            self._core.handle(event)
        self._core.advance()
        self._check_stopped()
        return bool(events)

    def _check_stopped(self) -> None:
        if self._core.stopped is not None:
            reason, failed = self._core.stopped
            raise RunBroken(reason) if failed else RunStopped(reason)
