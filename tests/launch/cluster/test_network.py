"""The address that other nodes can reach."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dba3c.errors import UserError
from launch.cluster import network
from launch.cluster.network import address_towards, listen_address
from param_servers.wire import tcp_sockets


def test_the_address_is_the_one_on_the_route_to_the_others() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert listen_address(None, "", num_nodes=1) == "127.0.0.1"
    assert listen_address("lo", "10.0.0.1", num_nodes=64) == "127.0.0.1"
    assert listen_address(None, "127.0.0.1", num_nodes=2) == "127.0.0.1"
    with pytest.raises(UserError, match="no way to no-such-host.invalid"):
        address_towards("no-such-host.invalid")


def networks(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> None:
    """A host without a default route that has these networks."""
    monkeypatch.setattr(network, "_ELSEWHERE", "127.0.0.1")
    monkeypatch.setattr(tcp_sockets, "addresses", lambda: addresses)


def test_a_host_that_is_loopback_to_itself_has_its_only_network_s_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.1.1", 9))])  # as Debian's /etc/hosts
    networks(monkeypatch, eth0="10.0.0.7")
    assert listen_address(None, "a", num_nodes=2) == "10.0.0.7"
    assert listen_address(None, "", num_nodes=2) == "10.0.0.7"
    assert listen_address(None, "a", num_nodes=1) == "127.0.0.1"
    assert listen_address("lo", "a", num_nodes=2) == "127.0.0.1"
    networks(monkeypatch, eth0="10.0.0.7", docker0="172.17.0.1")
    with pytest.raises(UserError, match=r"a is 127.0.1.1 to itself .* here: eth0 10.0.0.7, docker0 172.17.0.1"):
        listen_address(None, "a", num_nodes=2)
    networks(monkeypatch)
    with pytest.raises(UserError, match="here: none but loopback"):
        listen_address(None, "a", num_nodes=2)


class LateNames:
    """A resolver that knows a name from the n-th question on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.failures, self.questions, self._resolve = failures, 0, socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.answer)
        networks(monkeypatch, eth0="10.0.0.7")
        monkeypatch.setattr(network, "RESOLVE_AGAIN_S", 0.01)

    def answer(self, host: str, *rest: Any) -> Any:
        self.questions += 1
        if self.questions <= self.failures:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._resolve("127.0.1.1", *rest)


def test_a_chief_whose_name_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names, said = LateNames(monkeypatch, failures=2), []  # type: ignore[var-annotated]
    assert listen_address(None, "dba3c-0.dba3c", num_nodes=8, wait_s=60.0, say=said.append) == "10.0.0.7"
    assert names.questions == 3
    assert len(said) == 1
    assert "waits at most 60 s for dba3c-0.dba3c" in said[0]


def test_a_chief_whose_name_never_comes_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    LateNames(monkeypatch, failures=10**9)
    with pytest.raises(UserError, match="dba3c-0.dba3c has had no address for 0 s: Name or service") as refused:
        listen_address(None, "dba3c-0.dba3c", num_nodes=8, wait_s=0.05, say=lambda _: None)
    assert "\n" not in str(refused.value)


def test_what_can_be_no_name_is_not_waited_for() -> None:
    with pytest.raises(UserError, match="no way to a..b"):
        listen_address(None, "a..b", num_nodes=8, wait_s=60.0, say=lambda _: None)
