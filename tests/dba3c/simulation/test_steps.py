"""The model against closed forms: bounds as limits, order statistics, monotonicity."""

import dataclasses
import math

import numpy as np
import pytest

from dba3c.errors import UserError
from dba3c.simulation import servers as servers_module
from dba3c.simulation.cluster import Cluster, ComputeTimes, Setup, Work
from dba3c.simulation.servers import SharedLink
from dba3c.simulation.simulate import options, simulate, simulate_majority, simulate_times
from dba3c.simulation.simulate import ring_s as simulated_ring_s
from param_servers.benchmarks.exchange import dedicated_servers_s, ring_s

M, TEN_GBIT = 1.33e6, 1.25e9
NO_COMPUTE = Work(model_bytes=M, compute=ComputeTimes(mean_s=0.0))
WIRE = Cluster(bytes_per_s=TEN_GBIT)
NO_WIRE = Cluster(bytes_per_s=math.inf)
UNIFORM = ComputeTimes(mean_s=0.5, samples_s=tuple(np.linspace(0, 1, 1001)))


@pytest.fixture
def tiny_chunks(monkeypatch):
    monkeypatch.setattr(servers_module, "SLICE_CHUNKS", 10**6)
    monkeypatch.setattr(servers_module, "LEAST_CHUNK_BYTES", 1)


@pytest.mark.parametrize("workers", [1, 2, 8, 64])
@pytest.mark.parametrize("servers", [1, 2, 4, 100])
def test_without_compute_and_latency_cut_through_takes_the_lower_bound_of_dedicated_servers(
    workers, servers, tiny_chunks
):
    bound_s = dedicated_servers_s(M, workers, servers, TEN_GBIT)
    found = simulate(WIRE, NO_COMPUTE, Setup(workers=workers, servers=servers), steps=10)
    assert found.step_s == pytest.approx(bound_s, rel=1e-4)


def test_the_figures_of_the_literature_for_64_workers_at_ten_gigabit(tiny_chunks):
    one, four, beside = (
        1e3 * simulate(WIRE, NO_COMPUTE, Setup(workers=64, servers=k, colocated=k == 64), steps=10).step_s
        for k in (1, 4, 64)
    )
    assert one == pytest.approx(68.1, abs=0.1) and four == pytest.approx(17.0, abs=0.1)
    assert beside == pytest.approx(2.1, abs=0.02)
    ring = simulate(WIRE, NO_COMPUTE, Setup(exchange="allreduce", workers=64), steps=10)
    assert ring.step_s == pytest.approx(ring_s(M, 64, TEN_GBIT)) and 1e3 * ring.step_s == pytest.approx(2.1, abs=0.01)


@pytest.mark.parametrize("workers", [2, 3, 16])
def test_servers_beside_all_workers_take_the_bound_of_the_ring(workers, tiny_chunks):
    setup = Setup(workers=workers, servers=workers, colocated=True)
    assert simulate(WIRE, NO_COMPUTE, setup, steps=10).step_s == pytest.approx(ring_s(M, workers, TEN_GBIT), rel=1e-4)


@pytest.mark.parametrize("workers", [8, 64])
def test_beside_all_workers_the_first_chunk_has_the_link_to_itself_so_large_ones_cost_nothing(workers):
    setup = Setup(workers=workers, servers=workers, colocated=True)  # of 64 servers a chunk is 79 % of a slice
    assert simulate(WIRE, NO_COMPUTE, setup, steps=10).step_s == pytest.approx(ring_s(M, workers, TEN_GBIT), rel=1e-4)


def test_asynchronous_workers_do_not_keep_the_step_they_began_in():
    work = Work(model_bytes=M, compute=ComputeTimes(mean_s=10 * M / TEN_GBIT))
    setup = Setup(exchange="async", workers=4, servers=1)
    steps_s = np.diff(simulate(WIRE, work, setup, steps=20).commits_s)
    assert steps_s.min() > 0.5 * M / TEN_GBIT  # one after the other, though all compute equally long


def test_a_straggler_that_sends_alone_loses_no_overlap():
    times_s, setup = np.tile([0.01, 0.01, 1.0], (10, 1)), Setup(workers=3, servers=1)
    alone, beside = (
        simulate_times(dataclasses.replace(WIRE, overlap_lost=lost), NO_COMPUTE, setup, times_s).step_s
        for lost in (0.0, 1.0)
    )
    assert beside == pytest.approx(alone)


def test_chunks_cost_one_chunk_of_a_slice():
    found = simulate(WIRE, NO_COMPUTE, Setup(workers=8, servers=1), steps=10)
    assert found.step_s == pytest.approx((1 + 1 / 16) * dedicated_servers_s(M, 8, 1, TEN_GBIT))


def test_with_backup_workers_pushing_and_pulling_do_not_overlap():
    found = simulate(WIRE, NO_COMPUTE, Setup(workers=8, servers=2, backup=2), steps=10)
    assert found.step_s == pytest.approx(2 * dedicated_servers_s(M, 8, 2, TEN_GBIT))
    unfair = dataclasses.replace(WIRE, overlap_lost=1.0)
    without = simulate(unfair, NO_COMPUTE, Setup(workers=64, servers=2), steps=10)
    assert without.step_s == pytest.approx(2 * dedicated_servers_s(M, 64, 2, TEN_GBIT), rel=0.06)


@pytest.mark.parametrize(("servers", "second_s"), [(3, 10.0), (2, 6.0)])
def test_a_push_that_comes_too_late_shares_its_host_s_link_with_the_server_there(servers, second_s):
    cluster = Cluster(bytes_per_s=1.0)
    work = Work(model_bytes=servers, compute=ComputeTimes(mean_s=0.0))  # a slice is 1 byte, and takes `servers` seconds
    setup = Setup(workers=3, servers=servers, backup=1, colocated=True)
    prompt, late = (
        simulate_times(cluster, work, setup, np.array([[0.0, 0.0, begins_s], [0.0, 0.0, 99.0]])).commits_s
        for begins_s in (99.0, 1.0)
    )
    assert prompt.tolist() == pytest.approx([servers, 3 * servers])
    # of three servers the third has sent 2/3 of a slice by then: at half the link for the last third the server's takes
    # 4 s; of two none is beside the late worker
    assert late.tolist() == pytest.approx([servers, second_s])


def test_servers_that_send_after_the_update_take_both_ways_one_after_the_other():
    found = simulate(WIRE, NO_COMPUTE, Setup(workers=8, servers=2, cut_through=False), steps=10)
    assert found.step_s == pytest.approx(2 * dedicated_servers_s(M, 8, 2, TEN_GBIT))


@pytest.mark.parametrize("exchange", ["servers", "allreduce"])
def test_without_backup_a_step_waits_for_the_slowest_of_n(exchange):
    work = Work(model_bytes=M, compute=UNIFORM)
    found = simulate(NO_WIRE, work, Setup(exchange=exchange, workers=9), steps=2000)
    assert found.step_s == pytest.approx(9 / 10, abs=0.01)  # E max of n uniforms: n / (n + 1)
    assert found.dropped == 0


@pytest.mark.parametrize("exchange", ["servers", "majority"])
def test_the_first_step_takes_the_g_th_order_statistic(exchange):
    work = Work(model_bytes=M, compute=UNIFORM)
    setup = Setup(exchange=exchange, workers=9, backup=3)
    first_s = [simulate(NO_WIRE, work, setup, steps=1, seed=seed).commits_s[0] for seed in range(600)]
    assert np.mean(first_s) == pytest.approx(6 / 10, abs=0.02)  # E of the g-th of n uniforms: g / (n + 1)


def test_servers_and_majority_drop_the_same_gradients_when_the_wire_is_free():
    work = Work(model_bytes=M, compute=ComputeTimes(mean_s=0.1, variation=0.4))
    ours, theirs = (
        simulate(NO_WIRE, work, Setup(exchange=exchange, workers=12, backup=2), steps=200)
        for exchange in ("servers", "majority")
    )
    np.testing.assert_allclose(ours.commits_s, theirs.commits_s, rtol=1e-9)
    assert abs(ours.dropped - theirs.dropped) <= 2  # those that are still computing at the end
    assert 0 < ours.dropped_share < 0.4


def test_gradients_that_are_complete_before_the_commit_but_are_not_among_the_first_g_are_dropped():
    slow_chief = Cluster(bytes_per_s=1e15, latency_s=0.0, message_s=0.01)  # all eight are there before it commits
    work = Work(model_bytes=M, compute=ComputeTimes(mean_s=0.1))
    found = simulate(slow_chief, work, Setup(workers=8, backup=2, servers=1, cut_through=False), steps=20)
    assert found.dropped == 20 * 2


def test_a_rank_that_is_free_while_a_step_is_summed_begins_with_the_next():
    cluster = Cluster(bytes_per_s=simulated_ring_s(Cluster(bytes_per_s=1.0, latency_s=0.0), NO_COMPUTE, 3) / 0.4)
    assert simulated_ring_s(cluster, NO_COMPUTE, 3) == pytest.approx(0.4, abs=1e-3)
    times_s = np.array([[1, 1, 2.6], [1, 1, 1], [1, 1, 1], [1, 9, 1]])  # rank 2 is free in the second sum, 2.4 to 2.8
    found = simulate_majority(cluster, NO_COMPUTE, Setup(exchange="majority", workers=3, backup=1), times_s)
    np.testing.assert_allclose(found.commits_s, [1.4, 2.8, 4.2, 5.6], atol=1e-2)  # the last one counts rank 2
    assert found.dropped == 3  # rank 2's long one and, the last of three, its third; rank 1's long one


def test_one_worker_that_always_stalls_holds_up_all_unless_there_is_a_backup():
    times = ComputeTimes(mean_s=0.1, straggler_probability=0.01, straggler_slowdown=10)
    work = Work(model_bytes=M, compute=times)
    waits, goes_on = (simulate(WIRE, work, Setup(workers=16, backup=b, servers=4), steps=100) for b in (0, 3))
    assert waits.step_s > 1.5 * goes_on.step_s
    assert goes_on.data_points_per_s > waits.data_points_per_s


@pytest.mark.parametrize("exchange", ["servers", "allreduce", "majority", "async"])
def test_more_of_anything_good_never_makes_a_step_longer(exchange, tiny_chunks):
    work = Work(model_bytes=M, compute=ComputeTimes(mean_s=0.01, variation=0.3), data_points=32)

    def step_s(cluster=WIRE, work=work, **setup):
        backup = 2 if exchange == "majority" else 0
        return simulate(cluster, work, Setup(exchange=exchange, workers=16, backup=backup, **setup), steps=30).step_s

    slower = dataclasses.replace(WIRE, bytes_per_s=TEN_GBIT / 10)
    farther = dataclasses.replace(WIRE, latency_s=0.001)
    heavier = dataclasses.replace(work, model_bytes=10 * M)
    others_draws = 0.01 if exchange == "async" else 0.0  # a worker's are those of its round, which its pace decides
    for worse in (step_s(slower), step_s(farther), step_s(work=heavier)):
        assert worse >= step_s() * (1 - others_draws)
    if exchange == "servers":
        by_servers = [step_s(slower, servers=k) for k in (1, 2, 4, 8, 16, 32)]
        assert (np.diff(by_servers) <= 1e-4 * by_servers[-1]).all()


def test_asynchronous_servers_serve_one_gradient_after_the_other_up_to_their_link():
    work = Work(model_bytes=M, compute=ComputeTimes(mean_s=0.002, variation=1.0))
    found = simulate(WIRE, work, Setup(exchange="async", workers=8, servers=1), steps=40)
    assert M / TEN_GBIT <= found.step_s <= 1.5 * M / TEN_GBIT  # pushing and pulling overlap only by chance
    assert found.dropped == 0


def test_the_coordinator_reads_its_messages_one_after_the_other():
    busy = dataclasses.replace(NO_WIRE, message_s=1e-3)
    found = simulate(busy, NO_COMPUTE, Setup(workers=20, servers=3), steps=10)
    assert found.step_s == pytest.approx(20 * 3 * 1e-3)


def test_the_same_seed_gives_the_same_steps_and_another_one_others():
    work = Work(model_bytes=M, compute=ComputeTimes(mean_s=0.1, variation=0.3, worker_variation=0.1))
    setup = Setup(workers=7, backup=1, servers=2)
    one, again, other = (simulate(WIRE, work, setup, steps=20, seed=seed).commits_s for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_four_thousand_workers_are_simulated(tiny_chunks):
    found = simulate(WIRE, NO_COMPUTE, Setup(workers=4096, servers=64, backup=16), steps=3)
    assert len(found.commits_s) == 3 and np.isfinite(found.commits_s).all()


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ({"workers": 2, "backup": 2}, "2 backup of 2 workers leave no gradient"),
        ({"workers": 2, "servers": 3, "colocated": True}, "3 servers cannot be colocated with 2 workers"),
        ({"workers": 4, "backup": 1, "exchange": "allreduce"}, "allreduce has no backup workers"),
        ({"workers": 0}, "workers must be at least 1"),
    ],
)
def test_impossible_setups_are_refused(setup, message):
    with pytest.raises(UserError, match=message):
        Setup(**setup)


@pytest.mark.parametrize(
    ("servers", "backups", "beside"), [((1, 2), (100, 200), "100 backup workers"), ((4, 8), (), "4 servers")]
)
def test_nodes_that_leave_no_worker_are_refused_with_what_takes_them(servers, backups, beside):
    with pytest.raises(UserError, match=f"^4 nodes leave no worker beside {beside}$"):
        options(WIRE, NO_COMPUTE, 4, servers, backups)


def test_impossible_clusters_and_times_are_refused():
    with pytest.raises(UserError, match="bytes_per_s must be greater than 0"):
        Cluster(bytes_per_s=0)
    with pytest.raises(UserError, match="latency_s must be at least 0"):
        Cluster(bytes_per_s=1, latency_s=math.nan)
    with pytest.raises(UserError, match="straggler_slowdown must be at least 1"):
        ComputeTimes(mean_s=1, straggler_slowdown=0.5)
    for slowdown in (math.nan, math.inf):
        with pytest.raises(UserError, match="straggler_slowdown must be at least 1 and at most 1000000000.0"):
            ComputeTimes(mean_s=1, straggler_probability=0.1, straggler_slowdown=slowdown)
    with pytest.raises(UserError, match="steps must be at least 1"):
        simulate(WIRE, NO_COMPUTE, Setup(), steps=0)
    for points in (-1, 0, math.nan):
        with pytest.raises(UserError, match="data_points must be greater than 0"):
            dataclasses.replace(NO_COMPUTE, data_points=points)


def test_drawn_times_have_the_mean_and_the_variation_asked_for():
    times = ComputeTimes(mean_s=2.0, variation=0.5).draw(20_000, 2, seed=0)
    assert times.mean() == pytest.approx(2.0, rel=0.02) and times.std() == pytest.approx(1.0, rel=0.05)
    between = ComputeTimes(mean_s=2.0, worker_variation=0.3).draw(1, 4000, seed=0)
    assert between.std() == pytest.approx(0.6, rel=0.1)
    late = ComputeTimes(mean_s=1.0, straggler_probability=0.1, straggler_slowdown=5).draw(20_000, 1, seed=0)
    assert late.mean() == pytest.approx(1.4, rel=0.03) and set(np.unique(late)) == {1.0, 5.0}


# -- links that flows share, against cases computed by hand ------------------------------------------------------------


def ends_of(link):
    found = []
    while link.next_end_s() < math.inf:
        found.append((link.next_end_s(), link.end_next()))
    return found


def test_flows_share_a_link_evenly_and_waste_none_of_it():
    link = SharedLink(bytes_per_s=4.0, ceiling_bytes_per_s=4.0)
    link.begin(0.0, 4.0, [0], version=7)
    link.begin(0.0, 12.0, [1, 2], version=7)
    assert link.left_bytes(1.0, workers=1) == pytest.approx(4.0 - 4.0 / 3)
    assert ends_of(link) == [
        (pytest.approx(3.0), ([0], 7)),
        (pytest.approx(7.0), ([1, 2], 7)),
    ]  # 28 bytes


def test_a_flow_that_begins_later_slows_the_others_from_then_on():
    link = SharedLink(bytes_per_s=4.0, ceiling_bytes_per_s=4.0)
    link.begin(0.0, 12.0, [0], version=1)
    link.begin(2.0, 4.0, [1], version=2)  # by then the early one has 4 of its 12 bytes left
    assert ends_of(link) == [(pytest.approx(4.0), ([0], 1)), (pytest.approx(4.0), ([1], 2))]


def test_no_flow_is_faster_than_its_other_end():
    link = SharedLink(bytes_per_s=4.0, ceiling_bytes_per_s=1.0)
    link.begin(0.0, 6.0, [0, 1], version=7)
    assert ends_of(link) == [(pytest.approx(6.0), ([0, 1], 7))]
