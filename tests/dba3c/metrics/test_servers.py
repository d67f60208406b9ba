"""Trackers' real servers on this machine: MLflow's, and TensorBoard's page in a headless browser."""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from dba3c.metrics.monitor import export
from tests.dba3c.metrics.test_clients import check_mlflow

START_TIMEOUT_S = 90.0
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
@pytest.mark.timeout(240)
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("mlflow", "flask", "flask_cors", "huey", "aiohttp", "sqlalchemy"))),
    reason='the server of MLflow is not installed: pip install "dba3c[mlflow-server]"',
)
def test_a_real_mlflow_server_gets_the_whole_run(make_up_run, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    run, url = make_up_run(seconds=30), f"http://127.0.0.1:{free_port()}"
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/store.db", "--artifacts-destination", str(tmp_path / "a")]
    where = ["--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--workers", "1"]
    with serving([sys.executable, "-m", "mlflow", "server", *store, *where], f"{url}/health", tmp_path / "log"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        assert export(run.path, "mlflow") == 3
        check_mlflow(MlflowClient(url))
    assert not (run.path / "exports" / "mlflow.db").exists()


BROWSE_ATTEMPTS = 5


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(BROWSER is None, reason="no headless browser: apt-get install chromium")
def test_tensorboards_page_shows_the_charts_in_a_browser(make_up_run, tmp_path):
    run, port = make_up_run(seconds=30), free_port()
    export(run.path, "tensorboard")
    logs = ["--logdir", str(run.path / "exports" / "tensorboard"), "--load_fast", "false"]
    url = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "tensorboard.main", *logs, "--host", "127.0.0.1", "--port", str(port)]
    with serving(command, url, tmp_path / "log"):
        wait_for_data(f"{url}data/plugin/scalars/tags")
        charts = ("score/mean", "score/max", "score/best", "score/online", "worker-0/score")
        for attempt in range(BROWSE_ATTEMPTS):  # the browser may give the page before its own requests were answered
            page = browse(f"{url}?darkMode=false&tagFilter=score#timeseries", tmp_path / f"attempt-{attempt}")
            if all(chart in page for chart in charts):
                break
    for chart in charts:
        assert chart in page


def wait_for_data(url):
    """TensorBoard answers before it has read its log folder."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while b"score/mean" not in urllib.request.urlopen(url, timeout=10).read():
        assert time.monotonic() < deadline_s, "TensorBoard never read the event file"
        time.sleep(0.1)


def browse(url, tmp_path):
    """The page's DOM after its scripts have run; a picture of it is left in tmp_path/page.png."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,2200",
        f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=20000", f"--screenshot={tmp_path}/page.png",
        "--dump-dom", url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    return done.stdout
