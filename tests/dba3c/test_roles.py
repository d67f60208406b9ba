"""How processes find each other, and learn that there is nobody to be found any more."""

import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dba3c import roles
from dba3c.assembly.exchanges import server
from dba3c.central.actor import actor
from dba3c.config import TrainConfig, replace_options
from dba3c.errors import UserError
from dba3c.roles import RunProcess
from dba3c.runs import host_facts
from dba3c.runs.folder import RunFolder
from dba3c.workers import worker
from param_servers.errors import ConfigError, RunBroken, RunStopped, Superseded
from param_servers.lanes import Lane


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "rendezvous").mkdir()
    folder = RunFolder(tmp_path)
    folder.begin_life()
    return folder


def process_of(folder: RunFolder, rank: int = 0) -> RunProcess:
    return RunProcess(folder, TrainConfig(), rank, incarnation=0)


def test_an_address_is_known_once_it_is_published(folder: RunFolder) -> None:
    resolve = process_of(folder).address_until_the_end("server")
    assert resolve(0) is None
    process_of(folder).publisher("server")("127.0.0.1", 4000)
    assert resolve(0) == ("127.0.0.1", 4000)


def test_the_address_of_a_newer_process_is_not_replaced_by_that_of_the_one_it_has_replaced(folder: RunFolder) -> None:
    RunProcess(folder, TrainConfig(), 0, incarnation=250).publisher("server")("127.0.0.1", 4000)
    with pytest.raises(Superseded, match="a newer server-0, incarnation 250, listens elsewhere"):
        RunProcess(folder, TrainConfig(), 0, incarnation=1).publisher("server")("127.0.0.1", 5000)
    assert process_of(folder).address_of("server")(0) == ("127.0.0.1", 4000)


def test_an_address_that_is_known_is_not_written_again_and_a_disk_that_refuses_then_costs_nothing(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise UserError("cannot write rendezvous/server-0.json: No space left on device")

    publish = process_of(folder).publisher("server")
    publish("127.0.0.1", 4000)
    monkeypatch.setattr(RunFolder, "publish", refused)
    publish("127.0.0.1", 4000)
    assert capsys.readouterr().err == ""
    (folder.rendezvous / "server-0.json").unlink()
    publish("127.0.0.1", 4000)
    assert "who asks where this server listens may not learn it" in capsys.readouterr().err


def test_who_joins_a_run_that_was_stopped_hears_the_reason(folder: RunFolder) -> None:
    folder.request_stop("score 300 reached")
    with pytest.raises(RunStopped, match="score 300 reached"):
        process_of(folder).address_until_the_end("server")(0)


def test_who_joins_a_run_that_broke_hears_why(folder: RunFolder) -> None:
    folder.end_life("failed", "server 1 did not come within 30 s")
    with pytest.raises(RunBroken, match=r"ended \(failed\): server 1 did not come"):
        process_of(folder).address_until_the_end("server")(0)


def test_a_loopback_address_of_another_host_is_refused_not_dialled(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_of(folder).publisher("server")("127.0.0.1", 7000)
    process_of(folder, 1).publisher("server")("10.0.0.1", 7000)
    assert process_of(folder).address_of("server")(0) == ("127.0.0.1", 7000)
    monkeypatch.setattr(host_facts, "namespace", lambda kind: "another boot of another host")
    assert process_of(folder).address_of("server")(1) == ("10.0.0.1", 7000)
    with pytest.raises(ConfigError, match=r"server 0 listens on 127.0.0.1, which is loopback on .* \(--interface\)"):
        process_of(folder).address_until_the_end("server")(0)


def test_an_address_is_published_as_soon_as_a_full_disk_takes_it_and_another_refusal_is_told_at_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, refusals = RunFolder.publish, iter([errno.ENOSPC, errno.EDQUOT])

    def on_a_full_disk(self: RunFolder, name: str, address: dict[str, object]) -> None:
        if (refused := next(refusals, None)) is not None:
            raise UserError(f"cannot write {name}.json") from OSError(refused, os.strerror(refused))
        publish(self, name, address)

    monkeypatch.setattr(roles, "PUBLISH_AGAIN_S", 0.0)
    monkeypatch.setattr(RunFolder, "publish", on_a_full_disk)
    process_of(folder).publisher("server")("127.0.0.1", 4000)
    assert (folder.published("server-0") or {})["port"] == 4000
    refusals = iter([errno.EACCES])
    with pytest.raises(UserError, match="cannot write"):
        process_of(folder).publisher("server")("127.0.0.1", 5000)


def away(*_: object, **__: object) -> str:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("address_of", [RunProcess.address_of, RunProcess.address_until_the_end])
def test_a_folder_that_cannot_be_read_now_is_no_address_yet(
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    address_of: Callable[[RunProcess, str], Callable[[int], object]],
) -> None:
    process_of(folder).publisher("server")("127.0.0.1", 4000)
    resolve = address_of(process_of(folder), "server")
    for what in ("read_text", "stat"):
        with monkeypatch.context() as nfs:
            nfs.setattr(Path, what, away)
            assert resolve(0) is None
    assert resolve(0) == ("127.0.0.1", 4000)


def test_a_stop_that_cannot_be_read_now_is_none_yet(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    process_of(folder).publisher("server")("127.0.0.1", 4000)
    resolve = process_of(folder).address_until_the_end("server")
    with monkeypatch.context() as nfs:
        nfs.setattr(RunFolder, "stop_reason", away)
        assert resolve(0) is None
    assert resolve(0) == ("127.0.0.1", 4000)


def test_an_actor_whose_folder_cannot_be_read_now_hears_from_it_later_that_the_run_is_over(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_reason, looks = RunFolder.stop_reason, iter([away, away])
    monkeypatch.setattr(RunFolder, "stop_reason", lambda self: next(looks, stop_reason)(self))
    folder.request_stop("Ctrl-C")
    central = replace_options(TrainConfig(), env_id="CartPole-v1", mode="central", algorithm="vtrace", num_workers=1)
    assert actor(RunProcess(folder, central, 0, incarnation=0)) == "Ctrl-C"


def test_no_two_processes_of_a_run_draw_alike_from_the_generators_that_all_code_shares(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: object) -> str:
        return f"{np.random.random()} {random.random()} {torch.rand(1)}"

    monkeypatch.setattr(roles, "resolve_name", lambda name: draw)
    processes = [(role, process_of(folder, rank)) for role in ("worker", "actor", "evaluator") for rank in range(6)]
    drawn = [roles.play(*each) for each in processes]
    for role, process in processes:
        roles.seed_own_code(role, replace(process, lane=1))
        drawn.append(draw())
    kinds = [set(numbers) for numbers in zip(*(each.split(" ", 2) for each in drawn), strict=True)]
    assert [len(numbers) for numbers in kinds] == [36, 36, 36]
    assert [roles.play(*each) for each in processes] == drawn[:18]


def test_the_lanes_of_a_worker_draw_differently_though_they_are_forks(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def make(*_: object) -> None:
        drawn.append((np.random.random(), float(torch.rand(1))))
        raise RunStopped("drawn")

    monkeypatch.setattr(worker, "make_vector_environment", make)
    for lane in (0, 1):
        roles.seed_own_code("worker", process_of(folder))  # with which a fork begins
        with pytest.raises(RunStopped):
            worker._live(replace(process_of(folder), lane=lane), Lane(lane, 2, ()))
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]


TWO_SERVERS = replace_options(
    TrainConfig(), env_id="CartPole-v1", network="mlp", exchange="servers", num_servers=2, num_workers=2
)


def test_a_server_that_never_met_server_0_ends_with_it(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", TWO_SERVERS.to_json()) as run:
        run.request_stop("SIGINT")
        run.note_left("server", 0)
        assert server(RunProcess(run, TWO_SERVERS, rank=1, incarnation=0)) == "SIGINT"


def test_a_server_that_never_met_a_server_0_that_could_not_go_on_has_failed_too(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", TWO_SERVERS.to_json()) as run:
        run.request_stop("worker 0 did not come", failed=True)
        run.note_left("server", 0)
        with pytest.raises(RunBroken, match="worker 0 did not come"):
            server(RunProcess(run, TWO_SERVERS, rank=1, incarnation=0))
