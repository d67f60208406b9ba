"""TensorBoard: event files in the run's tensorboard/, by TensorBoard's own writer (no torch, no TensorFlow)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dba3c.metrics.sinks.sink import TrackedRun, client


class TensorBoardSink:
    """One event file for each life of the run; a resumed run cuts off what lies after its checkpoint."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._writer: Any = None
        self._pb: Any = None

    def open(self, run: TrackedRun) -> None:
        file_writer = client("tensorboard.summary.writer.event_file_writer", self.name)
        self._pb = client("tensorboard.compat.proto.summary_pb2", self.name)
        self._event_pb = client("tensorboard.compat.proto.event_pb2", self.name)
        self._writer = file_writer.EventFileWriter(str(run.folder / "tensorboard"), flush_secs=10)
        self._run = run
        self._begun = False

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        if not self._begun:
            self._begin(step, time_s)
        pb = self._pb
        summary = pb.Summary(value=[pb.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._writer.add_event(self._event_pb.Event(summary=summary, step=step, wall_time=time_s))

    def _begin(self, step: int, time_s: float) -> None:
        self._begun = True
        if self._run.resumed:  # TensorBoard then forgets what an earlier life drew from this step on
            start = self._event_pb.SessionLog(status=self._event_pb.SessionLog.START)
            self._writer.add_event(self._event_pb.Event(session_log=start, step=step, wall_time=time_s))
        tree = json.dumps({"config": self._run.config, "facts": self._run.facts}, indent=2, default=str)
        self._text("run", f"```\n{tree}\n```", step, time_s)

    def event(self, message: str, step: int, time_s: float) -> None:
        self._text("events", message, step, time_s)

    def close(self) -> None:
        self._writer.close()

    def _text(self, tag: str, text: str, step: int, time_s: float) -> None:
        tensor_pb = client("tensorboard.compat.proto.tensor_pb2", self.name)
        types_pb = client("tensorboard.compat.proto.types_pb2", self.name)
        shape_pb = client("tensorboard.compat.proto.tensor_shape_pb2", self.name)
        one = shape_pb.TensorShapeProto(dim=[shape_pb.TensorShapeProto.Dim(size=1)])
        tensor = tensor_pb.TensorProto(dtype=types_pb.DT_STRING, string_val=[text.encode()], tensor_shape=one)
        plugin = self._pb.SummaryMetadata.PluginData(plugin_name="text")
        value = self._pb.Summary.Value(tag=tag, metadata=self._pb.SummaryMetadata(plugin_data=plugin), tensor=tensor)
        self._writer.add_event(
            self._event_pb.Event(summary=self._pb.Summary(value=[value]), step=step, wall_time=time_s)
        )
