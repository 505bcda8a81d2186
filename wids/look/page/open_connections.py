"""Limit the connections of a server, and how long each may take for its request."""

from __future__ import annotations

import io
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_CONNECTIONS: Final = 320
"""Each takes a thread, and about 0.1 MB. A browser opens six at a time. 256 may wait for large
pictures, so that there is room for others."""


class Connections:
    """The open connections of a server. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        # Those whose request has not arrived; the oldest first.
        self._waiting: dict[socket.socket, None] = {}

    def admit(self, connection: socket.socket) -> bool:
        """Add a connection; return whether there is room for it.

        If there is none, the oldest connection without a whole request is closed, so that clients
        that only connect do not keep others out.
        """
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS and self._waiting:
                oldest = next(iter(self._waiting))
                self._forget(oldest)
                with suppress(OSError):  # the client is already gone
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end, and closes it
            has_room = len(self._open) < MAX_CONNECTIONS
            if has_room:
                self._open.add(connection)
                self._waiting[connection] = None
            return has_room

    def has_request(self, connection: socket.socket) -> None:
        """Note that the whole request of a connection has arrived."""
        with self._lock:
            self._waiting.pop(connection, None)

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that is about to be closed."""
        with self._lock:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)


class RequestBytes(io.RawIOBase):
    """The request of a client, with a deadline for all of it.

    Args:
        connection: The connection.
        seconds: How long the client may take.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._deadline_s = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True: bytes can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read what has arrived.

        Raises:
            TimeoutError: The deadline has passed.
        """
        rest_s = self._deadline_s - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError("expected a whole request before the deadline, found less")
        self._connection.settimeout(rest_s)
        return self._connection.recv_into(buffer)
