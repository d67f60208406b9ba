"""Which links of a process are watched, and for what; their bytes, also those of links that are gone."""

import select
import selectors
import socket
from collections.abc import Iterator

from param_servers.wire.links import Link

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class LinkSelector:
    """A selector of links and at most one listening socket. A link is open from its first `watch` to its `drop`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._mask: dict[Link, int] = {}
        self._gone_bytes = (0, 0)

    def __contains__(self, link: Link) -> bool:
        return link in self._mask

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._mask))

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far, over all links."""
        sent, received = self._gone_bytes
        return sent + sum(link.bytes_sent for link in self._mask), received + sum(
            link.bytes_received for link in self._mask
        )

    def listen(self, listener: socket.socket) -> None:
        """Report connections that wait to be accepted."""
        self._selector.register(listener, READ, None)

    def ignore(self, listener: socket.socket) -> None:
        """Do not report them any more."""
        self._selector.unregister(listener)

    def wake_for(self, sock: socket.socket) -> None:
        """End a `select` when this socket can be read, without reporting it."""
        self._selector.register(sock, READ, sock)

    def watch(self, link: Link, mask: int) -> None:
        """Report when it can be read or written; 0: neither."""
        known = self._mask.get(link, 0)
        if link.sock.fileno() < 0 or (known == mask and link in self._mask):
            return
        if known and mask:
            self._selector.modify(link.sock, mask, link)
        elif mask:
            self._selector.register(link.sock, mask, link)
        elif known:
            self._selector.unregister(link.sock)
        self._mask[link] = mask

    def waits_to_write(self, link: Link) -> bool:
        """Whether the kernel took no more of it, and has not yet reported that it does."""
        return bool(self._mask.get(link, 0) & WRITE)

    def drop(self, link: Link) -> None:
        """Close it."""
        mask = self._mask.pop(link, None)
        if mask:
            self._selector.unregister(link.sock)
        if mask is not None:
            sent, received = self._gone_bytes
            self._gone_bytes = (sent + link.bytes_sent, received + link.bytes_received)
        link.sock.close()

    def wait_for(self, link: Link, timeout_s: float) -> bool:
        """Sleep until one link can be read, whatever else can. False, at once, while another one is to be written."""
        if link not in self._mask or any(mask & WRITE for mask in self._mask.values()):
            return False
        alone = select.poll()
        alone.register(link.sock, select.POLLIN)
        alone.poll(1e3 * timeout_s)
        return True

    def select(self, timeout_s: float) -> Iterator[tuple[Link | None, int]]:
        """(link, what it is ready for), and (None, …) for the listening socket."""
        for key, mask in self._selector.select(timeout_s):
            if key.data is None or isinstance(key.data, Link):
                yield key.data, mask

    def close(self) -> None:
        """The links must have been dropped. Safe to call twice."""
        self._selector.close()
