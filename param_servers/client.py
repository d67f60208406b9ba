"""A worker's side of the sharded servers.

1. dial every server; when all links are there, ask shard 0 for the newest parameters, which orders all to send them;
2. `pull` waits until every shard has delivered the same version;
3. `push` first looks, without waiting, whether a newer version exists: then the gradient is stale and its bytes are
   saved; else it sends every shard its slice at once and waits for the answer;
4. a link that breaks is dialled again, within a stated time; a slice that may have been lost is sent again under the
   same number, so it counts once.
"""

import random
import time
from collections.abc import Callable

import torch
from torch import Tensor

from param_servers.client_state import ClientState, Push
from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError, PeerLost, Refused, RunBroken, RunStopped
from param_servers.exchange import Pull, Receipt
from param_servers.handshake import Hello, Peer, Role
from param_servers.hub import Event, Hub, Joined, Left, Message
from param_servers.messages import Code, Dtype, Header, Kind
from param_servers.redial import Redial
from param_servers.shard_node import MOST_CONTROL_BYTES, as_bytes
from param_servers.sharding import ShardPlan

_NAP_S, _DIAL_NAP_S = 0.5, 0.05


class ServersExchange:
    """`GradientExchange` over sharded parameter servers. Connects at the first `pull`.

    Args:
        worker: rank of this worker.
        incarnation: how many times this worker has been started again; an older one is turned away.
        plan: layout and cuts, as in the servers; gradients and parameters are [P] in the order of `plan.layout`.
        exchange_config: settings.
        resolve: server number -> (host, port) or None while unknown; asked again before every attempt.
        secret: the run's secret.
    """

    def __init__(
        self,
        *,
        worker: int,
        plan: ShardPlan,
        exchange_config: ExchangeConfig,
        resolve: Callable[[int], tuple[str, int] | None],
        secret: bytes,
        incarnation: int = 0,
    ) -> None:
        self._worker, self._incarnation, self._plan, self._resolve = worker, incarnation, plan, resolve
        exchange = exchange_config
        self._state = ClientState(plan, exchange.exchange == "async")
        self._hub = Hub(secret, self._receive_into, silence_timeout_s=max(exchange.step_timeout_s, 1.0))
        self._join_timeout_s = exchange.join_timeout_s
        self._answer_timeout_s = max(exchange.join_timeout_s, 2 * exchange.step_timeout_s)
        seed = random.Random(f"{worker}:{incarnation}").getrandbits(32)
        self._servers = [Peer(Role.SERVER, shard) for shard in range(plan.num_shards)]
        self._redials = [Redial(exchange.join_timeout_s, seed + shard) for shard in range(plan.num_shards)]
        self._reconnect_timeout_s = exchange.reconnect_timeout_s
        self._dialling: set[int] = set()
        self._must_ask = True
        self._stopped: tuple[str, bool] | None = None
        self._closed = False

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._hub.bytes_moved

    def pull(self) -> Pull:
        """The newest committed parameters, [P] float32; see `GradientExchange.pull`."""
        self._turn(0.0)
        heard_s = time.monotonic()
        while (pull := self._state.take()) is None:
            heard_s = self._wait(heard_s, f"parameters newer than step {self._state.current_version[1]}")
        return pull

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """Offer a gradient [P] float32; see `GradientExchange.push`."""
        if gradient.dtype != torch.float32 or not gradient.is_contiguous():
            raise ConfigError(f"a gradient must be contiguous float32, got {gradient.dtype}")
        self._turn(0.0)
        push = self._state.begin_push(gradient, step, data_points)
        if push.receipt is None:
            for shard in range(len(self._servers)):
                self._send_slice(shard, push)
            heard_s = time.monotonic()
            while push.receipt is None:
                heard_s = self._wait(heard_s, f"the answer to the gradient of step {step}")
            if not push.receipt.accepted:
                for server in self._servers:
                    self._hub.cancel(server, Kind.GRADIENT)
        return push.receipt

    def close(self) -> None:
        """Leave the run: the servers see the links close."""
        if not self._closed:
            self._closed = True
            self._hub.drain(1.0)

    # -- the loop ------------------------------------------------------------------------------------------------

    def _wait(self, heard_s: float, what: str) -> float:
        """One turn of a bounded wait; when something was heard, patience starts anew."""
        if self._turn(_NAP_S if all(map(self._hub.connected, self._servers)) else _DIAL_NAP_S):
            return time.monotonic()
        if time.monotonic() - heard_s > self._answer_timeout_s:
            gone = [str(server) for server in self._servers if not self._hub.connected(server)]
            who = ", ".join(gone) if gone else f"all {len(self._servers)} servers, though connected"
            raise PeerLost(f"worker {self._worker} waited {self._answer_timeout_s:g} s for {what}; silent: {who}")
        return heard_s

    def _turn(self, timeout_s: float) -> bool:
        """Dial what is missing, move bytes, take in what was heard; True when there was something."""
        if self._stopped is not None:
            reason, failed = self._stopped
            raise RunBroken(reason) if failed else RunStopped(reason)
        self._dial()
        if self._state.must_ask or self._must_ask:
            self._ask()
        events = self._hub.poll(timeout_s)
        for event in events:
            self._handle(event)
        if self._stopped is not None:
            return self._turn(0.0)
        return bool(events)

    def _dial(self) -> None:
        now_s = time.monotonic()
        for shard, server in enumerate(self._servers):
            redial = self._redials[shard]
            if self._hub.connected(server) or shard in self._dialling:
                continue
            if redial.expired(now_s):
                raise PeerLost(
                    f"worker {self._worker} cannot reach {server} for {redial.timeout_s:g} s: {redial.last_reason}"
                )
            if redial.due(now_s):
                address = self._resolve(shard)
                if address is None:
                    redial.failed("no address known", now_s)
                    continue
                self._dialling.add(shard)
                hello = Hello(
                    Role.WORKER, self._worker, self._incarnation, shard, self._plan.fingerprint, self._state.term
                )
                self._hub.dial(address, hello)

    def _ask(self) -> None:
        """Ask shard 0 for the newest version; it orders all shards to send the same one."""
        if not all(self._hub.connected(server) for server in self._servers):
            return
        used = -1 if self._must_ask else self._state.current_version[1]
        self._must_ask = False
        self._state.asked_for = self._state.newest
        header = Header(Kind.PULL, self._worker, self._incarnation, self._state.current_version[0], used)
        self._hub.send(self._servers[0], header)

    def _send_slice(self, shard: int, push: Push) -> None:
        header = Header(
            Kind.GRADIENT,
            self._worker,
            self._incarnation,
            *push.version,
            push.sequence,
            push.data_points,
            dtype=Dtype.FLOAT32,
        )
        self._hub.send(self._servers[shard], header, as_bytes(push.gradient[self._plan.slice_of(shard)]))

    def _receive_into(self, peer: Peer, header: Header) -> memoryview:
        if header.kind in (Kind.STOP, Kind.EXPELLED) and header.length <= MOST_CONTROL_BYTES:
            return memoryview(bytearray(header.length))
        return as_bytes(self._state.slot(peer.rank, header))

    def _handle(self, event: Event) -> None:
        if isinstance(event, Message):
            self._hear(event.peer.rank, event.header, event.payload)
        elif isinstance(event, Joined):
            shard = event.peer.rank
            self._dialling.discard(shard)
            self._redials[shard].succeeded()
            self._redials[shard].timeout_s = self._reconnect_timeout_s
            self._must_ask = True
            push = self._state.push
            if push is not None and push.receipt is None:
                self._send_slice(shard, push)
        elif isinstance(event, Left):
            shard = event.peer.rank
            self._dialling.discard(shard)
            self._state.lost(shard)
            self._redials[shard].failed(event.reason, time.monotonic())
            if event.refused:
                raise Refused(f"worker {self._worker} was turned away by {event.peer}: {event.reason}")

    def _hear(self, shard: int, header: Header, payload: memoryview) -> None:
        if header.kind == Kind.PARAMETERS:
            self._state.arrived(shard, header)
        elif header.kind in (Kind.STEP, Kind.RECEIPT):
            self._state.heard(header)
        elif header.kind == Kind.STOP:
            self._stopped = (bytes(payload).decode("utf-8", "replace"), header.code == Code.FAILED)
        elif header.kind == Kind.EXPELLED:
            reason = bytes(payload).decode("utf-8", "replace")
            if header.code == Code.FAILED:
                raise Refused(f"worker {self._worker} was turned away by {self._servers[shard]}: {reason}")
            self._redials[shard].last_reason = f"expelled: {reason}"
