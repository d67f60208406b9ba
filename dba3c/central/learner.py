"""The learner's whole life: newest parameters, complete unrolls, gradient, push, record."""

from __future__ import annotations

from dba3c.central.algorithm import Trainer
from dba3c.central.inference_thread import Serving
from dba3c.config import TrainConfig
from dba3c.environments.protocol import Experience
from dba3c.metrics.exchange_records import GradientRecorder
from dba3c.metrics.writer import MetricsWriter, Sections
from dba3c.networks.active_relus import ActiveRelus
from dba3c.runs.ending import before_the_first_update
from param_servers.exchange import GradientExchange, RunStopped
from param_servers.layout import FlatLayout
from param_servers.optim import clip_gradient


def run_learner(
    config: TrainConfig,
    trainer: Trainer,
    layout: FlatLayout,
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
    relus = ActiveRelus()
    clip, updates = (config.optimizer.clip_rule, config.optimizer.clip_norm), 0
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
                        recorder.stepped(pulled.step, Experience(), service.take_episodes())  # actors count their steps
                        service.store.release(unrolls)
                if not trainer.owes:
                    continue
            with sections("learning"):
                with relus.watch():
                    update = trainer.update(pulled)
                before, after = clip_gradient(update.gradient, layout, *clip)
            with sections("pushing"):
                receipt = exchange.push(update.gradient, pulled.step, update.data_points)
            trainer.answered(receipt.accepted)
            updates += receipt.accepted
            numbers = update.numbers | {"gradient_norm": before, "gradient_norm_clipped": after}
            numbers |= {"unroll_queue": service.store.ready} | service.report.take() | relus.take()
            numbers |= serving.thread_shares()
            recorder.record(receipt, pulled.step, update.data_points, numbers, sections)
    except RunStopped as stopped:
        serving.close(stopped.reason)
        trainer.stopped()
        if not updates:
            metrics.record_event("no_update", f"this life ended {before_the_first_update(config)}")
        return stopped.reason
    finally:
        recorder.finish()
