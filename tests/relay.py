"""A relay on loopback in front of a real server, which counts requests and bytes.

It passes bytes on in both directions as they are, so that what is counted is what a network would
have carried: headers, repeats, and what a server sends before a client hangs up.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_REQUEST = re.compile(rb"(?:^|\r\n\r\n|\n)([A-Z]+ /\S*) HTTP/1\.[01]\r\n")


class Relay:
    """The relay; see `relayed`.

    Attributes:
        url: Its address.
        requests: Method and path of each request, in order.
        num_received: Bytes that the server sent.
    """

    def __init__(self, port: int) -> None:
        self.requests: list[str] = []
        self.num_received = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def reset(self) -> None:
        """Count from zero."""
        self.requests, self.num_received = [], 0

    def close(self) -> None:
        """End all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for connection in self._sockets:
            connection.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                self._start(self._pass_on, client, server, self._count_requests)
                self._start(self._pass_on, server, client, self._count_response)

    def _count_requests(self, data: bytes) -> None:
        self.requests += [request.decode() for request in _REQUEST.findall(data)]

    def _count_response(self, data: bytes) -> None:
        self.num_received += len(data)

    def _pass_on(
        self, source: socket.socket, target: socket.socket, count: Callable[[bytes], None]
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                count(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def relayed(port: int) -> Iterator[Relay]:
    """Provide a relay in front of the server at a port of this machine."""
    relay = Relay(port)
    try:
        yield relay
    finally:
        relay.close()
