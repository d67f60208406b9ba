"""MLflow: the server (or store) of MLFLOW_TRACKING_URI, else an SQLite file in the run folder (RUN/mlflow.db)."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dba3c.errors import UserError
from dba3c.metrics.sinks.sink import TrackedRun, client

_IDENTITY_TAG = "dba3c.run"
_PARAMETERS_AT_ONCE = 100  # MLflow's own limit for one request
_METRICS_AT_ONCE = 1000


class MLflowSink:
    """One MLflow run for all lives of a run, in the experiment MLFLOW_EXPERIMENT_NAME (default "dba3c")."""

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
            _check_local_store()
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


def _check_local_store() -> None:
    """The client alone (mlflow-skinny without what the extra adds) can only talk to a server."""
    if importlib.util.find_spec("sqlalchemy") is None:
        raise UserError(
            "mlflow-skinny has no local store: set MLFLOW_TRACKING_URI to a server, or pip install 'dba3c[mlflow]'"
        )
