"""The log from which a run can be checked: every commit, roll-back and expulsion, one JSON object a line.

    {"kind": "commit", "life": 0, "term": 1, "step": 7, "members": [[0, 0, 8], [2, 1, 3]], "data_points": 1280, ...}
    {"kind": "rollback", "life": 0, "term": 2, "step": 5, "data_points": 960}

`members` are (worker, incarnation, sequence), unique in one life of the run: a run that is resumed goes on in the same
file under the next life. Whoever kept the gradients can repeat the run over all its lives in one process: each commit
of `history` is a `Shard.apply` of its members' gradients, in ascending order.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from param_servers.errors import ParamServersError
from param_servers.line_file import LineFile, whole_lines
from param_servers.servers.step_commits import Commit


class AuditLog:
    """Appends to one file; each line is in the kernel's hands before the decision it records is sent.

    Unless the disk refuses: then training goes on and lines wait (see `LineFile`). What had to be dropped is told at
    the end, and leaves a gap between steps: that is no history to replay.

    Args:
        life: which life of the run this is, 0 for the first.
        warn: called with one line when the disk refuses, and with the number of lost lines at the end.
    """

    def __init__(self, path: Path, life: int = 0, warn: Callable[[str], None] = lambda line: None) -> None:
        self.life = life
        self._file = LineFile(path, warn)

    def commit(self, commit: Commit, learning_rate: float) -> None:
        self.write(
            "commit",
            term=commit.term,
            step=commit.step,
            members=[row[:3] for row in commit.members],
            data_points_before=commit.data_points_before,
            data_points=commit.data_points,
            learning_rate=learning_rate,
            **({"staleness": list(commit.staleness)} if any(commit.staleness) else {}),  # async only
        )

    def write(self, kind: str, **fields: Any) -> None:
        """Any other line: rollback, expelled, shrunk, grown, stopped."""
        self._file.write([{"kind": kind, "life": self.life, **fields}])

    def close(self) -> None:
        self._file.close()


def read_audit(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log; a last line cut off by a crash is left out.

    Raises:
        ParamServersError: another line is no record.
        OSError: the file cannot be read.
    """
    for number, text in enumerate(whole_lines(path), start=1):
        try:
            line = json.loads(text)
            line["kind"]
        except (ValueError, TypeError, KeyError) as error:
            raise ParamServersError(f"{path}, line {number} is no record: {text[:60]!r}") from error
        yield line


def history(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The commits that count, by step: a roll-back undoes what came after its step."""
    commits: list[dict[str, Any]] = []
    for line in lines:
        if line["kind"] == "rollback":
            commits = [commit for commit in commits if commit["step"] < line["step"]]
        elif line["kind"] == "commit":
            commits.append(line)
    return commits
