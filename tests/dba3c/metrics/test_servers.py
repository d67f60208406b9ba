"""A tracker's real server on this machine: MLflow's."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from dba3c.metrics.monitor import export
from tests.dba3c.metrics.test_clients import check_mlflow
from tests.ports import free_port

START_TIMEOUT_S = 240.0


@contextlib.contextmanager
def serving(command, url, log):
    """The command as a process group of its own, from the first answer at `url` on; gone afterwards."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(url, timeout=5).close()
                break
            time.sleep(0.1)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("mlflow", "flask", "flask_cors", "huey", "aiohttp", "sqlalchemy"))),
    reason='the server of MLflow is not installed: pip install "dba3c[mlflow-server]"',
)
def test_a_real_mlflow_server_gets_the_whole_run(make_up_run, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    run, url = (
        make_up_run(seconds=30, noted="as many lines as events"),
        f"http://127.0.0.1:{free_port()}",
    )
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/store.db", "--artifacts-destination", str(tmp_path / "a")]
    where = ["--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--workers", "1"]
    with serving([sys.executable, "-m", "mlflow", "server", *store, *where], f"{url}/health", tmp_path / "log"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        assert export(run.path, "mlflow") == 3
        check_mlflow(MlflowClient(url))
    assert not (run.path / "exports" / "mlflow.db").exists()
