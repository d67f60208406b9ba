"""How processes find each other, and learn that there is nobody to be found any more."""

from pathlib import Path

import pytest

from dba3c.runs.folder import RunFolder
from dba3c.runs.rendezvous import Rendezvous
from param_servers.errors import ConfigError, RunBroken, RunStopped


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "rendezvous").mkdir()
    folder = RunFolder(tmp_path)
    folder.begin_life()
    return folder


def test_an_address_is_known_once_it_is_published(folder: RunFolder) -> None:
    rendezvous = Rendezvous(folder)
    resolve = rendezvous.address_until_the_end("server")
    assert resolve(0) is None
    rendezvous.publisher("server", 0, 0)("127.0.0.1", 4000)
    assert resolve(0) == ("127.0.0.1", 4000)


def test_who_joins_a_run_that_was_stopped_hears_the_reason(folder: RunFolder) -> None:
    folder.request_stop("score 300 reached")
    with pytest.raises(RunStopped, match="score 300 reached"):
        Rendezvous(folder).address_until_the_end("server")(0)


def test_who_joins_a_run_that_broke_hears_why(folder: RunFolder) -> None:
    folder.end_life("failed", "server 1 did not come within 30 s")
    with pytest.raises(RunBroken, match=r"ended \(failed\): server 1 did not come"):
        Rendezvous(folder).address_until_the_end("server")(0)


def test_a_loopback_address_of_another_host_is_refused_not_dialled(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rendezvous(folder).publisher("server", 0, 0)("127.0.0.1", 7000)
    Rendezvous(folder).publisher("server", 1, 0)("10.0.0.1", 7000)
    assert Rendezvous(folder).address_of("server")(0) == ("127.0.0.1", 7000)
    monkeypatch.setattr("dba3c.runs.rendezvous.network_space", lambda: "another boot of another host")
    assert Rendezvous(folder).address_of("server")(1) == ("10.0.0.1", 7000)
    with pytest.raises(ConfigError, match=r"server 0 listens on 127.0.0.1, which is loopback on .* \(--interface\)"):
        Rendezvous(folder).address_until_the_end("server")(0)
