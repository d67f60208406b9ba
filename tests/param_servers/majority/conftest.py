"""`start`: a run of so many ranks."""

import pytest

from tests.param_servers.majority.ranks import Run


@pytest.fixture
def start(board):
    runs = []

    def begin(size, **settings):
        runs.append(Run(board, size, **settings))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()
