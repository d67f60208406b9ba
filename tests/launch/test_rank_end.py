"""A rank whose processes have ended waits for the end of its run, and of that alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from dba3c.runs.folder import RunFolder
from launch import rank as launch_rank
from tests.waiting import wait_until


class Idle:
    """The supervisor of a rank whose processes have ended, and what it hears of the run's end."""

    def __init__(self) -> None:
        self.looks, self.well = 0, Future[bool]()

    def pids(self) -> dict[str, int]:
        self.looks += 1
        return {}

    def run_has_ended(self, well: bool) -> None:
        self.well.set_result(well)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    monkeypatch.setattr(launch_rank, "END_LOOK_S", 0.01)
    return partial(launch_rank._told_of_the_end, first_node=None)


def test_a_rank_without_processes_does_not_wait_for_a_launch_whose_lock_nobody_holds(
    tmp_path: Path, told: Callable[..., AbstractContextManager[None]]
) -> None:
    idle, folder = Idle(), RunFolder.create(tmp_path / "run", {}, launch_id="1")
    with told(idle, folder, "1", gone_s=0.0):
        wait_until(lambda: idle.looks > 2, "looks at a run that goes on")
        assert not idle.well.done()
        folder.release()
        assert not idle.well.result(60)


def test_a_rank_ends_when_its_run_goes_on_with_a_further_life(
    tmp_path: Path, told: Callable[..., AbstractContextManager[None]]
) -> None:
    idle = Idle()
    RunFolder.create(tmp_path / "run", {}, launch_id="1").release()
    folder = RunFolder.launch(tmp_path / "run", None, resume=True, launch_id="2")
    with folder, told(idle, folder, "1", gone_s=1e9):
        assert not idle.well.result(60)


@pytest.mark.parametrize("spoil", [lambda meta: meta.write_text("{"), Path.unlink], ids=["torn", "away"])
def test_a_meta_file_that_cannot_be_read_for_a_while_is_no_end_of_the_run(
    tmp_path: Path, told: Callable[..., AbstractContextManager[None]], spoil: Callable[[Path], object]
) -> None:
    idle = Idle()
    with RunFolder.create(tmp_path / "run", {}, launch_id="1") as folder:
        whole = folder.meta()
        spoil(folder.path / "meta.json")
        with told(idle, folder, "1", gone_s=0.0):
            wait_until(lambda: idle.looks > 2, "looks at what cannot be read")
            assert not idle.well.done()
            folder._write_meta(whole)
            folder.end_life("finished", "score reached")
            assert idle.well.result(60)
