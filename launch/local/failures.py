"""The first failure of a run is not lost among 64 ranks: it is noted in the run folder, and printed last.

A refusal, by which a run does not begin, is noted too: the ranks that wait for their chief stop waiting.

``python -m launch.local.failures RUN`` prints it: the last line of our Slurm scripts when a run ended badly.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dba3c.errors import UserError, warn_on_stderr
from dba3c.runs.atomic_files import write_atomically
from dba3c.runs.run_folder import RunFolder
from launch.local.processes import describe_exit
from param_servers.errors import ConfigError

REFUSED = ".refused.json"


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
    """Write ``logs/failure-ROLE-RANK.json``; an older one of the same process is replaced. What the disk refuses is
    said on stderr: it is no reason not to end the run well."""
    failure = Failure(time.time(), role, rank, node or socket.gethostname(), code, tail)
    path = run_dir / "logs" / f"failure-{role}-{rank}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(failure)) + "\n")
    except OSError as error:
        warn_on_stderr(f"cannot write {path}: {error.strerror}")


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


@contextlib.contextmanager
def telling_refusals(run_dir: Path, launch_id: str) -> Iterator[None]:
    """Inside, the chief begins a run: why it cannot is noted for the ranks that wait for it, before it is raised.

    What cannot be noted, each rank finds out for itself: `RunFolder.refuse_unusable`.
    """
    path = run_dir / REFUSED
    with contextlib.suppress(OSError):
        if refusal(run_dir, launch_id):
            path.unlink(missing_ok=True)  # of an earlier try
    try:
        yield
    except Exception as error:
        why = str(error) if isinstance(error, (UserError, ConfigError)) else f"{type(error).__name__}: {error}"
        try:
            RunFolder.refuse_unusable(run_dir)
            write_atomically(path, json.dumps({"launch_id": launch_id, "why": why, "time_s": time.time()}) + "\n")
        except (OSError, UserError) as silenced:
            print(f"the ranks that wait cannot be told, and look for themselves: {silenced}", file=sys.stderr)
        raise


def refusal(run_dir: Path, launch_id: str | None = None, since_s: float = 0.0) -> str:
    """Why the chief of this launch (None: of any) refused to begin since then; "" where it has not."""
    try:
        noted = json.loads((run_dir / REFUSED).read_text())
        is_ours = launch_id in (None, noted["launch_id"]) and noted["time_s"] >= since_s
        return str(noted["why"]) if is_ours else ""
    except (OSError, ValueError, LookupError, TypeError):  # the next look is soon
        return ""


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
        print("usage: python -m launch.local.failures RUN [SINCE_UNIX_SECONDS]", file=sys.stderr)
        return 2
    text = report(Path(arguments[0]), float(arguments[1]) if len(arguments) == 2 else 0.0)
    if text:
        print(text, file=sys.stderr)
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main())
