from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launch.slurm import controller

Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a shell script in the place of one of Slurm's programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(controller, "REQUEUE_PAUSE_S", 0.0)
    monkeypatch.setattr(controller, "LOOK_TIMEOUT_S", 60.0)

    def write(name: str, body: str) -> None:
        (programs / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {tmp_path}/asked\n{body}\n')
        (programs / name).chmod(0o755)

    return write


def asked(tmp_path: Path) -> list[str]:
    path = tmp_path / "asked"
    return path.read_text().splitlines() if path.exists() else []
