"""Links that flows share, against cases computed by hand."""

import math

import pytest

from dba3c.simulation.servers import ServerLinks, SharedLink


def ends_of(link):
    found = []
    while link.next_end_s() < math.inf:
        found.append((link.next_end_s(), link.end_next()))
    return found


def test_flows_share_a_link_by_their_weights_and_waste_none_of_it():
    link = SharedLink(bytes_per_s=4.0, ceiling_bytes_per_s=4.0)
    link.begin(0.0, 12.0, "light", weight=1.0)
    link.begin(0.0, 12.0, "heavy", weight=3.0)
    assert ends_of(link) == [(pytest.approx(4.0), "heavy"), (pytest.approx(6.0), "light")]  # 24 bytes at 4 bytes/s


def test_a_flow_that_begins_later_slows_the_others_from_then_on():
    link = SharedLink(bytes_per_s=4.0, ceiling_bytes_per_s=4.0)
    link.begin(0.0, 12.0, "early")
    link.begin(2.0, 4.0, "late")  # by then the early one has 4 of its 12 bytes left
    assert ends_of(link) == [(pytest.approx(4.0), "early"), (pytest.approx(4.0), "late")]


def test_no_flow_is_faster_than_its_other_end_on_average():
    link = SharedLink(bytes_per_s=4.0, ceiling_bytes_per_s=1.0)
    link.begin(0.0, 6.0, "a", weight=1.0)
    link.begin(0.0, 6.0, "b", weight=2.0)
    assert ends_of(link) == [(pytest.approx(4.5), "b"), (pytest.approx(7.5), "a")]  # 2 bytes/s for both, then 1 for one


def test_a_worker_is_done_with_its_last_server():
    links = ServerLinks(4.0, 4.0, servers=3, spread=0.5, seed=0)
    links.begin(0.0, 4.0, [0, 1], version=7)
    done, ends = [], []
    while links.next_end_s() < math.inf:
        ends.append(links.next_end_s())
        done += links.end_next()
    assert sorted(done) == [(0, 7), (1, 7)] and len(ends) == 6  # two flows with each of three servers
    assert max(ends) == pytest.approx(2.0)  # each link carried 8 bytes


def test_fair_links_of_any_number_of_servers_are_one():
    links = ServerLinks(4.0, 4.0, servers=3, spread=0.0, seed=0)
    links.begin(0.0, 4.0, [0, 1], version=7)
    assert links.next_end_s() == pytest.approx(2.0)
    assert links.end_next() == [(0, 7), (1, 7)] and links.next_end_s() == math.inf
