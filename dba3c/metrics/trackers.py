"""The trackers of `--track`, by name: TensorBoard has a file of its own, MLflow, Neptune and W&B are small adapters."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dba3c.errors import UserError
from dba3c.metrics.sinks import Sink, TrackedRun, client
from dba3c.metrics.tensorboard import TensorBoardSink

_IDENTITY_TAG = "dba3c.run"
_PARAMETERS_AT_ONCE = 100  # MLflow's own limit for one request
_METRICS_AT_ONCE = 1000


class MLflowSink:
    """One MLflow run for all lives of a run, in the experiment MLFLOW_EXPERIMENT_NAME (default "dba3c").

    It is on the server (or in the store) of MLFLOW_TRACKING_URI, else in an SQLite file in the run folder, mlflow.db.
    """

    name = "mlflow"

    def __init__(self) -> None:
        self._client: Any = None
        self._run_id = ""
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
        known = self._client.get_experiment_by_name(name)
        if known:
            return str(known.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=self._artifacts))

    def _find(self, run: TrackedRun) -> str:
        query = f"tags.`{_IDENTITY_TAG}` = '{run.identity}'"
        found = self._client.search_runs([self._experiment()], filter_string=query, max_results=1)
        if not found:
            return ""
        self._client.update_run(found[0].info.run_id, status="RUNNING")
        return str(found[0].info.run_id)

    def _create(self, run: TrackedRun) -> str:
        tags = {_IDENTITY_TAG: run.identity, "dba3c.tags": " ".join(run.tags)}
        run_id = str(self._client.create_run(self._experiment(), run_name=run.name, tags=tags).info.run_id)
        parameters = [self._entities.Param(key, str(value)[:6000]) for key, value in run.parameters().items()]
        for start in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(run_id, params=parameters[start : start + _PARAMETERS_AT_ONCE])
        return run_id

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        time_ms = int(time_s * 1000)
        metrics = [self._entities.Metric(chart, value, time_ms, step) for chart, value in values.items()]
        for start in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _METRICS_AT_ONCE])

    def event(self, message: str, step: int, time_s: float) -> None:
        self._client.set_tag(self._run_id, f"event.{int(time_s * 1000)}", f"step {step}: {message}"[:5000])

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
        os.environ.setdefault("NEPTUNE_DATA_DIRECTORY", str(run.folder / ".neptune"))
        neptune = client("neptune", self.name)
        logging.getLogger("neptune").setLevel(logging.WARNING)
        self._run = neptune.init_run(
            mode=os.environ.get("NEPTUNE_MODE", "offline"),
            name=run.name,
            custom_run_id=os.environ.get("NEPTUNE_CUSTOM_RUN_ID", run.identity),
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

    Offline unless WANDB_MODE says otherwise (compute nodes have no way out); `wandb sync` sends it.
    """

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None
        self._step = 0

    def open(self, run: TrackedRun) -> None:
        wandb = self._client = client("wandb", self.name)
        self._run = wandb.init(
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            project=os.environ.get("WANDB_PROJECT", "dba3c"),
            id=os.environ.get("WANDB_RUN_ID", run.identity),
            resume="allow",
            name=run.name,
            config={"config": run.config, "facts": run.facts},
            tags=[tag[:64] for tag in run.tags],
            # Only what is handed over is recorded: no console, no code, no machine statistics.
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, save_code=False
            ),
        )

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        self._log(values, step, time_s)

    def event(self, message: str, step: int, time_s: float) -> None:
        self._log({"event": message}, step, time_s)

    def film(self, path: Path, step: int, time_s: float) -> None:
        self._log({"film": self._client.Video(str(path), format="gif")}, step, time_s)

    def _log(self, values: Mapping[str, Any], step: int, time_s: float) -> None:
        self._step = max(self._step, step)  # W&B drops what comes for an earlier step, as evaluations do
        self._run.log({**values, "_timestamp": time_s}, step=self._step)

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
        if importlib.util.find_spec(name) is None:  # all are called as their trackers
            raise UserError(f"tracking with {name} needs its client: pip install 'dba3c[{name}]'")


def make_sinks(names: Iterable[str]) -> list[Sink]:
    """The sinks of these names, not yet opened. Raises UserError for a name that is none of `TRACKERS`."""
    sinks: list[Sink] = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise UserError(f"unknown tracker {name!r}; known: {', '.join(TRACKERS)}")
        sinks.append(TRACKERS[name]())
    return sinks
