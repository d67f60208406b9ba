"""A made-up run for every test of the monitor."""

import pytest

from tests.dba3c.metrics.made_up_run import made_up_run


@pytest.fixture
def make_up_run(tmp_path, monkeypatch):
    """make_up_run(seconds=30, ...): a run folder in tmp_path / "run"."""

    def make(**how):
        return made_up_run(tmp_path / "run", monkeypatch, **how)

    return make
