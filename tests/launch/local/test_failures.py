"""How a life ended, as meta.json says it and studies read it."""

from pathlib import Path

import pytest

from dba3c.runs.folder import RunFolder
from launch.cli.runs import stop
from launch.local.failures import outcome


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run", {}, launch_id="1")
    folder.release()
    return folder


def test_a_run_that_its_user_stopped_is_not_finished(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "status", lambda _: "live")
    assert stop([str(folder.path)]) == 0
    assert outcome(0, folder) == ("stopped", "dba3c stop")
    assert outcome(1, folder)[0] == "failed"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("SIGINT", "stopped"), ("score 300 reached", "finished"), ("SIGTERM at worker 3", "stopped")],
)
def test_what_ended_a_run_decides_whether_a_study_goes_on_with_it(
    folder: RunFolder, reason: str, expected: str
) -> None:
    folder.request_stop(reason)
    assert outcome(0, folder) == (expected, reason)


def test_a_run_that_saw_everything_is_finished(folder: RunFolder) -> None:
    assert outcome(0, folder)[0] == "finished"
