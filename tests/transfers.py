"""What the tests of transport share: a file of five megabytes, a fetch, and a server of sockets."""

from __future__ import annotations

import io
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wids.storage.download import Expected
from wids.storage.fetch import Fetcher
from wids.storage.transport.admission import Admission, Permit

DATA = random.Random(1).randbytes(5_000_000)


def saved(url: str, expected: Expected | None = None, **arguments: object) -> bytes:
    """Return what `Fetcher.save` writes; the arguments are those of `Fetcher`."""
    file = io.BytesIO()
    Fetcher(**arguments).save(url, file, expected or Expected())
    return file.getvalue()


def permit_of(
    admission: Admission, server: str, nbytes: int = 0, *, is_awaited: bool = False
) -> Permit:
    """Wait for the permit of a request, as `range_loop` does beside other work."""
    permit = admission.ask(server, nbytes, ("GET", server), is_awaited=is_awaited)
    try:
        while not permit.is_counted:
            admission.wait_a_moment(permit)
    except BaseException:
        admission.withdraw(permit)
        raise
    return permit


def waited_s(error: BaseException) -> float:
    """Return how long a read waited, by its error: the waits, and attempts after the first."""
    found = re.search(r"waited ([\d.]+) s", str(error))
    assert found is not None, error
    return float(found[1])


@contextmanager
def answering(respond: Callable[[socket.socket], None]) -> Iterator[str]:
    """Provide the URL of a server that calls ``respond`` after each request on a connection."""
    ended = threading.Event()
    connections = []

    def serve() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                connections.append(connection)
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    while not ended.is_set() and connection.recv(10_000):
                        respond(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            for connection in connections:  # one is kept by the client, and waited for
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()
