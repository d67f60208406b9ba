"""What a run notes of where its code came from."""

import subprocess
from pathlib import Path

import pytest

from dba3c.runs import host_facts


def test_the_commit_is_ours_and_not_that_of_a_repository_which_this_is_installed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / ".venv" / "host_facts.py"
    source.parent.mkdir()
    source.touch()
    monkeypatch.setattr(host_facts, "__file__", str(source))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message=theirs"]):
        subprocess.run([*git, *words], check=True)
    assert host_facts.git_commit() == {}
    subprocess.run([*git, "add", str(source)], check=True)
    assert host_facts.git_commit()["dirty"] is True
