"""Ranks as threads of the test's process: each has its own torch.distributed group, and torch lets go of the GIL."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from param_servers.allreduce.collective import TorchCollective
from param_servers.config import ExchangeConfig
from tests.param_servers.mode_runs import SECRET, Board
from tests.param_servers.wire.hub_pair import Pair


@pytest.fixture
def board():
    return Board()


@pytest.fixture
def run_ranks():
    """run_ranks(size, body): `body(collective)` on each rank; returns their results, or the exceptions they raised."""

    def run(size, body, timeout_s=60, **options):
        board, together = Board(), threading.Barrier(size)

        def rank_main(rank):
            try:
                timeouts = {"step_timeout_s": 20, "join_timeout_s": 20, **options}
                config = ExchangeConfig(exchange="allreduce", num_workers=size, **timeouts)
                publish = board.publisher(rank)
                collective = TorchCollective.join(rank, config, secret=SECRET, publish=publish, resolve=board.resolve)
                try:
                    return body(collective)
                finally:
                    together.wait(timeout_s)  # rank 0 holds the store: it leaves when all are done
                    collective.close()
            except AssertionError:  # the test's own
                raise
            except Exception as error:
                return error

        with ThreadPoolExecutor(size) as pool:
            return [future.result(timeout_s) for future in [pool.submit(rank_main, rank) for rank in range(size)]]

    return run


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.server.shut()
    pair.worker.shut()
