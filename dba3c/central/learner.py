"""The learner's whole life: newest parameters, complete unrolls, gradient, push, record; and what it is made of."""

from dba3c.algorithms.agent import FlatNetwork
from dba3c.algorithms.config import REPLAYING
from dba3c.assembly.exchanges import connect
from dba3c.assembly.model import Spaces, build_model, build_policy, spaces_of
from dba3c.central.algorithm import Trainer
from dba3c.central.inference_thread import Serving
from dba3c.central.r2d2 import R2d2Trainer
from dba3c.central.sac import SacTrainer
from dba3c.central.service import MOST_ACTORS, Batcher, InferenceService
from dba3c.central.unrolls import UnrollStore
from dba3c.central.vtrace import VtraceTrainer
from dba3c.central.wire import group_shape
from dba3c.config import TrainConfig
from dba3c.environments.protocol import worker_seed
from dba3c.errors import UserError, warn_on_stderr
from dba3c.metrics.writer import GradientRecorder, MetricsWriter, Sections
from dba3c.networks.active_relus import ActiveRelus
from dba3c.roles import RunProcess
from dba3c.runs.ending import before_the_first_update
from dba3c.runs.host_facts import available_memory_bytes
from param_servers.exchange import GradientExchange, RunStopped
from param_servers.wire.tcp_sockets import listen_address

LEARNER_SEEDS = 1 << 20
"""Learners' randomness is that of workers so far away that no actor shares it."""


def learner(process: RunProcess) -> str:
    """Choose the actions of this learner's actors and train on what they did."""
    config, metrics = process.config, MetricsWriter.of(process, "learner")
    seed = worker_seed(config.run.seed, process.rank + LEARNER_SEEDS, process.incarnation)
    try:
        if process.incarnation and config.algorithm.algorithm in REPLAYING:
            metrics.record_event("resumed", "the replay begins empty, the target network as a copy of the parameters")
        spaces = spaces_of(config)
        model = build_model(config, spaces)
        actors = config.central.actors_of(process.rank, config.exchange.num_workers)
        apart = worker_seed(config.run.seed, process.rank + LEARNER_SEEDS, process.incarnation, 1)  # acting has `seed`
        trainer = build_trainer(config, model.network, spaces, actors, apart)
        serving = build_serving(process, model.network, spaces, seed, trainer.groups_per_batch, metrics)
        try:
            host = listen_address(config.exchange.listen_host, config.exchange.interface)
            # Other exchanges listen themselves on the port that was chosen, in this process or beside it.
            port = config.exchange.port if config.exchange.exchange == "local" else 0
            address = serving.service.hub.listen(host, port)
            process.publisher("learner")(*address)
            exchange = connect(process, model.plan, model.parameters, metrics)
            try:
                return run_learner(config, trainer, serving, exchange, metrics)
            finally:
                exchange.close()
        finally:
            serving.close(None)
    finally:
        metrics.close()


def run_learner(
    config: TrainConfig,
    trainer: Trainer,
    serving: Serving,
    exchange: GradientExchange,
    metrics: MetricsWriter,
) -> str:
    """Train until the exchange says that the run has stopped; the actors are told so.

    Returns:
        The reason the run stopped.

    Raises:
        ParamServersError: the exchange broke, or no actor came in time.
    """
    sections, recorder, service = Sections(), GradientRecorder(metrics), serving.service
    relus, updates = ActiveRelus(), 0
    try:
        while True:
            with sections("waiting"):
                pulled = exchange.pull()
            serving.publish(pulled.parameters, pulled.step)
            if not trainer.owes:
                unrolls = serving.collect(trainer.groups_per_batch, sections)
                with sections("learning"):
                    if unrolls:
                        trainer.take(unrolls)
                if not trainer.owes:
                    if not updates:
                        service.report.take()  # of a replay's filling, which is not the first record's
                        serving.thread_shares()
                    continue
            with sections("learning"), relus.watch():
                update = trainer.update(pulled)
            with sections("pushing"):
                receipt = exchange.push(update.gradient, pulled.step, update.data_points)
            trainer.answered(receipt.accepted)
            updates += receipt.accepted
            numbers = update.numbers | {"unroll_queue": service.store.ready} | service.report.take() | relus.take()
            numbers |= serving.thread_shares()
            recorder.record(receipt, pulled.step, update.data_points, numbers, sections)
    except RunStopped as stopped:
        serving.close(stopped.reason)
        if not updates:
            metrics.record_event("no_update", f"this life ended {before_the_first_update(config)}")
        return stopped.reason
    finally:
        serving.close(None)


def build_serving(
    process: RunProcess, network: FlatNetwork, spaces: Spaces, seed: int, groups_per_batch: int, metrics: MetricsWriter
) -> Serving:
    """What answers the actors of learner ``process.rank``; its hub does not listen yet."""
    config, central, timeouts = process.config, process.config.central, process.config.exchange.timeouts
    actors = central.actors_of(process.rank, config.exchange.num_workers)
    half = max(1, len(actors) * central.envs_per_actor // 2)
    batcher = Batcher(central.inference_batch or half, central.inference_timeout_ms / 1000)
    service = InferenceService(
        process.secret,
        process.rank,
        build_policy(config, build_model(config, spaces).network, spaces, seed),
        UnrollStore(group_shape(config, spaces), central.unroll_length),
        batcher,
        central.actor_groups,
        metrics.record_event,
        timeouts.silence_s,
        # the replay has places for the environments that were announced; V-trace takes whoever comes
        most_actors=central.actors if config.algorithm.algorithm == "r2d2" else MOST_ACTORS,
    )
    return Serving(service, actors, timeouts.join_s, network, groups_per_batch)


def build_trainer(config: TrainConfig, network: FlatNetwork, spaces: Spaces, actors: range, seed: int) -> Trainer:
    """How unrolls become gradients. Raises UserError: a replay that no memory can hold, or unrolls too short."""
    steps, room = config.replay.replay_capacity, available_memory_bytes()
    try:
        trainer = _trainer(config, network, spaces, actors, seed)
    except (MemoryError, ValueError) as error:  # NumPy's for an array of more bytes than can be counted
        raise UserError(f"no memory for a replay of {steps:,} agent steps: {error}; see --replay-capacity") from error
    if (needed := trainer.memory_bytes) > room:  # short runs do not fill it
        least, see = trainer.least_steps, "--replay-capacity"
        if least > steps:
            steps, see = least, "--envs-per-actor and --unroll-length, which need no fewer steps"
        warn_on_stderr(
            f"a replay of {steps:,} agent steps takes {needed / 1e9:.1f} GB once it is full, and there are "
            f"{room / 1e9:.1f} GB of memory: see {see}"
        )
    return trainer


def _trainer(config: TrainConfig, network: FlatNetwork, spaces: Spaces, actors: range, seed: int) -> Trainer:
    if config.algorithm.algorithm == "r2d2":
        return R2d2Trainer(config, network, group_shape(config, spaces), actors, seed)
    if config.algorithm.algorithm == "sac":
        return SacTrainer(config, network, spaces, seed)
    return VtraceTrainer(config, network)  # type: ignore[arg-type]


def check_trainable(config: TrainConfig) -> None:
    """Build what the last learner will train with. Raises UserError: it cannot be, or no actor would dial it."""
    spaces, learners = spaces_of(config), config.exchange.num_workers
    actors = config.central.actors_of(learners - 1, learners)
    build_trainer(config, build_model(config, spaces).network, spaces, actors, seed=0)
