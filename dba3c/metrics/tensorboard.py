"""TensorBoard: event files in the run's tensorboard/, by TensorBoard's own writer (no torch, no TensorFlow).

Scalars under the trackers' names; under Custom Scalars the few charts that people look at, score first; the
configuration as hyperparameters and as text; events, a table of evaluations, films.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dba3c.metrics.sinks import TrackedRun, client, flat_names

FLUSH_S = 2
LAYOUT = {
    "Score": {
        "last games": ["score/online", "score/mean", "score/max"],
        "evaluations": ["score/evaluation_mean", "score/evaluation_iqm"],
    },
    "Speed": {
        "data points/s": ["speed/data_points_per_s"],
        "where workers' time goes": ["speed/sections_worker_.*"],
        "where servers' time goes": ["speed/sections_server_.*"],
        "cores used": ["speed/cpu_cores"],
    },
    "Loss": {
        "losses": ["loss/total", "loss/policy", "loss/value"],
        "entropy": ["loss/policy_entropy"],
        "predicted reward": ["loss/value_predicted_reward"],
    },
    "Optimizer": {
        "gradient's norm": ["optimizer/gradient_norm_.*"],
        "gradient's delay": ["optimizer/gradient_delay_.*"],
        "update's norm": ["optimizer/update_norm"],
    },
    "Workers": {
        "score": ["workers/score_.*"],
        "frames/s": ["workers/frames_per_s_.*"],
        "time waited": ["workers/waiting_share_.*"],
    },
    "Cluster": {
        "workers and gradients": ["cluster/active_workers", "cluster/num_gradients"],
        "dropped gradients": ["cluster/dropped_share"],
    },
}
"""Custom Scalars: category, chart, and what is drawn in it (regular expressions)."""
JUDGED_BY = ("score/mean", "score/best_mean", "score/evaluation_iqm")
"""What runs are compared by in the table of hyperparameters."""
EVALUATED = ("mean", "median", "iqm", "max")


class TensorBoardSink:
    """One event file for each life of the run; a resumed run cuts off what lies after its checkpoint."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._writer: Any = None
        self._pb: Any = None
        self._evaluations: list[str] = []

    def open(self, run: TrackedRun) -> None:
        file_writer = client("tensorboard.summary.writer.event_file_writer", self.name)
        self._pb = client("tensorboard.compat.proto.summary_pb2", self.name)
        self._event_pb = client("tensorboard.compat.proto.event_pb2", self.name)
        self._writer = file_writer.EventFileWriter(str(run.folder / "tensorboard"), flush_secs=FLUSH_S)
        self._run = run
        self._begun = False

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        if not self._begun:
            self._begin(step, time_s)
        pb = self._pb
        scalars = [pb.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(pb.Summary(value=scalars), step, time_s)
        if "score/evaluation_mean" in values:
            cells = [f"{values.get(f'score/evaluation_{name}', float('nan')):.4g}" for name in EVALUATED]
            self._evaluations.append(" | ".join([str(step), *cells]))
            head = f"step | {' | '.join(EVALUATED)}\n{'--- | ' * len(EVALUATED)}---"
            self._text("evaluations", "\n".join([head, *self._evaluations]), step, time_s)

    def _begin(self, step: int, time_s: float) -> None:
        self._begun = True
        if self._run.resumed:  # TensorBoard then forgets what an earlier life drew from this step on
            start = self._event_pb.SessionLog(status=self._event_pb.SessionLog.START)
            self._writer.add_event(self._event_pb.Event(session_log=start, step=step, wall_time=time_s))
        tree = json.dumps({"config": self._run.config, "facts": self._run.facts}, indent=2, default=str)
        self._text("run", f"```\n{tree}\n```", step, time_s)
        self._layout(step, time_s)
        self._hyperparameters(step, time_s)

    def _layout(self, step: int, time_s: float) -> None:
        layout_pb = client("tensorboard.plugins.custom_scalar.layout_pb2", self.name)
        metadata = client("tensorboard.plugins.custom_scalar.metadata", self.name)
        tensors = client("tensorboard.util.tensor_util", self.name)
        categories = []
        for title, charts in LAYOUT.items():
            drawn = {
                name: layout_pb.MultilineChartContent(tag=[f"^{tag}$" for tag in tags]) for name, tags in charts.items()
            }
            charts_pb = [layout_pb.Chart(title=name, multiline=content) for name, content in drawn.items()]
            categories.append(layout_pb.Category(title=title, chart=charts_pb))
        told = self._pb.Summary.Value(
            tag=metadata.CONFIG_SUMMARY_TAG,
            metadata=metadata.create_summary_metadata(),
            tensor=tensors.make_tensor_proto(layout_pb.Layout(category=categories).SerializeToString()),
        )
        self._add(self._pb.Summary(value=[told]), step, time_s)

    def _hyperparameters(self, step: int, time_s: float) -> None:
        """The configuration in the table that compares runs: options whose value is a number, a word or yes or no."""
        api_pb = client("tensorboard.plugins.hparams.api_pb2", self.name)
        data_pb = client("tensorboard.plugins.hparams.plugin_data_pb2", self.name)
        metadata = client("tensorboard.plugins.hparams.metadata", self.name)
        hparams = client("tensorboard.plugins.hparams.summary_v2", self.name)
        options = {name: value for name, value in flat_names(self._run.config) if value not in ("None", "")}
        kinds = {bool: api_pb.DATA_TYPE_BOOL, str: api_pb.DATA_TYPE_STRING}
        experiment = api_pb.Experiment(
            hparam_infos=[
                api_pb.HParamInfo(name=name, type=kinds.get(type(value), api_pb.DATA_TYPE_FLOAT64))
                for name, value in options.items()
            ],
            metric_infos=[api_pb.MetricInfo(name=api_pb.MetricName(tag=tag)) for tag in JUDGED_BY],
            time_created_secs=time_s,
        )
        told = metadata.create_summary_metadata(data_pb.HParamsPluginData(experiment=experiment))
        columns = self._pb.Summary.Value(tag=metadata.EXPERIMENT_TAG, metadata=told, tensor=metadata.NULL_TENSOR)
        self._add(self._pb.Summary(value=[columns]), step, time_s)
        self._add(hparams.hparams_pb(options, self._run.identity, time_s), step, time_s)

    def event(self, message: str, step: int, time_s: float) -> None:
        self._text("events", message, step, time_s)

    def film(self, path: Path, step: int, time_s: float) -> None:
        encoded = path.read_bytes()
        width, height = (int.from_bytes(encoded[at : at + 2], "little") for at in (6, 8))  # where a GIF has them
        image = self._pb.Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded)
        self._add(self._pb.Summary(value=[self._pb.Summary.Value(tag="film", image=image)]), step, time_s)

    def close(self) -> None:
        self._writer.close()

    def _text(self, tag: str, text: str, step: int, time_s: float) -> None:
        self._add(client("tensorboard.plugins.text.summary_v2", self.name).text_pb(tag, text), step, time_s)

    def _add(self, summary: Any, step: int, time_s: float) -> None:
        self._writer.add_event(self._event_pb.Event(summary=summary, step=step, wall_time=time_s))
