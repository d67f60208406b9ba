"""The first failure of a run is not lost among 64 ranks: it is noted in the run folder, and printed last.

``python -m launch.failures RUN`` prints it: the last line of our Slurm scripts when a run ended badly.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.processes import describe_exit


@dataclass(frozen=True)
class Failure:
    """What is known of a process that ended the run."""

    time_s: float
    role: str
    rank: int
    node: str
    code: int
    tail: str


def note_failure(run_dir: Path, role: str, rank: int, code: int, tail: str, node: str | None = None) -> None:
    """Write ``logs/failure-ROLE-RANK.json``; an older one of the same process is replaced."""
    failure = Failure(time.time(), role, rank, node or socket.gethostname(), code, tail)
    path = run_dir / "logs" / f"failure-{role}-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(failure)) + "\n")


def failures(run_dir: Path, since_s: float = 0.0) -> list[Failure]:
    """The failures noted since then, the first first; a torn note is passed over."""
    found = []
    for path in sorted((run_dir / "logs").glob("failure-*.json")):
        try:
            failure = Failure(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if failure.time_s >= since_s:
            found.append(failure)
    return sorted(found, key=lambda failure: failure.time_s)


def report(run_dir: Path, since_s: float = 0.0) -> str:
    """For people: who failed, and the first one's traceback as the last thing. "" when none did."""
    found = failures(run_dir, since_s)
    if not found:
        return ""
    lines = [f"{f.role} {f.rank} on {f.node}: {describe_exit(f.code)}" for f in found]
    return "\n".join(
        [f"{len(found)} failed, the first first:", *lines, f"the end of the log of {lines[0]}", found[0].tail]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report of a run folder; 1 when there is one."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) not in (1, 2):
        print("usage: python -m launch.failures RUN [SINCE_UNIX_SECONDS]", file=sys.stderr)
        return 2
    text = report(Path(arguments[0]), float(arguments[1]) if len(arguments) == 2 else 0.0)
    if text:
        print(text, file=sys.stderr)
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main())
