"""Threads connect for a loop, and for the next one."""

from __future__ import annotations

import select
import socket
import threading

from events import wait_for

from wids.storage.transport.connecting import Connecting
from wids.storage.transport.connections import Connection


def test_what_was_made_wakes_the_loop() -> None:
    """A connection, or the error of one; each with the idle ones of its server."""
    near, far = socket.socketpair()
    connection, idle = Connection(near), list[Connection]()

    def fail() -> Connection:
        raise ConnectionRefusedError

    connecting = Connecting()
    for connect in (lambda: connection, fail):
        connecting.start(idle, connect)
        assert select.select([connecting.waker], [], [], 10)[0]
        ((found, made),) = connecting.made()
        assert found is idle
        assert made is connection if connect is not fail else isinstance(made, OSError)
    connecting.end()
    connection.close()
    far.close()


def test_a_late_connection_is_kept() -> None:
    """It is idle when it comes, for whoever needs it."""
    near, far = socket.socketpair()
    connection, idle, is_open = Connection(near), list[Connection](), threading.Event()

    def connect() -> Connection:
        is_open.wait(10)
        return connection

    connecting = Connecting()
    connecting.start(idle, connect)
    connecting.end()
    is_open.set()
    wait_for(lambda: idle == [connection])
    connection.close()
    far.close()
