"""A made-up run for every test of the monitor."""

import pytest

from dba3c.metrics.writer import MetricsWriter
from tests.dba3c.metrics.made_up_run import START_S, made_up_run, set_lives


@pytest.fixture
def make_up_run(tmp_path, monkeypatch):
    """make_up_run(seconds=30, ...): a run folder in tmp_path / "run"."""

    def make(**how):
        return made_up_run(tmp_path / "run", monkeypatch, **how)

    return make


@pytest.fixture
def rolled_back(make_up_run):
    """A run whose first life came to step 300, and whose second went on from step 250."""
    run = make_up_run(seconds=30)
    set_lives(run, (START_S, START_S + 30, 2), (START_S + 100, None, 2))
    writer = MetricsWriter(run, "worker", 0)
    writer.record_step(251, {"accepted": 1, "loss_total": 0.125})
    writer.close()
    return run
