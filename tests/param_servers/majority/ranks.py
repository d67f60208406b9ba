"""Ranks of a majority, all in this process."""

import threading
import time

from param_servers.config import ExchangeConfig
from param_servers.errors import ParamServersError, RunStopped
from param_servers.majority.exchange import MajorityExchange
from tests.param_servers.allreduce.test_allreduce import CONFIG, INITIAL, LAYOUT, gradient

PATIENCE_S = 30


class Run:
    """Ranks of one run in this process."""

    def __init__(self, board, size, **settings):
        self.board = board
        timeouts = {"step_timeout_s": 8, "join_timeout_s": 20}
        self.config = ExchangeConfig(exchange="majority", num_workers=size, **{**timeouts, **settings})
        self.ranks, self.events = {}, []

    def start(self, *ranks, **options):
        for rank in ranks:
            self.ranks[rank] = MajorityExchange(
                rank=rank,
                layout=LAYOUT,
                initial_parameters=INITIAL,
                optimizer_config=CONFIG,
                exchange_config=self.config,
                secret=b"0123456789abcdef",
                resolve=self.board.resolve,
                publish_address=self.board.publisher(rank),
                on_event=self.events.append,
                **options,
            )
        return self

    def push(self, rank, step=None):
        pulled = self.ranks[rank].pull()
        step = pulled.step if step is None else step
        return self.ranks[rank].push(gradient(rank, step), step, 10)

    def together(self, ranks, steps=1):
        """Each of `ranks` in a thread of its own: `steps` pushes; returns their receipts or the error."""
        results = {}

        def body(rank):
            try:
                results[rank] = [self.push(rank) for _ in range(steps)]
            except (ParamServersError, RunStopped) as error:
                results[rank] = error

        threads = [threading.Thread(target=body, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a rank hangs"
        return results

    def newest(self, rank, step):
        """What `rank` pulls when its comm thread has applied the update that leads to `step`."""
        deadline = time.monotonic() + PATIENCE_S
        while (pulled := self.ranks[rank].pull()).step < step:
            assert time.monotonic() < deadline, f"rank {rank} stays at step {pulled.step}"
        return pulled

    def die(self, rank):
        """As if killed: its connections close, nothing is said."""
        exchange = self.ranks.pop(rank)
        exchange._closing = True
        exchange._hub.drain = lambda timeout_s, tell=None: exchange._hub.shut()
        exchange.replica.finish = lambda: ""
        exchange.close()

    def close(self):
        for rank in sorted(self.ranks, reverse=True):
            self.ranks[rank].close()
