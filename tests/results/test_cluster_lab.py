"""The cluster that one machine stands for: what it can hold, how slow it must be, and one small row of it."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import lab
import numpy as np
import pytest
from lab import Scene, check_machine, choose_dilation, expected_busy, node_times_s

from param_servers.benchmarks import hosts
from param_servers.benchmarks.exchange import Case, run
from param_servers.benchmarks.hosts import (
    FORK,
    SWITCH_ADDRESS,
    Fault,
    Load,
    Namespaces,
    Processes,
    Snapshot,
    in_network_of_switch,
    machine_ticks,
)
from param_servers.errors import ConfigError, PeerLost

SCENE = Scene("servers", 64, 0, 4, False, 2.7, 10.0)
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None,
    reason="needs root and iproute2",
)


def test_a_case_of_the_scene_has_its_rate_divided_by_the_dilation() -> None:
    case = SCENE.case(20, steps=12)
    assert (case.rate_mbit, case.hosts, case.last_step) == (500.0, 68, 15)
    assert case.queue_bytes == SCENE.case(40, steps=12).queue_bytes > 0
    assert Scene("servers", 64, 0, 64, True, 2.7, 10.0).case(20, 12).hosts == 64


def test_the_bounds_are_those_of_byteps() -> None:
    m, b = 2.7e6, 10e9 / 8
    assert SCENE.bound_s == pytest.approx(64 * m / (4 * b))
    assert SCENE._replace(servers=0, exchange="allreduce").bound_s == pytest.approx(2 * 63 * m / (64 * b))
    everywhere = SCENE._replace(servers=64, colocated=True)
    assert everywhere.bound_s == pytest.approx(2 * 63 * m / (64 * b))


def test_the_dilation_is_the_smallest_that_leaves_the_machine_idle_while_gradients_are_exchanged() -> None:
    chosen = choose_dilation(SCENE, compute_s=0.027, cores=2)
    smaller = max(d for d in lab.DILATIONS if d < chosen)
    assert expected_busy(SCENE, 0.027, chosen, 2) <= 0.6 < expected_busy(SCENE, 0.027, smaller, 2)
    assert choose_dilation(SCENE, 0.027, 2, least=2 * chosen) == 2 * chosen
    assert choose_dilation(SCENE, 0.027, cores=64) < chosen


def test_the_dilation_is_such_that_one_process_keeps_up_with_its_link_however_many_cores_idle() -> None:
    chosen = choose_dilation(SCENE._replace(servers=1), compute_s=0.027, cores=64)
    assert SCENE.case(chosen, 1).rate_mbit == 250.0


def test_what_no_dilation_makes_slow_enough_is_refused_with_its_arithmetic() -> None:
    with pytest.raises(ConfigError, match=r"D = 2560, 2560 × .* ms: 1 cores would be \d+% busy"):
        choose_dilation(SCENE._replace(workers=250, megabytes=0.001), compute_s=0.0, cores=1)


@pytest.mark.parametrize(
    ("scene", "dilation", "available_mb", "told"),
    [
        (SCENE, 1, 1e6, "10 Gbit/s / 1 = 10000 Mbit/s for each host, but this emulation holds 1 to 1000"),
        (SCENE._replace(gbit=0.01), 20, 1e6, "0.01 Gbit/s / 20 = 0.5 Mbit/s"),
        (SCENE, 20, 1000, r"68 processes × \(90 \+ 4 × 2.7\) MB = 6854 MB, but 1000 MB are free"),
        (
            SCENE._replace(gbit=1.0, servers=16),
            1,
            1e6,
            r"at D = 1, 1 × 86.4 ms: 2 cores would be \d+% busy, and at most 60% are asked",
        ),
    ],
)
def test_what_the_machine_cannot_hold_is_refused_with_its_arithmetic(
    scene: Scene, dilation: float, available_mb: float, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_machine(scene, compute_s=0.027, dilation=dilation, cores=2, available_mb=available_mb)


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="network namespaces need root"):
        lab.check_privileges()


def test_a_node_waits_for_the_slowest_of_its_lanes_and_keeps_its_times_when_others_join() -> None:
    lane_s = np.array([0.010, 0.011, 0.030])
    few, many = (node_times_s(lane_s, 0.001, 50, n, seed=3) for n in (2, 8))
    assert np.array_equal(many[:, :2], few)
    assert set(np.round(many, 6).ravel()) <= {0.011, 0.012, 0.031}
    assert (many > 0.03).mean() > 0.95  # one of twelve drawn is nearly always the slow one
    heavy = node_times_s(np.array([0.01]), 0.0, 2000, 1, seed=3, tail=0.5)
    assert np.log(heavy / 0.01).std() == pytest.approx(0.5, abs=0.05)


def test_the_machine_is_busy_with_all_but_idling_and_waiting_for_disks() -> None:
    assert machine_ticks("cpu  10 1 5 100 7 2 3 4 50 50") == (25, 132, 4)


def test_a_load_counts_the_time_of_the_processes_that_were_watched() -> None:
    before = Snapshot.now([os.getpid()])
    while Snapshot.now([os.getpid()]).watched_ticks[0] < before.watched_ticks[0] + 3:
        math.factorial(2000)
    load = Snapshot.now([os.getpid()]) - before
    assert load.cpu_s[0] >= 0.03 and load.own_share > 0


def test_a_process_that_ends_before_the_measurement_is_counted_as_watched_not_as_another() -> None:
    there, begun, ended, looks = FORK.Event(), FORK.Event(), FORK.Event(), FORK.Value("i", 0)

    def be(number: int, incarnation: int) -> Load | None:
        if number == 1:
            there.set()
            assert begun.wait(60)
            spent_s = time.process_time()
            while time.process_time() < spent_s + 0.3:
                math.factorial(2000)
            return None
        assert there.wait(60)
        before = processes.snapshot()
        begun.set()
        assert ended.wait(60)
        return processes.snapshot() - before

    def look() -> None:
        """Some times after it has ended: whoever looks after it might reap it."""
        stat = Path(f"/proc/{processes._running[1].pid}/stat")
        looks.value += not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
        if looks.value == 3:
            ended.set()

    processes = Processes(2, be)
    with processes:
        load = processes.result(look)
    assert load.cpu_s[1] >= 0.25


@needs_namespaces
def test_a_second_emulated_network_does_not_take_the_hosts_of_the_first_away(monkeypatch: Any) -> None:
    with Namespaces(2, 100.0) as first:
        monkeypatch.setattr(hosts, "TURN_TIMEOUT_S", 0.0)
        with pytest.raises(ConfigError, match="another emulated network"):
            Namespaces(2, 100.0).__enter__()
        first.set_rate(1, 50.0)  # its hosts are still there
    monkeypatch.undo()
    with Namespaces(1, 100.0):
        pass


def test_more_hosts_than_addresses_are_refused() -> None:
    with pytest.raises(ConfigError, match="254 hosts: 10.78.0.0/24 has addresses for at most 253"):
        Namespaces(254, 100.0)


@needs_namespaces
def test_what_the_switch_serves_is_reached_from_a_host_and_its_socket_stays_there() -> None:
    def be(number: int, incarnation: int) -> bytes | None:
        emulated.enter(number)
        if number == 0:
            own = os.readlink("/proc/thread-self/ns/net")
            with in_network_of_switch():
                listener = socket.create_server((SWITCH_ADDRESS, 0))
            assert os.readlink("/proc/thread-self/ns/net") == own
            listener.settimeout(60)
            port.value = listener.getsockname()[1]
            listening.set()
            listener.accept()[0].sendall(b"from the switch")
            return None
        assert listening.wait(60)
        with socket.create_connection((SWITCH_ADDRESS, port.value), timeout=60) as link:
            return link.recv(15, socket.MSG_WAITALL)

    listening, port = FORK.Event(), FORK.Value("i", 0)
    with Namespaces(2, 100.0) as emulated, Processes(2, be) as processes:
        assert processes.result() == b"from the switch"


def test_a_load_tells_the_watched_from_others_and_both_from_the_kernel() -> None:
    before = Snapshot(10.0, busy_ticks=100, all_ticks=1000, stolen_ticks=5, process_ticks={7: 50}, watched_ticks=[20])
    after = Snapshot(
        12.0, busy_ticks=200, all_ticks=1200, stolen_ticks=7, process_ticks={7: 58, 9: 10}, watched_ticks=[50]
    )
    load = after - before
    assert (load.elapsed_s, load.busy_share, load.own_share, load.others_share) == (2.0, 0.5, 0.15, 0.1)
    me = os.getpid()
    assert me in Snapshot.now([]).process_ticks and me not in Snapshot.now([me]).process_ticks


def test_a_process_that_fails_ends_the_case_at_once() -> None:
    def fail(worker: int, step: int) -> None:
        raise ValueError("of this test")

    with pytest.raises(PeerLost, match="of the case's processes 1 failed"):
        run(Case("servers", 0.004, 1, 0, 1, 0.0, 3), fail)


@needs_namespaces
@pytest.mark.parametrize(
    "scene",
    [Scene("servers", 2, 0, 2, True, 0.004, 1.0), Scene("async", 2, 0, 1, False, 0.004, 1.0)],
    ids=["colocated", "async"],
)
def test_a_small_row_is_measured_in_the_clusters_time(scene: Scene) -> None:
    lab.check_privileges()
    row = lab.measure(scene, np.full((1, 2), 0.005), dilation=10, steps=20, points=240)
    assert row["rate_mbit"] == 100.0 and row["dilation"] == 10
    assert row["step_ms"] >= 5.0 / (2 if scene.exchange == "async" else 1)
    assert row["data_points_per_s"] == pytest.approx(240e3 * scene.gradients / row["step_ms"], rel=1e-3)
    # This small a row may cost less processor time than the kernel's clock tick can show.
    assert 0 <= row["own_share"] <= 1 and row["server_cores"] >= 0


@needs_namespaces
def test_a_server_whose_host_dies_is_replaced_and_the_run_goes_back_to_its_checkpoint() -> None:
    fault = Fault("dead server", at_step=6, step_timeout_s=20.0, replaced_s=0.5, checkpoint_every_steps=2)
    row = lab.measure(
        Scene("servers", 2, 0, 2, False, 0.004, 1.0), np.full((1, 2), 0.002), 10, 60, points=240, fault=fault
    )
    pulled = [step for _, step in row["through_ms"][:-1]]  # the last one is its end
    assert any(after <= before for before, after in itertools.pairwise(pulled)), pulled
    assert pulled[-1] >= 11 and row["ended"] == "measured"
    assert max(at_ms for at_ms, _ in row["through_ms"]) >= 1e3 * fault.replaced_s / 10


@needs_namespaces
def test_an_all_reduce_ends_when_a_host_is_unplugged_and_says_who_is_lost() -> None:
    fault = Fault("unplugged host", at_step=5, step_timeout_s=6.0, replaced_s=0.0, checkpoint_every_steps=0)
    row = lab.measure(
        Scene("allreduce", 3, 0, 0, False, 0.004, 1.0), np.full((1, 3), 0.002), 10, 1000, points=240, fault=fault
    )
    assert "rank 2 of 3 does not answer" in row["ended"]
    # Some more steps pass while the host is being unplugged, by a process of its own: how many is a matter of speed.
    ended_ms, last = row["through_ms"][-1]
    assert fault.at_step <= last < 1000 and ended_ms >= 1e3 * fault.step_timeout_s / 10


@pytest.mark.parametrize(
    ("kind", "workers", "servers", "told"),
    [
        ("dead server", 4, 1, "at least 2 on hosts of their own, not 1"),
        ("slow host", 1, 2, "at least 2 workers, not 1"),
    ],
)
def test_a_fault_that_could_happen_to_nobody_is_refused(kind: Any, workers: int, servers: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Fault(kind, 5, 1.0, 1.0, 1).check(workers, servers, colocated=False)
