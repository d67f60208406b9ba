"""A worker's exchange over sharded parameter servers.

1. dial every server; when all links are there, ask shard 0 for the newest parameters: it orders all to send them;
2. `pull` waits until every shard has delivered the same version;
3. `push` first looks, without waiting, whether a newer version exists: then the gradient is stale and its bytes are
   saved; else every shard is sent its slice at once; the answer comes by name, or as a newer version;
4. a link that breaks is dialled again, within a stated time; a slice that may have been lost is sent again under
   the same number, so it counts once. So is one that stays silent behind the others' term: a server that hangs keeps
   its link, and another may have its place.
"""

import contextlib
import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError, ParamServersError, PeerLost, Refused, RunBroken, RunStopped
from param_servers.exchange import Pull, Receipt, Resolve, check_rejected, whole
from param_servers.layout import ShardPlan, as_bytes
from param_servers.servers.client_state import ClientState, Push
from param_servers.timeouts import GOODBYE_S, NAP_S, AwakeClock, Redial
from param_servers.wire.even_push import EvenPush
from param_servers.wire.frames import Event, Frame, Joined, Left, Message
from param_servers.wire.handshake import Hello, Peer, Role, check_secret, incarnation_or_new, new_process_token
from param_servers.wire.hub import Hub
from param_servers.wire.messages import MOST_RANK, Code, Header, Kind, check_data_points, control_payload, text_of
from param_servers.wire.tcp_sockets import LOOPBACK

_DIAL_NAP_S = 0.05


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
        hub, clock: others than TCP and time: a simulation has its own, and calls neither `pull` nor what waits as it.

    Raises:
        ConfigError: the secret is too short, or `worker` or `incarnation` is no whole number of 32 bits.
    """

    def __init__(
        self,
        *,
        worker: int,
        plan: ShardPlan,
        exchange_config: ExchangeConfig,
        resolve: Resolve,
        secret: bytes,
        incarnation: int | None = None,
        hub: Hub | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._timeouts = timeouts = exchange_config.timeouts
        self.worker = whole(worker, "worker")
        if self.worker > MOST_RANK:
            raise ConfigError(f"worker must be a rank of at most {MOST_RANK}, got {worker}")
        self.incarnation = incarnation_or_new(incarnation)
        self.state = ClientState(plan, exchange_config.exchange == "async")
        self.servers = [Peer(Role.SERVER, shard) for shard in range(plan.num_shards)]
        self.stopped: tuple[str, bool] | None = None
        """(reason, failed) once the servers said STOP."""
        self._process_token = new_process_token()
        self._plan, self._resolve, self._asynchronous = plan, resolve, exchange_config.exchange == "async"
        self._now_s = clock or AwakeClock(timeouts.answer_s).now_s
        check_secret(secret)
        self._new_hub: Callable[[], Hub] = lambda: Hub(secret, self.receive_into, silence_timeout_s=timeouts.silence_s)
        self._hub = hub or self._new_hub()
        self._pace = EvenPush(self._hub)
        self._distant = False
        """Whether a server is on another host, so that the pace of its link is the network's."""
        seed = random.Random(f"{worker}:{self.incarnation}").getrandbits(32)
        self._redials = [
            Redial(timeouts.other_start_s if shard else timeouts.start_s, seed + shard)
            for shard in range(plan.num_shards)
        ]
        self._linked: set[int] = set()
        self._heard = [(0, 0.0)] * plan.num_shards
        """Of each link its newest term, and when it said something last."""
        self._listens_for, self._listens_since_s = 0, 0.0
        """The newest term, and since when a call waits to hear of it: no silence is older."""
        self._must_ask = True
        self._closed = False
        self._rejected_in_a_row = 0

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Sent and received over all links, since an interrupt (Ctrl-C) let them begin anew if there was one."""
        return self._hub.bytes_moved

    def pull(self) -> Pull:
        """The newest committed parameters, [P] float32; see `GradientExchange.pull`."""
        with self._or_start_over():
            self._turn(0.0)
            heard_s = self._now_s()
            while (pull := self.state.take()) is None:
                heard_s = self._wait(heard_s, f"parameters newer than step {self.state.current_version[1]}")
            return pull

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """Offer a gradient [P] float32; see `GradientExchange.push`."""
        if gradient.dtype != torch.float32 or gradient.device.type != "cpu" or not gradient.is_contiguous():
            got = f"{gradient.dtype} on {gradient.device}{'' if gradient.is_contiguous() else ', not contiguous'}"
            raise ConfigError(f"a gradient must be contiguous float32 on the CPU, got {got}")
        data_points = whole(data_points)
        check_data_points(data_points)  # servers close the link of whoever says more, each time it is sent again
        with self._or_start_over():
            self._turn(0.0)
            heard_s = self._now_s()
            while self.state.open_push:  # another one's place on the shards, and shard 0 may be about to commit it
                heard_s = self._wait(heard_s, "the answer to a push that was interrupted")
            push = self.begin_push(gradient, step, data_points)
            while push.receipt is None:
                try:
                    heard_s = self._wait(heard_s, f"the answer to the gradient of step {step}")
                except (RunStopped, RunBroken):
                    if push.receipt is None:
                        raise  # else the end came with the answer, and the next call tells of it
            if not push.receipt.accepted:
                self.give_up_push()
            self._check_finite(push.receipt)
            return push.receipt

    def _check_finite(self, receipt: Receipt) -> None:
        """This worker alone may have diverged: it ends, and the others need not."""
        if receipt.reason == "non-finite":
            self._rejected_in_a_row += 1
            check_rejected(self._rejected_in_a_row, receipt.step, ParamServersError)
        elif receipt.accepted:
            self._rejected_in_a_row = 0

    @contextlib.contextmanager
    def _or_start_over(self) -> Iterator[None]:
        """Ctrl-C comes between a system call and its count, too: then nobody knows where the streams are, and all links
        begin anew. A push that may count is sent again under its number, as it was: the caller may write into its own.
        """
        self._listens_since_s = self._now_s()
        try:
            yield
        except (ParamServersError, RunStopped):
            raise
        except BaseException:
            self._linked.clear()
            for shard, redial in enumerate(self._redials):
                self.state.lost(shard)
                redial.begin_anew()  # not by the time until the next call, which may be a notebook's next cell
            self._hub.shut()
            self._hub = self._new_hub()
            self._pace = EvenPush(self._hub)
            if push := self.state.open_push:
                push.gradient = push.gradient.clone()
            raise

    def close(self) -> None:
        """Leave the run: the servers see the links close."""
        if not self._closed:
            self._closed = True
            self._hub.drain(GOODBYE_S)

    def _wait(self, heard_s: float, what: str) -> float:
        """One turn of a bounded wait; when something was heard, patience starts anew."""
        heard_any = self._turn(NAP_S if self.connected else _DIAL_NAP_S)
        self._leave_who_hangs(self._now_s())
        if heard_any:
            return self._now_s()
        if self._now_s() - heard_s > self._timeouts.answer_s:
            gone = [str(server) for server in self.servers if not self._hub.connected(server)]
            everyone = f"all {len(self.servers)} servers" if len(self.servers) > 1 else "server 0"
            who = ", ".join(gone) if gone else f"{everyone}, though connected"
            raise PeerLost(f"worker {self.worker} waited {self._timeouts.answer_s:g} s for {what}; silent: {who}")
        return heard_s

    def _leave_who_hangs(self, now_s: float) -> None:
        newest = self.state.newest[0]
        if newest > self._listens_for:
            self._listens_for, self._listens_since_s = newest, now_s
        for shard in [*self._linked]:
            term, heard_s = self._heard[shard]
            if term < newest and now_s - max(heard_s, self._listens_since_s) > self._timeouts.silence_s:
                self._hub.close(self.servers[shard])
                self.handle(Left(self.servers[shard], f"it is silent in term {term}, and others are in a newer one"))

    def _turn(self, timeout_s: float) -> bool:
        """Say what is to be said, move bytes, take in what was heard; True when there was something."""
        self._check_stopped()
        self.speak()
        events = self._hub.poll(timeout_s)
        for event in events:
            self.handle(event)
        self.advance()
        self._check_stopped()
        return bool(events)

    def _check_stopped(self) -> None:
        if self.stopped is not None:
            reason, failed = self.stopped
            raise RunBroken(reason) if failed else RunStopped(reason)
        if self._closed:  # a link that began anew would have nobody to close it
            raise ParamServersError("this exchange was closed")

    # -- without waiting ------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return len(self._linked) == len(self.servers)

    def speak(self) -> None:
        """Dial what is missing, ask for what nobody is sending.

        Raises:
            PeerLost: a server could not be reached for too long.
        """
        if not self.connected:
            now_s = self._now_s()
            for shard, server in enumerate(self.servers):
                if shard not in self._linked:
                    self._dial(shard, server, now_s)
        elif self._must_ask or self.state.must_ask:
            self._ask()

    def _dial(self, shard: int, server: Peer, now_s: float) -> None:
        what = f"worker {self.worker} cannot reach {server}"
        address = self._redials[shard].attempt(lambda: self._resolve(shard), now_s, what)
        if address is None:
            return
        self._distant = self._distant or not address[0].startswith(LOOPBACK)
        fingerprint, seen_term = self._plan.fingerprint_of(self._asynchronous), self.state.newest[0]
        hello = Hello(Role.WORKER, self.worker, self.incarnation, shard, fingerprint, seen_term, self._process_token)
        self._hub.dial(address, hello)

    def _ask(self) -> None:
        """Ask shard 0 for the newest version; it orders all shards to send the same one."""
        term, step = self.state.current_version
        used = -1 if self._must_ask else step
        self._must_ask = False
        self.state.asked_for = self.state.newest
        self._hub.send(self.servers[0], Header(Kind.PULL, self.worker, self.incarnation, term, used))

    def begin_push(self, gradient: Tensor, step: int, data_points: int) -> Push:
        """Its `receipt` is set at once or by later events."""
        push = self.state.begin_push(gradient, step, data_points)
        if push.receipt is None:
            count = len(self.servers)
            for turn in range(count):  # each worker begins with another: one link cannot take all of them at once
                self._send_slice((self.worker + turn) % count, push)
            self._pace.advance()
        return push

    def advance(self) -> None:
        """Let a push go on; to be called after each poll."""
        if self.state.open_push:
            self._pace.advance()
        else:
            self._pace.finish()

    def give_up_push(self) -> None:
        """A rejected or stale push: do not send what has not begun."""
        self._pace.finish()
        for server in self.servers:
            self._hub.cancel(server, Kind.GRADIENT)

    def _send_slice(self, shard: int, push: Push) -> None:
        sender, what = (self.worker, self.incarnation), (*push.version, push.sequence, push.data_points)
        header = Header(Kind.GRADIENT, *sender, *what)
        server, payload = self.servers[shard], as_bytes(push.gradient[self._plan.slice_of(shard)])
        if not (self._distant and len(payload) and self._pace.begin(server, Frame(header, payload, available=0))):
            self._hub.send(server, header, payload)

    def receive_into(self, peer: Peer, header: Header) -> memoryview:
        if header.kind in (Kind.STOP, Kind.EXPELLED):
            return control_payload(header, (Kind.STOP, Kind.EXPELLED))
        return as_bytes(self.state.slot(peer.rank, header))

    def handle(self, event: Event) -> None:
        """Take in one event of the hub.

        Raises:
            Refused: a server turned this worker away for good.
        """
        if isinstance(event, Message):
            self._hear(event.peer.rank, event.header, event.payload)
        elif isinstance(event, Joined):
            self._joined(event.peer.rank)
        elif isinstance(event, Left):
            shard = event.peer.rank
            self._linked.discard(shard)
            self._pace.lost(event.peer)
            self.state.lost(shard)
            self._redials[shard].failed(event.reason, self._now_s())
            if event.refused:
                raise Refused(f"worker {self.worker} was turned away by {event.peer}: {event.reason}")

    def _joined(self, shard: int) -> None:
        self._linked.add(shard)
        self._heard[shard] = self.state.newest[0], self._now_s()
        self._redials[shard].succeeded(self._timeouts.return_s)
        self._must_ask = True
        if push := self.state.open_push:
            self._send_slice(shard, push)

    def _hear(self, shard: int, header: Header, payload: memoryview) -> None:
        self._heard[shard] = max(self._heard[shard][0], header.term), self._now_s()
        if header.kind == Kind.PARAMETERS:
            self.state.arrived(shard, header)
        elif header.kind in (Kind.SEALED, Kind.ABORTED):
            self.state.decided(shard, header)
        elif header.kind in (Kind.STEP, Kind.RECEIPT):
            self.state.heard(header)
        elif header.kind == Kind.STOP:
            self.stopped = (text_of(payload), header.code == Code.FAILED)
        elif header.kind == Kind.EXPELLED and header.code == Code.FAILED:  # else the link closes, and is dialled again
            raise Refused(f"worker {self.worker} was turned away by {self.servers[shard]}: {text_of(payload)}")
