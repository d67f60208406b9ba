"""One rank of servers and workers over MPI: `mpirun -n N python mpi_servers.py FOLDER SERVERS BACKUP STEPS [DIES AT]`.

The first ranks are servers, the others workers. Worker DIES kills itself when it has begun its push number AT.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from mpi4py import MPI

from param_servers.allreduce.selftest import BATCH, LAYOUT, OPTIMIZER, gradient, initial_parameters
from param_servers.config import ExchangeConfig
from param_servers.errors import ParamServersError
from param_servers.exchange import RunStopped
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer
from param_servers.sharding import plan_shards

faulthandler.dump_traceback_later(70, exit=True)  # before the test's patience ends: says where a rank hangs
torch.set_num_threads(1)
folder, servers, backup, steps = Path(sys.argv[1]), *map(int, sys.argv[2:5])
dies, at = map(int, sys.argv[5:7]) if len(sys.argv) > 5 else (-1, -1)
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
config = ExchangeConfig(
    exchange="servers",
    transport="mpi",
    num_workers=size - servers,
    num_backup_workers=backup,
    num_servers=servers,
    step_timeout_s=10,
    join_timeout_s=30,
)
common = {
    "plan": plan_shards(LAYOUT, servers),
    "exchange_config": config,
    "resolve": lambda shard: ("mpi", shard),
    "secret": b"not used over MPI",
}


def say(event):
    with (folder / f"rank-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def serve():
    return ParameterServer(
        shard=rank,
        initial_parameters=initial_parameters(),
        optimizer_config=OPTIMIZER,
        checkpoint_dir=folder / "checkpoints",
        audit_path=folder / "audit.jsonl",
        should_stop=lambda step, data_points: "enough" if step >= steps else None,
        on_event=say,
        **common,
    ).run()


def work(worker):
    exchange, sequence = ServersExchange(worker=worker, **common), 0
    try:
        while True:
            pulled = exchange.pull()
            sequence += 1
            if (worker, sequence) == (dies, at):
                exchange._core.push(gradient(worker, sequence), pulled.step, BATCH)  # begun, never finished
                os.kill(os.getpid(), signal.SIGKILL)
            exchange.push(gradient(worker, sequence), pulled.step, BATCH)
    except RunStopped as stopped:
        exchange.close()
        return stopped.reason


try:
    reason = serve() if rank < servers else work(rank - servers)
except ParamServersError as error:
    say({"event": "error", "message": str(error)})
    sys.exit(3)
say({"event": "ended", "message": reason, "time_s": time.time()})
