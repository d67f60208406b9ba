"""A made-up study for the tests of this folder."""

import pytest

from dba3c.studies.study import Study, StudyPoint
from tests.dba3c.metrics.made_up_run import CONFIG, made_up_run


def config_of(seed, stop_score=30.0, stop_games=50, **others):
    return {**CONFIG, "run": {"stop_score": stop_score, "stop_games": stop_games, "seed": seed}, **others}


@pytest.fixture
def make_up_study(tmp_path, monkeypatch):
    """make_up_study(workers, seeds, seconds, not_run=0, **stop): a scaling study of a point for each number of workers.

    The first `not_run` of its runs are not there; `stop` goes to `config_of`.
    """

    def make(workers, seeds, seconds, not_run=0, **stop):
        points = tuple(StudyPoint(name=f"workers-{n}", words=("breakout",), x=n) for n in workers)
        made, folder = Study(kind="scaling", points=points, seeds=seeds, x_name="workers"), tmp_path / "study"
        made.save(folder)
        for run in list(made.runs(folder))[not_run:]:
            config = config_of(run.seed, **stop)
            made_up_run(run.folder, monkeypatch, seconds=seconds, workers=int(run.point.x), config=config)
        return folder

    return make
