"""All links of one push keep the same pace, and none is left in the middle of a frame."""

from typing import Any

from param_servers.wire.even_push import FIRST_PIECE_BYTES, LEADS, LEAST_LEAD_BYTES, EvenPush
from param_servers.wire.frames import Frame
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.messages import HEADER_BYTES, Header, Kind

FAST, SLOW = Peer(Role.SERVER, 0), Peer(Role.SERVER, 1)
LEAD_BYTES = LEAST_LEAD_BYTES
SIZE = 4 * LEAD_BYTES


class Links:
    """A hub that knows which frames have grown."""

    def __init__(self, streams: bool = True) -> None:
        self.streams, self.told = streams, set[Peer]()
        self.takes_all: list[Frame] = []

    def stream(self, peer: Peer, frame: Frame) -> bool:
        return self.streams

    def allow(self, peer: Peer, frame: Frame, size: int) -> None:
        if size > frame.available:
            frame.available = size
            self.told.add(peer)

    def flush(self) -> None:
        for frame in self.takes_all:
            frame.sent = HEADER_BYTES + frame.available


def begun(hub: Any) -> tuple[EvenPush, Frame, Frame]:
    push, frames = EvenPush(hub), [Frame(Header(Kind.GRADIENT), memoryview(bytes(SIZE)), available=0) for _ in "12"]
    assert push.begin(FAST, frames[0]) and push.begin(SLOW, frames[1])
    push.advance()
    return push, frames[0], frames[1]


def test_a_fast_link_is_given_no_more_than_the_lead_beyond_the_slowest() -> None:
    push, fast, slow = begun(Links())
    assert fast.available == slow.available == LEAD_BYTES
    fast.sent, slow.sent = HEADER_BYTES + LEAD_BYTES, HEADER_BYTES + 1000
    push.advance()
    assert fast.available == slow.available == LEAD_BYTES + 1000


def test_every_link_gets_to_its_end_when_each_takes_what_it_may() -> None:
    push, fast, slow = begun(Links())
    for _ in range(4):
        for frame in (fast, slow):
            frame.sent = HEADER_BYTES + frame.available
        push.advance()
    assert fast.available == slow.available == SIZE


def test_links_that_take_all_they_may_are_not_left_waiting_for_a_poll_that_nothing_ends() -> None:
    hub = Links()
    push, fast, slow = begun(hub)
    hub.takes_all = [fast, slow]
    fast.sent = slow.sent = HEADER_BYTES + LEAD_BYTES
    push.advance()
    assert fast.sent == slow.sent == HEADER_BYTES + SIZE


def test_links_take_turns_of_small_pieces_first_in_the_order_in_which_they_were_begun() -> None:
    class Sending(Links):
        def __init__(self) -> None:
            super().__init__()
            self.sent: list[tuple[Peer, int]] = []

        def allow(self, peer: Peer, frame: Frame, size: int) -> None:
            if size > frame.available:
                frame.available = size
                self.sent.append((peer, size))

    hub = Sending()
    begun(hub)
    piece = LEAD_BYTES // 3
    sizes = [FIRST_PIECE_BYTES, 2 * FIRST_PIECE_BYTES, 2 * FIRST_PIECE_BYTES + piece, LEAD_BYTES]
    assert hub.sent == [(peer, size) for size in sizes for peer in (FAST, SLOW)]


def test_longer_slices_may_be_further_ahead_but_only_until_the_push_is_over() -> None:
    size = 3 * LEADS * LEAST_LEAD_BYTES
    push = EvenPush(Links())  # type: ignore[arg-type]
    for expected, length in ((3 * LEAST_LEAD_BYTES, size), (LEAST_LEAD_BYTES, LEADS * LEAST_LEAD_BYTES)):
        frame = Frame(Header(Kind.GRADIENT), memoryview(bytes(length)), available=0)
        assert push.begin(FAST, frame)
        push.advance()
        assert frame.available == expected
        push.finish()


def test_a_short_slice_that_is_sent_holds_up_no_longer_one() -> None:
    hub = Links()
    push = EvenPush(hub)  # type: ignore[arg-type]
    short, long = (Frame(Header(Kind.GRADIENT), memoryview(bytes(size)), available=0) for size in (8, SIZE))
    assert push.begin(FAST, short) and push.begin(SLOW, long)
    hub.takes_all = [short, long]
    push.advance()
    assert long.sent == HEADER_BYTES + SIZE


def test_a_link_that_is_lost_holds_nobody_up() -> None:
    push, fast, _ = begun(Links())
    fast.sent = HEADER_BYTES + LEAD_BYTES
    push.lost(SLOW)
    push.advance()
    assert fast.available == 2 * LEAD_BYTES


def test_what_has_begun_is_sent_to_its_end_once_the_push_has_its_answer() -> None:
    hub = Links()
    push, fast, slow = begun(hub)
    hub.told.clear()
    hub.takes_all = [fast, slow]
    push.finish()
    assert fast.sent == slow.sent == 0  # what has not begun may still be cancelled
    assert fast.available == slow.available == SIZE and hub.told == {FAST, SLOW}
    push.advance()  # nothing is left to pace


def test_a_transport_that_sends_payloads_only_whole_is_asked_to_do_so() -> None:
    hub: Any = Links(streams=False)
    assert not EvenPush(hub).begin(FAST, Frame(Header(Kind.GRADIENT), memoryview(bytes(8)), available=0))
