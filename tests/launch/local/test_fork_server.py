"""Processes forked from one that has imported what they need: whose they are, how they end, what they share."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from dba3c.errors import RUN_BROKEN_EXIT, UserError
from launch.local.child import Child
from launch.local.fork_server import RETURNED, ForkServer
from tests.launch.local.supervised import LONG_S
from tests.waiting import wait_until

HERE = "tests.launch.local.forked"
"""What is forked."""


@pytest.fixture
def forked(tmp_path: Path) -> Callable[..., int]:
    """Forks `main` of `tests.launch.local.forked`, whose output is in ``said``; the pid."""

    def fork(server: ForkServer, *words: str) -> int:
        with (tmp_path / "said").open("ab") as output:
            return server.fork(f"{HERE}:main", words, output.fileno(), signal.SIGTERM)

    return fork


def test_what_is_forked_is_a_child_of_who_asked_with_its_exit_code_or_signal(forked: Callable[..., int]) -> None:
    with ForkServer([HERE]) as server:
        first, second = forked(server, "exit", "7"), forked(server, "wait")
        assert [psutil.Process(pid).ppid() for pid in (first, second)] == [os.getpid()] * 2
        assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 7
        os.kill(second, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == -signal.SIGKILL


def test_the_end_of_a_child_is_told_where_an_ignored_sigchld_takes_its_exit_code(tmp_path: Path) -> None:
    ended: Future[int] = Future()
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with ForkServer([HERE]) as server:
            Child(server, f"{HERE}:main", ["exit", "0"], tmp_path / "said", ended.set_result)
            assert ended.result(LONG_S) == RUN_BROKEN_EXIT
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize(("word", "code"), [("exit", 0), ("leave-early", RUN_BROKEN_EXIT)])
def test_only_a_process_whose_main_has_returned_has_ended_well(word: str, code: int, tmp_path: Path) -> None:
    ended: Future[int] = Future()
    with ForkServer([HERE]) as server:
        child = Child(server, f"{HERE}:main", [word, "0"], tmp_path / "said", ended.set_result)
        assert ended.result(LONG_S) == code
    told = "something in it has ended the process with exit code 0"
    assert child.tail().splitlines()[-1:] == ([told] if code else [])


def test_an_error_ends_a_forked_process_as_it_would_any_other(forked: Callable[..., int], tmp_path: Path) -> None:
    with ForkServer([HERE]) as server:
        assert os.waitstatus_to_exitcode(os.waitpid(forked(server, "exit", "seven"), 0)[1]) == 1
    assert (tmp_path / "said").read_text().splitlines()[-1].startswith("ValueError: ")


def test_a_forked_process_ends_as_any_other_but_is_not_taken_apart(forked: Callable[..., int], tmp_path: Path) -> None:
    with ForkServer([HERE]) as server:
        assert os.waitstatus_to_exitcode(os.waitpid(forked(server, "leave"), 0)[1]) == 7
    assert (tmp_path / "said").read_text().splitlines() == ["a thread has ended", "said at exit"]


def test_all_forks_share_what_was_imported_once_and_have_the_given_environment(
    forked: Callable[..., int], tmp_path: Path
) -> None:
    with ForkServer([HERE], {**os.environ, "DBA3C_TEST": "given"}) as server:
        for _ in range(2):
            os.waitpid(forked(server, "say"), 0)
    first, second = (tmp_path / "said").read_text().splitlines()
    assert first == second
    assert first.split()[1:] == ["given", "say"]
    assert first.split()[0] != str(os.getpid())


def test_a_forked_process_is_shown_with_its_own_words_and_leads_its_own_session(forked: Callable[..., int]) -> None:
    with ForkServer([HERE]) as server:
        pid = forked(server, "wait", "--role", "worker", "--rank", "3")
        shown = [word for word in psutil.Process(pid).cmdline() if word]
        assert shown[1:] == ["-m", HERE, "wait", "--role", "worker", "--rank", "3"]
        assert os.getsid(pid) == os.getpgid(pid) == pid
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_lost_fork_server_costs_no_process_and_is_started_again(forked: Callable[..., int]) -> None:
    with ForkServer([HERE]) as server:
        first = forked(server, "wait")
        lost = psutil.Process(server._process.pid)
        lost.kill()
        second = forked(server, "wait")
        assert psutil.Process(first).status() != psutil.STATUS_ZOMBIE
        for pid in (first, second):
            os.kill(pid, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    wait_until(lambda: not lost.is_running(), "the lost one to be gone")


def test_only_while_it_forks_does_a_launcher_adopt_strangers(forked: Callable[..., int]) -> None:
    """A user's notebook keeps what it was: the tests' own process adopts orphans before and after."""
    with ForkServer([HERE]) as server:
        os.waitpid(forked(server, "exit", "0"), 0)
        pid = forked(server, "as-a-launcher")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == RETURNED


def test_what_cannot_be_imported_is_one_line(forked: Callable[..., int]) -> None:
    server = ForkServer(["no_such_module"], import_timeout_s=200)
    with server, pytest.raises(UserError, match="No module named 'no_such_module'"):
        forked(server, "exit", "0")


def test_a_fork_server_needs_no_folder_to_write_in_nor_what_a_python_built_for_an_old_libc_lacks(
    forked: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "_get_default_tempdir", nowhere)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with ForkServer([], import_timeout_s=200) as server:
        assert os.waitstatus_to_exitcode(os.waitpid(forked(server, "exit", "3"), 0)[1]) == 3


def test_imports_that_hang_are_one_line(forked: Callable[..., int], tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    hangs = f"import pathlib, signal\npathlib.Path({str(begun)!r}).touch()\nsignal.pause()\n"
    (tmp_path / "hangs_for_ever.py").write_text(hangs)
    server = ForkServer(["hangs_for_ever"], {**os.environ, "PYTHONPATH": str(tmp_path)}, import_timeout_s=0.2)
    with server:
        wait_until(begun.exists, "the import to begin")
        with pytest.raises(UserError, match="^hangs_for_ever: not imported within 0.2 s$"):
            forked(server, "exit", "0")
