"""scikit-learn's digits: 2 servers, 4 workers + 1 backup, one is killed. python -m param_servers.examples.digits"""

import multiprocessing
import os
import secrets
import signal

import torch
from sklearn.datasets import load_digits

from param_servers.client import ServersExchange
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.exchange import RunStopped
from param_servers.layout import FlatLayout
from param_servers.server import ParameterServer
from param_servers.sharding import plan_shards

LAYOUT = FlatLayout.of({"weight": (10, 64), "bias": (10,)})
PLAN = plan_shards(LAYOUT, 2)
EXCHANGE = ExchangeConfig(exchange="servers", num_servers=2, num_workers=5, num_backup_workers=1, step_timeout_s=20)
IMAGES, LABELS = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
INPUT = IMAGES.float() / 16


def server(shard, addresses, secret, final):  # type: ignore[no-untyped-def]
    reason = ParameterServer(
        shard=shard, plan=PLAN, initial_parameters=torch.zeros(LAYOUT.numel), exchange_config=EXCHANGE, secret=secret,
        optimizer_config=OptimizerConfig(optimizer="adam", learning_rate="0.01"), resolve=addresses.get,
        publish_address=lambda host, port: addresses.update({shard: (host, port)}),
        should_stop=lambda step, data_points: "300 steps" if step >= 300 else None,
        on_event=lambda event: print(f"server {shard}: {event['message']}", flush=True),
    ).run()  # fmt: skip
    print(f"server {shard} ends: {reason}", flush=True)


def worker(rank, addresses, secret, final):  # type: ignore[no-untyped-def]
    exchange = ServersExchange(worker=rank, plan=PLAN, exchange_config=EXCHANGE, resolve=addresses.get, secret=secret)
    generator = torch.Generator().manual_seed(rank)
    try:
        while True:
            parameters, step, _ = exchange.pull()
            if rank == 4 and step >= 50:
                os.kill(os.getpid(), signal.SIGKILL)  # nobody is told
            leaf = parameters.clone().requires_grad_()
            tensors = LAYOUT.views(leaf)
            batch = torch.randint(len(INPUT), (64,), generator=generator)
            logits = torch.nn.functional.linear(INPUT[batch], tensors["weight"], tensors["bias"])
            (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, LABELS[batch]), leaf)
            exchange.push(gradient, step, data_points=64)
    except RunStopped:
        final.update({rank: (step, parameters.tolist())})
        exchange.close()


def main() -> None:
    torch.set_num_threads(1)
    with multiprocessing.Manager() as manager:
        shared = manager.dict(), secrets.token_bytes(32), manager.dict()
        processes = [multiprocessing.Process(target=server, args=(shard, *shared)) for shard in range(2)]
        processes += [multiprocessing.Process(target=worker, args=(rank, *shared)) for rank in range(5)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        step, flat = max(shared[2].values())
    tensors = LAYOUT.views(torch.tensor(flat))
    right = (INPUT @ tensors["weight"].T + tensors["bias"]).argmax(1) == LABELS
    print(f"accuracy after {step} steps: {right.float().mean():.3f}")


if __name__ == "__main__":
    main()
