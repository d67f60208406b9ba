"""Ports derived from a job, and the address that other nodes can reach."""

from __future__ import annotations

import socket

import pytest

from dba3c.errors import UserError
from launch.network import (
    FIRST_PORT,
    LAST_PORT,
    address_towards,
    candidate_ports,
    free_port,
    listen_address,
)


def test_a_job_s_ports_are_the_same_everywhere_distinct_and_below_the_ephemeral_range() -> None:
    ports = list(candidate_ports("17-0", 64))
    assert ports == list(candidate_ports("17-0", 64))
    assert len(set(ports)) == 64
    assert all(FIRST_PORT <= port <= LAST_PORT < 32768 for port in ports)
    assert ports != list(candidate_ports("18-0", 64))


def test_a_port_in_use_is_passed_over() -> None:
    job = "a job of this test"
    with socket.socket() as taken:
        first = free_port("127.0.0.1", job)
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert free_port("127.0.0.1", job) != first


def test_no_free_port_says_what_was_tried() -> None:
    with pytest.raises(UserError, match=r"no free port on 192\.0\.2\.1: tried 3 between"):
        free_port("192.0.2.1", "job", count=3)  # an address that is not ours: nothing can be bound there


def test_the_address_is_the_one_on_the_route_to_the_others() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert listen_address(None, "", num_nodes=1) == "127.0.0.1"
    assert listen_address("lo", "10.0.0.1", num_nodes=64) == "127.0.0.1"
    assert listen_address(None, "127.0.0.1", num_nodes=2) == "127.0.0.1"
    with pytest.raises(UserError, match="no way to no-such-host.invalid"):
        address_towards("no-such-host.invalid")
