"""Real processes, real deaths: the run goes on or ends as declared, says who and why, and breaks no invariant."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from param_servers import line_file
from param_servers.checkpoint import writer
from param_servers.checkpoint.files import Checkpoint, find_newest, load_checkpoint
from param_servers.servers.audit import history
from param_servers.wire.handshake import Hello, Peer, Role, pack_hello
from param_servers.wire.hub import Hub, Rejections
from param_servers.wire.messages import Header, Kind, pack_header
from tests.integration.server_runs import SECRET, Run

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(**settings: Any) -> Run:
        runs.append(Run(tmp_path, **settings))
        return runs[-1]

    yield make
    for run in runs:
        run.clean_up()


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_worker_killed_around_its_push_leaves_the_run_going(make_run: Callable[..., Run], when: str) -> None:
    run = make_run(workers=3, backup=1, numel=1_000_000 if when == "during" else 5000).start(only=[0, 1])
    run.start_worker(2, die=(when, 3))
    run.until("the death", lambda: run.workers[2].exitcode == -signal.SIGKILL)
    run.until("one line about it", lambda: run.messages("worker 2 left"))
    run.more_commits()
    run.start_worker(2)
    run.until("its new life", lambda: run.messages("worker 2 joined (incarnation 1)"))
    run.freeze(run.workers[1])  # a backup worker might come too late every time: now the new one is needed
    run.commits_with(2, 1)
    run.wake(run.workers[1])
    run.stop()
    run.check()


def test_the_others_go_on_without_a_worker_that_never_comes(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=3, step_timeout_s=1.7, join_timeout_s=10)
    run.start_server(0)
    run.start_worker(0)
    run.start_worker(1)
    run.until("both workers", lambda: len(run.messages("joined (incarnation 0)")) == 2)
    run.start_server(1)  # last: from here on all wait for the first step, and for worker 2, which never comes
    run.until("a shrunk step", lambda: run.messages("within 10 s only 2 workers", "averages 2"))
    run.more_commits()
    assert all(worker.exitcode is None for worker in run.workers.values())
    run.stop()
    run.check()


def test_without_backup_the_run_shrinks_and_grows_again(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=3, step_timeout_s=4.0).start()
    run.more_commits()
    run.kill(run.workers[1])
    run.until("a shrunk step", lambda: run.messages("only 2 workers", "averages 2"))
    run.until("two members", lambda: len(run.commits()[-1]["members"]) == 2)
    run.start_worker(1)
    run.commits_with(1, 1)
    run.until("three again", lambda: run.messages("averages 3 gradients again"))
    run.stop()
    run.check()


def test_a_worker_that_freezes_is_expelled_and_counts_again_when_it_wakes(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=2, step_timeout_s=4.0).start()
    run.more_commits()
    run.freeze(run.workers[1])
    run.until("its expulsion", lambda: run.messages("worker 1 expelled: no gradient for step", "within 4 s"))
    run.more_commits()
    before = len(run.commits())
    run.wake(run.workers[1])
    run.until("it counts", lambda: any(len(line["members"]) == 2 for line in run.commits()[before:]))
    run.stop()
    run.check()


def test_a_frozen_backup_worker_delays_nobody(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=3, backup=1, step_timeout_s=300.0, numel=500_000).start()
    run.more_commits()
    run.freeze(run.workers[2])
    run.more_commits(60)  # a backlog of parameters would be 120 MB
    run.wake(run.workers[2])
    before = len(run.commits())
    run.freeze(run.workers[1])  # now the one that woke is needed
    run.until("it counts", lambda: any(m[0] == 2 for line in run.commits()[before:] for m in line["members"]))
    run.wake(run.workers[1])
    run.stop()
    run.check()


@pytest.mark.parametrize("shard", [1, 0])
def test_a_killed_server_comes_back_and_all_go_on_from_one_step(make_run: Callable[..., Run], shard: int) -> None:
    run = make_run(workers=2).start()
    run.until("a checkpoint", lambda: run.messages("checkpoint of step", "written"))
    saved = load_checkpoint(find_newest(run.folder / "checkpoints")).step  # type: ignore[arg-type]
    run.kill(run.servers[shard])
    committed, earlier = run.commits()[-1]["step"] + 1, sum(line["kind"] == "rollback" for line in run.audit())
    run.start_server(shard)
    run.more_commits(10)
    first = [line for line in run.audit() if line["kind"] == "rollback"][earlier]
    assert saved <= first["step"] <= committed  # no more is lost than what was committed since the newest checkpoint
    run.stop()
    run.check()
    assert [process.exitcode for process in run.workers.values()] == [0, 0]


def test_a_frozen_server_is_not_blamed_on_the_workers(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=2, step_timeout_s=3.0).start()
    run.more_commits()
    run.freeze(run.servers[1])
    run.until("the server's name", lambda: run.messages("server 1 is silent"))
    run.wake(run.servers[1])
    run.until("a new term", lambda: sum(line["kind"] == "rollback" for line in run.audit()) >= 2)
    assert not run.messages("expelled")
    run.more_commits()
    run.stop()
    run.check()


def test_when_server_0_freezes_all_others_end_within_the_stated_times_and_name_it(
    make_run: Callable[..., Run],
) -> None:
    run = make_run(workers=2, step_timeout_s=2.0, join_timeout_s=10.0, reconnect_timeout_s=1.0).start()
    run.until("a checkpoint", lambda: run.messages("checkpoint of step", "written"))
    run.freeze(run.servers[0])
    run.servers[1].join(30)  # two step timeouts
    assert run.servers[1].exitcode == 3
    assert run.said("server", 1)[-1]["message"] == "PeerLost: server 1: server 0 is silent for 4 s"
    for rank, worker in run.workers.items():  # its link to server 1 has ended: it dials that one until it gives up
        worker.join(40)
        assert worker.exitcode == 3
        assert run.said("worker", rank)[-1]["message"].startswith(
            f"PeerLost: worker {rank} cannot reach server 1 for 8 s"
        )


def test_the_only_server_that_freezes_is_waited_for_as_long_as_stated(make_run: Callable[..., Run]) -> None:
    patience = {"join_timeout_s": 5.0, "reconnect_timeout_s": 1.0, "checkpoint_timeout_s": 1.0}
    run = make_run(servers=1, workers=2, step_timeout_s=2.0, **patience).start()
    run.more_commits()
    run.freeze(run.servers[0])
    for rank, worker in run.workers.items():
        worker.join(40)
        assert worker.exitcode == 3
        (line,) = [line["message"] for line in run.said("worker", rank) if line.get("event") == "error"]
        assert line.startswith(f"PeerLost: worker {rank} waited 13 s for ")  # 5 + 1 + 2 × 1 + 5
        assert line.endswith("silent: server 0, though connected")


def test_with_all_workers_dead_the_run_ends_as_declared(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=2, step_timeout_s=4.0).start()
    run.more_commits()
    for worker in run.workers.values():
        run.kill(worker)
    for server in run.servers.values():
        server.join(30)
        assert server.exitcode == 3
    (line,) = [line["message"] for line in run.said("server", 0) if line["event"] == "error"]
    assert "gradients, but within 4 s only 0 workers gave one, not workers 0, 1" in line
    run.check()  # the last checkpoint is of the last step
    assert run.messages(f"checkpoint of step {run.commits()[-1]['step'] + 1} written")


def test_with_fewer_than_min_workers_the_run_ends_when_one_worker_is_lost(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=2, step_timeout_s=4.0, min_workers=2).start()
    run.more_commits()
    run.kill(run.workers[0])
    run.servers[0].join(30)
    assert run.servers[0].exitcode == 3
    run.workers[1].join(30)
    assert "RunBroken" in run.said("worker", 1)[-1]["message"]
    run.servers[1].join(30)
    run.check()


def test_strangers_and_bad_frames_harm_nobody(make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rejections, "EVERY_S", 1e9)  # in the servers
    run = make_run(workers=2).start()
    run.more_commits()
    address = run.address(0)
    assert address is not None
    hello = pack_hello(Hello(Role.WORKER, 0, 99, 0, run.plan.fingerprint), bytes(32))
    for data in (b"\x16\x03\x01" * 40, hello + bytes(32), pack_header(Header(Kind.STOP)) * 3):
        with socket.create_connection(address, timeout=10) as stranger, suppress(ConnectionResetError):
            stranger.sendall(data)
            while stranger.recv(1 << 12):
                pass
    run.until("a line", lambda: run.messages("stranger") or run.messages("secret"))
    run.more_commits()
    run.stop()
    assert len(run.messages("stranger") + run.messages("secret")) == 1  # the others would be counted later
    run.check()


def test_a_connection_that_died_without_a_word_is_noticed(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=3, backup=1, step_timeout_s=2.0).start(only=[0, 1])
    run.more_commits()
    address = run.address(0)
    assert address is not None
    ghost = Hub(SECRET, lambda peer, header: memoryview(bytearray(header.length)))
    ghost.dial(address, Hello(Role.WORKER, 2, 0, 0, run.plan.fingerprint))
    run.until("the ghost", lambda: ghost.poll(0.02) is not None and ghost.connected(Peer(Role.SERVER, 0)))
    run.until("its welcome", lambda: run.messages("worker 2 joined"))
    (link,) = ghost._links.values()
    try:  # in repair mode the kernel forgets a connection without telling the other side: a host that lost power
        link.sock.setsockopt(socket.IPPROTO_TCP, 19, 1)
    except OSError:
        ghost.shut()
        pytest.skip("needs CAP_NET_ADMIN")
    ghost.shut()
    run.until("its end", lambda: run.messages("worker 2 left"), timeout_s=20.0)
    run.more_commits()
    run.stop()
    run.check()


def test_a_disk_that_is_slow_during_recovery_ends_no_run(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host_of_slow_disk = tmp_path / "host-of-slow-disk"
    host_of_slow_disk.touch()

    def slowly(path: Path) -> Checkpoint:
        if host_of_slow_disk.read_text() == str(os.getpid()):
            time.sleep(7)  # not for a condition: the fault is that the disk takes longer than two step timeouts
        return load_checkpoint(path)

    monkeypatch.setattr(writer, "load_checkpoint", slowly)  # in the servers, which are forked from here
    run = make_run(workers=2, step_timeout_s=3.0).start()
    run.until("a checkpoint", lambda: run.messages("checkpoint of step", "written"))
    host_of_slow_disk.write_text(str(run.servers[0].pid))
    run.kill(run.servers[1])
    run.start_server(1)
    run.until("a new term", lambda: sum(line["kind"] == "rollback" for line in run.audit()) == 2)
    run.more_commits()
    run.stop()
    assert not run.messages("silent")
    assert [process.exitcode for process in [*run.servers.values(), *run.workers.values()]] == [0] * 4
    run.check()


def test_a_full_disk_costs_no_server_and_the_log_is_whole_when_there_is_room_again(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "BACKLOG_LINES", 1 << 40)  # in the servers: however many steps the checkpoints take
    run = make_run(workers=2)
    (run.folder / "audit.jsonl").symlink_to("/dev/full")
    run.start()
    run.until("training on a full disk", lambda: len(run.messages("checkpoint of step", "written")) >= 3)
    assert len(run.messages("audit.jsonl", "No space left on device", "training goes on")) == 1
    (run.folder / "audit.jsonl").unlink()
    run.more_commits()
    run.stop()
    run.check()
    assert [server.exitcode for server in run.servers.values()] == [0, 0]


def test_a_run_with_two_lives_and_a_torn_log_is_bit_equal_to_its_replay(make_run: Callable[..., Run]) -> None:
    run = make_run(workers=2).start()
    run.more_commits(8)
    for process in [*run.workers.values(), *run.servers.values()]:
        run.kill(process)  # so that life 1 goes back behind what life 0 has committed
    with (run.folder / "audit.jsonl").open("a") as file:
        file.write('{"kind": "commit", "ste')
    (run.folder / "stop").touch()
    run.resume().commits_with(1, 0)
    run.until("steps of life 1", lambda: sum(line["life"] == 1 for line in run.commits()) > 5)
    run.stop()
    run.check()
    keys = [(line["life"], *member) for line in history(run.audit()) for member in line["members"]]
    assert len(set(keys)) == len(keys) and {key[0] for key in keys} == {0, 1}


def test_a_run_that_is_suspended_whole_goes_on_where_it_was(make_run: Callable[..., Run]) -> None:
    """As by `scontrol suspend`: nobody was silent, everybody was stopped."""
    suspended = make_run(step_timeout_s=3.5).start()
    suspended.more_commits()
    everybody = [*suspended.servers.values(), *suspended.workers.values()]
    for process in everybody:
        suspended.freeze(process)
    time.sleep(8)  # not for a condition: the fault is that this much time is lost
    for process in everybody:
        suspended.wake(process)
    suspended.more_commits()
    suspended.stop()
    assert not suspended.messages("silent") and not suspended.messages("expelled")
    suspended.check()
