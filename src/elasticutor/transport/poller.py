"""Waiting for many files at once, in one thread: epoll, or what else the system has."""

from __future__ import annotations

import select
import selectors
from collections.abc import Callable

Handler = Callable[[], bool]
"""Handles a file that is ready; returns whether that is of interest to who waits."""

_HAS_EPOLL = hasattr(select, "epoll")
_MOST_EVENTS = 64
_EXACT_S = 0.02
"""Waits shorter than this go by microseconds: epoll counts in milliseconds, and rounds up."""
_SELECTABLE = 1024
"""Files that `select` can look at have a number below this."""


class Poller:
    """Calls a handler for every file that is ready.

    On Linux it drives `select.epoll` itself: a look costs a third of what `selectors` takes.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._selector = None if _HAS_EPOLL else selectors.DefaultSelector()
        self._epoll = select.epoll() if _HAS_EPOLL else None
        self._epoll_fd = self.fileno()

    def fileno(self) -> int:
        """A file that is readable when any watched file is ready."""
        if self._epoll is not None:
            return self._epoll.fileno()
        assert self._selector is not None
        return self._selector.fileno()

    def watch(self, fd: int, handler: Handler, *, writing: bool = False) -> None:
        """Call the handler whenever the file can be read, or written."""
        self._handlers[fd] = handler
        if self._epoll is not None:
            self._epoll.register(fd, select.EPOLLOUT if writing else select.EPOLLIN)
        else:
            assert self._selector is not None
            event = selectors.EVENT_WRITE if writing else selectors.EVENT_READ
            self._selector.register(fd, event)

    def unwatch(self, fd: int) -> None:
        """Do not look at this file any more; a file that is not watched is ignored."""
        if self._handlers.pop(fd, None) is None:
            return
        if self._epoll is not None:
            self._epoll.unregister(fd)
        else:
            assert self._selector is not None
            self._selector.unregister(fd)

    def poll(self, timeout_s: float) -> bool:
        """Wait until a file is ready or the time is up; returns whether a handler says so."""
        if self._epoll is not None:
            if 0.0 < timeout_s < _EXACT_S and self._epoll_fd < _SELECTABLE:
                if not select.select([self._epoll_fd], (), (), timeout_s)[0]:
                    return False
                timeout_s = 0.0
            ready = self._epoll.poll(timeout_s, _MOST_EVENTS)
        else:
            assert self._selector is not None
            ready = [(key.fd, events) for key, events in self._selector.select(timeout_s)]
        found = False
        for fd, _ in ready:
            handler = self._handlers.get(fd)  # an earlier handler may have closed it
            if handler is not None and handler():
                found = True
        return found

    def close(self) -> None:
        """Let go of all files."""
        self._handlers.clear()
        if self._epoll is not None:
            self._epoll.close()
        else:
            assert self._selector is not None
            self._selector.close()
