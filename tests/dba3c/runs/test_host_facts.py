"""What a run notes of where its code came from, and of where it ran."""

import os
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("cpuinfo", "told"),
    [
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\n\nmodel\t: 9\n",
         "AMD EPYC (family 26, model 2, stepping 1)"),
        ("CPU implementer\t: 0x41\n", "aarch64"),
        (None, "aarch64"),
    ],
)  # fmt: skip
def test_processors_of_one_name_are_told_apart(
    cpuinfo: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_facts, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(host_facts.platform, "processor", lambda: "aarch64")
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert host_facts.host()["processor"] == told


ASKS = f"{sys.executable} -c 'from dba3c.runs import host_facts; print(host_facts.launcher_pid())'"


@pytest.mark.parametrize("sign", host_facts.RANK_SIGNS)
def test_scripts_around_a_rank_are_not_taken_for_its_launcher(sign: str) -> None:
    scripts = ["sh", "-c", f'sh -c "{ASKS}; true"; true']
    said = subprocess.run(scripts, env={**os.environ, sign: "0"}, capture_output=True, text=True, check=True)
    assert int(said.stdout) == os.getpid()


def test_what_no_launcher_has_started_was_started_by_its_parent() -> None:
    said = subprocess.run(["sh", "-c", f"echo $$; {ASKS}; true"], capture_output=True, text=True, check=True)
    script, launcher = said.stdout.split()
    assert launcher == script


def test_a_launcher_that_cannot_be_asked_is_the_parent(tmp_path: Path) -> None:
    assert host_facts.launcher_pid({"PMI_RANK": "3"}, proc=tmp_path) == os.getppid()
