"""One link alone, this library's beside a bare two-rank Gloo link: M bytes there, M bytes back, nothing computed.

    python -m param_servers.benchmarks.link --megabytes 1.33 6.7          (loopback)

The two take turns, so that what else the machine does hits both. One JSON object a line: medians over all repeats.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from param_servers.layout import as_bytes
from param_servers.wire.frames import Message
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Dtype, Header, Kind

WARM_UP_STEPS = 3
PATIENCE = timedelta(seconds=120)
GRADIENT = Header(Kind.GRADIENT, dtype=Dtype.FLOAT32)


def over_gloo(rank: int, folder: str, numel: int, steps: int) -> list[float]:
    """Seconds of each round trip as rank 0 sees them."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=PATIENCE)
    tensor, times_s = torch.ones(numel), []
    for _ in range(steps):
        began_s = time.perf_counter()
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
        times_s.append(time.perf_counter() - began_s)
    dist.destroy_process_group()
    return times_s


def over_hub(rank: int, folder: str, numel: int, steps: int) -> list[float]:
    """Seconds of each round trip as the worker (rank 0) sees them."""
    tensor, times_s = torch.ones(numel), []
    place = Path(folder) / "port"
    hub = Hub(bytes(32), lambda peer, header: as_bytes(tensor))
    peer = Peer(Role.WORKER, 0) if rank else Peer(Role.SERVER, 0)
    if rank:
        place.with_suffix(".tmp").write_text(str(hub.listen("127.0.0.1")[1]))
        place.with_suffix(".tmp").rename(place)
    else:
        while not place.exists():
            time.sleep(0.01)
        hub.dial(("127.0.0.1", int(place.read_text())), Hello(Role.WORKER, 0, 0, 0, ""))
    while not hub.connected(peer):
        hub.poll(0.1)
    for _ in range(steps):
        began_s = time.perf_counter()
        if rank == 0:
            hub.send(peer, GRADIENT, as_bytes(tensor))
        while not any(isinstance(event, Message) for event in hub.poll(1.0)):
            pass
        if rank:
            hub.send(peer, GRADIENT, as_bytes(tensor))
        times_s.append(time.perf_counter() - began_s)
    hub.drain(5.0)
    return times_s


def _play(kind: str, rank: int, folder: str, numel: int, steps: int) -> list[float]:
    torch.set_num_threads(1)
    play = over_gloo if kind == "gloo" else over_hub
    return play(rank, folder, numel, WARM_UP_STEPS + steps)[WARM_UP_STEPS:]


def measure(megabytes: float, steps: int, repeats: int) -> dict[str, Any]:
    """Median round trips of both."""
    numel = int(megabytes * 1e6 / 4)
    found: dict[str, list[float]] = {"hub": [], "gloo": []}
    for kind in list(found) * repeats:
        with TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(2) as pool:
            tasks = pool.starmap_async(_play, [(kind, rank, folder, numel, steps) for rank in range(2)], chunksize=1)
            found[kind].append(statistics.median(tasks.get(PATIENCE.total_seconds())[0]))
    hub_ms, gloo_ms = (round(1e3 * statistics.median(found[kind]), 3) for kind in ("hub", "gloo"))
    return {"megabytes": megabytes, "link_ms": hub_ms, "gloo_ms": gloo_ms, "over_gloo": round(hub_ms / gloo_ms, 3)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.33, 6.7])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    for megabytes in options.megabytes:
        print(json.dumps(measure(megabytes, options.steps, options.repeats)), flush=True)


if __name__ == "__main__":
    main()
