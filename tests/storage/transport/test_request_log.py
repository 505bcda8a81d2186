"""The lines and the counts of requests."""

from __future__ import annotations

import gc
import io
import logging
import weakref

import pytest
from conftest import in_child
from loopback import Fault, Server
from transfers import DATA

from wids.storage import stages
from wids.storage.fetch import Fetcher
from wids.storage.transport.schemes import Transports


@pytest.mark.usefixtures("quick_retries")
def test_each_request_is_one_line_of_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Method, host, status, bytes and times are in it, and no secret (SEC-4)."""
    url = server.page("/a", bytes(1000), faults=[Fault(503), Fault(after_nbytes=100)])
    signed = url.replace("http://", "http://me:SECRET@") + "?signature=SECRET"
    fetcher = Fetcher({"headers": {"Authorization": "SECRET"}})
    with caplog.at_level(logging.DEBUG, "wids"):
        assert fetcher.read(signed, 1000) == bytes(1000)
        assert fetcher.nbytes(signed) == 1000
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    parts = ["expected HTTP status 200, found 503, 0 bytes in ", " bytes arrived, 100 bytes in ",
             "status 206, 900 bytes in ", "status 206, 1 bytes in "]  # fmt: skip
    assert len(lines) == 4
    for line, part in zip(lines, parts, strict=True):
        assert line.startswith(f"GET {url}?…: ")
        assert part in line
        assert line.endswith(" ms for its turn")
    assert "SECRET" not in caplog.text


@pytest.mark.usefixtures("quick_retries")
def test_requests_are_counted(server: Server) -> None:
    """Requests, bytes and attempts after a failed one; a child begins at zero."""
    faults = [Fault(503), Fault(after_nbytes=100)]
    url = server.page("/a", bytes(1000), faults=faults)
    Fetcher().read(server.page("/b", b"b"), 1)

    def counts() -> bool:
        assert Fetcher().read(url, 1000) == bytes(1000)
        found = stages.counted()
        return [found[name] for name in ("requests", "retries", "nbytes")] == [3, 2, 1000]

    assert in_child(counts)  # where nothing else reads


def test_a_stream_that_is_dropped_ends_at_once() -> None:
    """What it reads is free again without a search for cycles."""
    transports = Transports({}, {"mine": lambda _: io.BytesIO(DATA)})
    gc.disable()
    try:
        stream = transports.open("mine://host/a", 0, len(DATA))
        next(stream.chunks)
        dropped = weakref.ref(stream)
        del stream
        assert dropped() is None
    finally:
        gc.enable()
