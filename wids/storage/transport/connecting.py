"""Connect to servers in threads, for a loop that waits for sockets.

Looking up a name cannot be interrupted, and `http.client` and `ssl` wait by themselves. A
connection that comes after the end of its loop is kept for others.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias

from wids.storage.transport.connections import Connection

Made: TypeAlias = "tuple[list[Connection], Connection | BaseException]"
"""The idle connections of a server, and a new one or why there is none."""


class Connecting:
    """Threads that connect.

    Attributes:
        waker: A socket that has bytes when something was made.
    """

    def __init__(self) -> None:
        self._made: deque[Made] = deque()
        self._is_over = False
        self.waker, self._other = socket.socketpair()
        self.waker.settimeout(0)
        self._other.settimeout(0)

    def start(self, idle: list[Connection], connect: Callable[[], Connection]) -> None:
        """Connect in a thread.

        Args:
            idle: The idle connections of the server.
            connect: Returns a connection.
        """

        def run() -> None:
            made: Connection | BaseException
            try:
                made = connect()
            except BaseException as error:  # noqa: BLE001 - the loop raises it
                made = error
            self._made.append((idle, made))
            if self._is_over:
                self._keep()
            else:
                with suppress(OSError):  # it ended just now, or has not noticed others yet
                    self._other.send(b"x")

        threading.Thread(target=run, name="wids-connect", daemon=True).start()

    def made(self) -> Iterator[Made]:
        """Yield what was made since the last call."""
        with suppress(BlockingIOError):
            self.waker.recv(4096)
        while self._made:
            yield self._made.popleft()

    def end(self) -> None:
        """Keep what was not used, and what is made from now on."""
        self._is_over = True
        self._keep()
        self.waker.close()
        self._other.close()

    def _keep(self) -> None:
        with suppress(IndexError):
            while True:
                idle, made = self._made.popleft()
                if isinstance(made, Connection):
                    idle.append(made)
