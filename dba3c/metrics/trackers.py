"""The trackers of `--track`: TensorBoard, MLflow, Neptune, W&B, each a small adapter."""

import importlib.util
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from dba3c.errors import UserError, did_you_mean
from dba3c.metrics.sinks import Sink, TrackedRun, client, flat_names

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
_ROWS_OF_A_TABLE = 100  # it is written anew with each evaluation: a long run's would grow with their square
_IDENTITY_TAG = "dba3c.run"
_PARAMETERS_AT_ONCE = 100  # MLflow's own limit for one request
_METRICS_AT_ONCE = 1000


class TensorBoardSink:
    """One event file for each life of the run, or for an export; a roll-back cuts off what was drawn from its first
    new point on.

    By TensorBoard's own writer (torch makes the layout and the table), in the run's tensorboard/: scalars; under Custom
    Scalars the few charts that people look at, score first; the configuration as hyperparameters and as text; events, a
    table of evaluations, films.
    """

    name = "tensorboard"

    def __init__(self) -> None:
        self._writer: Any = None
        self._pb: Any = None
        self._evaluations: deque[str] = deque(maxlen=_ROWS_OF_A_TABLE)

    def open(self, run: TrackedRun) -> None:
        file_writer = client("tensorboard.summary.writer.event_file_writer", self.name)
        self._pb = client("tensorboard.compat.proto.summary_pb2", self.name)
        self._event_pb = client("tensorboard.compat.proto.event_pb2", self.name)
        self._writer = file_writer.EventFileWriter(str(run.folder / "tensorboard"), flush_secs=FLUSH_S)
        self._run = run
        self._begun = False
        self._step = math.inf if run.resumed else 0.0  # of the run's newest point; an earlier life had any
        # events before that is known: at the step that was undone they would be cut off
        self._held: list[tuple[str, int, float]] = []
        if not run.resumed:
            self._start(0, time.time())  # TensorBoard takes a run's second start for a restart, never its first

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        evaluated = any(tag.startswith("score/evaluation_") for tag in values)  # an older checkpoint: undoes nothing
        rolled_back = not evaluated and step < self._step
        if rolled_back or not self._begun:
            self._begin(step, time_s, rolled_back)
        if not evaluated:
            self._step = step
            self._write_held(step)
        pb = self._pb
        scalars = [pb.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(pb.Summary(value=scalars), step, time_s)
        if evaluated:
            cells = [f"{values.get(f'score/evaluation_{name}', float('nan')):.4g}" for name in EVALUATED]
            self._evaluations.append(" | ".join([str(step), *cells]))
            head = f"step | {' | '.join(EVALUATED)}\n{'--- | ' * len(EVALUATED)}---"
            self._text("evaluations", "\n".join([head, *self._evaluations]), step, time_s)

    def _begin(self, step: int, time_s: float, rolled_back: bool) -> None:
        self._begun = True
        if rolled_back:  # TensorBoard then forgets what was drawn from this step on, also the texts below if they were
            self._start(step, time_s)
        tree = json.dumps({"config": self._run.config, "facts": self._run.facts}, indent=2, default=str)
        self._text("run", f"```\n{tree}\n```", step, time_s)
        self._layout(step, time_s)
        self._hyperparameters(step, time_s)

    def _layout(self, step: int, time_s: float) -> None:
        summary = client("torch.utils.tensorboard.summary", self.name)
        layout = {
            title: {name: ["Multiline", [f"^{tag}$" for tag in tags]] for name, tags in charts.items()}
            for title, charts in LAYOUT.items()
        }
        self._add(summary.custom_scalars(layout), step, time_s)

    def _hyperparameters(self, step: int, time_s: float) -> None:
        """The configuration in the table that compares runs: options whose value is a number or a word."""
        summary = client("torch.utils.tensorboard.summary", self.name)
        options = {name: value for name, value in flat_names(self._run.config) if value not in ("None", "")}
        # torch shows a yes or no as 1 or 0
        told = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
        columns, row, _ = summary.hparams(told, dict.fromkeys(JUDGED_BY, 0.0))  # the third says that it has ended well
        self._add(columns, step, time_s)
        self._add(row, step, time_s)

    def event(self, message: str, step: int, time_s: float) -> None:
        self._held.append((message, step, time_s))
        if self._step != math.inf:
            self._write_held(math.inf)

    def _write_held(self, now_at: float) -> None:
        for message, step, time_s in self._held:
            self._text("events", message, int(min(step, now_at)), time_s)
        self._held.clear()

    def film(self, path: Path, step: int, time_s: float) -> None:
        encoded = path.read_bytes()
        width, height = (int.from_bytes(encoded[at : at + 2], "little") for at in (6, 8))  # where a GIF has them
        image = self._pb.Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded)
        self._add(self._pb.Summary(value=[self._pb.Summary.Value(tag="film", image=image)]), step, time_s)

    def close(self) -> None:
        self._write_held(math.inf)
        self._writer.close()

    def _start(self, step: int, time_s: float) -> None:
        start = self._event_pb.SessionLog(status=self._event_pb.SessionLog.START)
        self._writer.add_event(self._event_pb.Event(session_log=start, step=step, wall_time=time_s))

    def _text(self, tag: str, text: str, step: int, time_s: float) -> None:
        self._add(client("tensorboard.plugins.text.summary_v2", self.name).text_pb(tag, text), step, time_s)

    def _add(self, summary: Any, step: int, time_s: float) -> None:
        self._writer.add_event(self._event_pb.Event(summary=summary, step=step, wall_time=time_s))


class MLflowSink:
    """One MLflow run for all lives of a run, in the experiment MLFLOW_EXPERIMENT_NAME (default "dba3c").

    It is on the server (or in the store) of MLFLOW_TRACKING_URI, else in an SQLite file in the run folder, mlflow.db.
    """

    name = "mlflow"

    def __init__(self) -> None:
        self._client: Any = None
        self._run_id = ""
        self._events = 0
        self._artifacts: str | None = None

    def open(self, run: TrackedRun) -> None:
        tracking = client("mlflow.tracking", self.name)
        self._entities = client("mlflow.entities", self.name)
        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its own 7 take minutes on a dead server
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder / 'mlflow.db'}"
        if uri.startswith("sqlite:"):
            if importlib.util.find_spec("sqlalchemy") is None:  # mlflow-skinny, without what the extra adds
                raise UserError(
                    "mlflow-skinny has no local store: set MLFLOW_TRACKING_URI to a server, "
                    "or pip install 'dba3c[mlflow]'"
                )
            self._artifacts = (run.folder / "mlflow-artifacts").as_uri()  # else ./mlruns, wherever that is
        self._client = tracking.MlflowClient(uri)
        self._run_id = self._find(run) or self._create(run)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "dba3c")
        if known := self._client.get_experiment_by_name(name):
            return str(known.experiment_id)
        try:
            return str(self._client.create_experiment(name, artifact_location=self._artifacts))
        except Exception:
            if known := self._client.get_experiment_by_name(name):  # another run has just made it
                return str(known.experiment_id)
            raise

    def _find(self, run: TrackedRun) -> str:
        query = f"tags.`{_IDENTITY_TAG}` = '{run.identity}'"
        found = self._client.search_runs([self._experiment()], filter_string=query, max_results=1)
        if not found:
            return ""
        run_id = str(found[0].info.run_id)
        self._client.update_run(run_id, status="RUNNING")
        self._log_parameters(run_id, run, found[0].data.params)
        return run_id

    def _create(self, run: TrackedRun) -> str:
        tags = {_IDENTITY_TAG: run.identity, "dba3c.tags": " ".join(run.tags)}
        run_id = str(self._client.create_run(self._experiment(), run_name=run.name, tags=tags).info.run_id)
        self._log_parameters(run_id, run)
        return run_id

    def _log_parameters(self, run_id: str, run: TrackedRun, there: Container[str] = ()) -> None:
        """The configuration, but for what is `there`: that cannot be changed."""
        named = {key: str(value)[:6000] for key, value in run.parameters().items() if key not in there}
        parameters = [self._entities.Param(key, value) for key, value in named.items()]
        for start in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(run_id, params=parameters[start : start + _PARAMETERS_AT_ONCE])

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        time_ms = int(time_s * 1000)
        metrics = [self._entities.Metric(chart, value, time_ms, step) for chart, value in values.items()]
        for start in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _METRICS_AT_ONCE])

    def event(self, message: str, step: int, time_s: float) -> None:
        self._events += 1
        key = f"event.{int(time_s * 1000)}.{self._events}"  # many happen in one millisecond, and a tag has one value
        self._client.set_tag(self._run_id, key, f"step {step}: {message}"[:5000])

    def film(self, path: Path, step: int, time_s: float) -> None:
        self._client.log_artifact(self._run_id, str(path), "films")

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class NeptuneSink:
    """Series under the chart names (score/mean, loss/total, ...), the config under parameters/, events as text.

    Offline unless NEPTUNE_MODE says otherwise (the hosted service closed in 2026; NEPTUNE_* and a compatible backend
    are honoured). Offline data lies in RUN/.neptune; `neptune sync --path RUN` sends it later.
    """

    name = "neptune"

    def __init__(self) -> None:
        self._run: Any = None

    def open(self, run: TrackedRun) -> None:
        data = "NEPTUNE_DATA_DIRECTORY"
        os.environ[data] = run.said_by(data, str(run.folder / ".neptune"))
        neptune = client("neptune", self.name)
        logging.getLogger("neptune").setLevel(logging.WARNING)
        self._run = neptune.init_run(
            mode=os.environ.get("NEPTUNE_MODE", "offline"),
            name=run.name,
            custom_run_id=run.said_by("NEPTUNE_CUSTOM_RUN_ID", run.identity),
            tags=list(run.tags),
            source_files=[],
            capture_stdout=False,
            capture_stderr=False,
            capture_hardware_metrics=False,
            capture_traceback=False,
            git_ref=False,
        )
        for parameter, value in run.parameters().items():
            self._run[f"parameters/{parameter}"] = value

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        for chart, value in values.items():
            self._run[chart].append(value, step=step, timestamp=time_s)

    def event(self, message: str, step: int, time_s: float) -> None:
        self._run["events"].append(message, step=step, timestamp=time_s)

    def film(self, path: Path, step: int, time_s: float) -> None:
        self._run[f"films/{path.stem}"].upload(str(path))

    def close(self) -> None:
        self._run.stop()


class WandbSink:
    """One W&B run for all lives of a run, in the project WANDB_PROJECT (default "dba3c"); files in RUN/wandb.

    Offline unless WANDB_MODE says otherwise (compute nodes have no way out); `wandb sync` sends it. Charts are drawn
    over our step, a value like any other: W&B's own only grows, where a resumed run and evaluations go back.
    """

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None

    def open(self, run: TrackedRun) -> None:
        wandb = self._client = client("wandb", self.name)
        self._run = wandb.init(
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=run.said_by("WANDB_DIR", str(run.folder)),
            project=os.environ.get("WANDB_PROJECT", "dba3c"),
            id=run.said_by("WANDB_RUN_ID", run.identity),
            resume="allow",
            name=run.name,
            config={"config": run.config, "facts": run.facts},
            tags=[tag[:64] for tag in run.tags],
            # Only what is handed over is recorded: no console, no code, no machine statistics.
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, save_code=False
            ),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        self._log(values, step, time_s)

    def event(self, message: str, step: int, time_s: float) -> None:
        self._log({"event": message}, step, time_s)

    def film(self, path: Path, step: int, time_s: float) -> None:
        self._log({"film": self._client.Video(str(path), format="gif")}, step, time_s)

    def _log(self, values: Mapping[str, Any], step: int, time_s: float) -> None:
        self._run.log({**values, "step": step, "_timestamp": time_s})

    def close(self) -> None:
        self._run.finish()
        self._client.teardown()  # ends the client's own service process, which would outlive the run


TRACKERS: dict[str, type[Sink]] = {
    adapter.name: adapter for adapter in (TensorBoardSink, NeptuneSink, MLflowSink, WandbSink)
}
"""By the name of `--track`; a client is imported only when its sink is opened."""


def check_clients(names: Iterable[str]) -> None:
    """Raise UserError where a tracker's client is not installed; nothing is imported."""
    for name in names:
        spec = importlib.util.find_spec(name)  # all are called as their trackers
        if spec is None or spec.origin is None:  # a folder of that name, as W&B itself leaves beside a script
            raise UserError(f"tracking with {name} needs its client: pip install 'dba3c[{name}]'")


def make_sinks(names: Iterable[str]) -> list[Sink]:
    """The sinks of these names, not yet opened. Raises UserError for a name that is none of `TRACKERS`."""
    sinks: list[Sink] = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise UserError(f"no tracker is called {name!r}; {did_you_mean(name, TRACKERS)}")
        sinks.append(TRACKERS[name]())
    return sinks
