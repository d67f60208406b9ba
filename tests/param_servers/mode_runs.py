"""A fixed stream of gradients, and a run of it over each exchange; ranks and servers are threads of the test."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from param_servers.allreduce.collective import TorchCollective
from param_servers.allreduce.exchange import AllReduceExchange
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.layout import FlatLayout, plan_shards
from param_servers.majority.exchange import MajorityExchange
from param_servers.replica import LocalExchange
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer

SECRET = b"0123456789abcdef"
SHAPES = {"torso.weight": (7, 5), "torso.bias": (7,), "head.weight": (3, 7), "head.bias": (3,), "scale": (1,)}
STEPS, BATCH, PATIENCE_S = 5, 4, 60
ADAM = OptimizerConfig(optimizer="adam", learning_rate="linear:0.05->0.01@100", beta1=0.8, beta2=0.75, epsilon=1e-8)
RMSPROP = OptimizerConfig(optimizer="rmsprop", learning_rate="0.01", decay=0.9, epsilon=1e-3)
MOMENTUM = OptimizerConfig(optimizer="momentum", learning_rate="0.1")


class Stream:
    """The fixed stream: initial tensors, and a gradient for each (worker, step), by name."""

    def __init__(self, shapes=SHAPES):
        self.shapes = shapes
        self.layout = FlatLayout.of(shapes)

    def initial(self, layout):
        """[P] in the order of `layout`."""
        return flat_in(layout, self.layout.views(torch.linspace(-1, 1, self.layout.numel)))

    def gradient(self, layout, worker, step):
        """[P] in the order of `layout`."""
        generator = torch.Generator().manual_seed(1000 * worker + step)
        return flat_in(layout, self.layout.views(torch.randn(self.layout.numel, generator=generator)))

    def around(self, exchange, worker):
        """The exchange that `worker` uses."""
        return exchange

    def reference(self, config, workers):
        """[P]: each tensor a parameter of its own, as everybody uses torch.optim."""
        tensors = self.layout.views(self.initial(self.layout))
        parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors.values()]
        optimizer = torch_optimizer(config, parameters)
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = config.schedule(step * BATCH * workers)
            total = self.gradient(self.layout, 0, step)
            for worker in range(1, workers):
                total += self.gradient(self.layout, worker, step)
            views = self.layout.views(total / workers)
            for parameter, gradient in zip(parameters, views.values(), strict=True):
                parameter.grad = gradient
            optimizer.step()
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


class LanesStream(Stream):
    """Worker 0 is several lanes, each with gradients of its own; theirs is the mean, added in the lanes' order."""

    def __init__(self, lanes):
        super().__init__()
        self.lanes, self.lane = lanes, None

    def gradient(self, layout, worker, step):
        if worker:
            return super().gradient(layout, worker, step)
        if self.lane is not None:
            return super().gradient(layout, 100 + self.lane.index, step)
        total = super().gradient(layout, 100, step)
        for lane in range(1, self.lanes):
            total += super().gradient(layout, 100 + lane, step)
        return total / self.lanes

    def around(self, exchange, worker):
        return exchange if worker else self.lane.exchange(lambda: exchange, self.layout.numel)


def torch_optimizer(config, parameters):
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, 1.0, (config.beta1, config.beta2), config.epsilon)
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(parameters, 1.0, config.decay, config.epsilon)
    return torch.optim.SGD(parameters, 1.0, config.momentum_coefficient)


def flat_in(layout, views):
    return torch.cat([views[name].reshape(-1) for name in layout.names])


def train(exchange, layout, stream, worker):
    """The worker's loop; [P] in the stream's own order after the last step."""
    exchange = stream.around(exchange, worker)
    pulled = exchange.pull()
    while pulled.step < STEPS:
        assert exchange.push(stream.gradient(layout, worker, pulled.step), pulled.step, BATCH).accepted
        pulled = exchange.pull()
    return flat_in(stream.layout, layout.views(pulled.parameters)), pulled.data_points


def all_at_once(bodies):
    with ThreadPoolExecutor(len(bodies)) as pool:
        return [future.result(PATIENCE_S) for future in [pool.submit(body) for body in bodies]]


class Board:
    """Where ranks and servers publish and find addresses."""

    def __init__(self):
        self.addresses = {}

    def resolve(self, rank):
        return self.addresses.get(rank)

    def publisher(self, rank):
        return lambda host, port: self.addresses.__setitem__(rank, (host, port))


def run_local(stream, config, workers):
    assert workers == 1
    exchange = LocalExchange(
        layout=stream.layout, initial_parameters=stream.initial(stream.layout), optimizer_config=config
    )
    result = train(exchange, stream.layout, stream, 0)
    exchange.close()
    return [result]


def run_servers(stream, config, workers, servers=1, exchange="servers", checkpoint_dir=None):
    plan = plan_shards(stream.layout, servers)
    settings = ExchangeConfig(exchange=exchange, num_workers=workers, num_servers=servers, join_timeout_s=30)
    board, over = Board(), threading.Event()
    common = {"plan": plan, "exchange_config": settings, "resolve": board.resolve, "secret": SECRET}

    def serve(shard):
        server = ParameterServer(
            shard=shard,
            initial_parameters=stream.initial(plan.layout),
            optimizer_config=config,
            publish_address=board.publisher(shard),
            checkpoint_dir=checkpoint_dir,
            should_stop=lambda step, data_points: "all have pulled" if over.is_set() else None,
            **common,
        )
        return server.run()

    pulled_all = threading.Barrier(workers)

    def work(worker):
        client = ServersExchange(worker=worker, **common)
        result = train(client, plan.layout, stream, worker)
        pulled_all.wait(PATIENCE_S)
        over.set()
        client.close()
        return result

    bodies = [lambda shard=shard: serve(shard) for shard in range(servers)]
    results = all_at_once(bodies + [lambda worker=worker: work(worker) for worker in range(workers)])
    return results[servers:]


def run_allreduce(stream, config, workers):
    board, settings = Board(), ExchangeConfig(exchange="allreduce", num_workers=workers)
    over = threading.Barrier(workers)

    def work(rank):
        collective = TorchCollective.join(
            rank, settings, secret=SECRET, publish=board.publisher(rank), resolve=board.resolve
        )
        exchange = AllReduceExchange(
            collective=collective,
            layout=stream.layout,
            initial_parameters=stream.initial(stream.layout),
            optimizer_config=config,
            exchange_config=settings,
        )
        result = train(exchange, stream.layout, stream, rank)
        over.wait(PATIENCE_S)
        exchange.close()
        return result

    return all_at_once([lambda rank=rank: work(rank) for rank in range(workers)])


def run_majority(stream, config, workers):
    board, over = Board(), threading.Barrier(workers)
    settings = ExchangeConfig(exchange="majority", num_workers=workers, num_backup_workers=0)

    def work(rank):
        exchange = MajorityExchange(
            rank=rank,
            layout=stream.layout,
            initial_parameters=stream.initial(stream.layout),
            optimizer_config=config,
            exchange_config=settings,
            secret=SECRET,
            resolve=board.resolve,
            publish_address=board.publisher(rank),
        )
        result = train(exchange, stream.layout, stream, rank)
        over.wait(PATIENCE_S)
        exchange.close()
        return result

    return all_at_once([lambda rank=rank: work(rank) for rank in range(workers)])
