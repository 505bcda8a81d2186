"""Servers that are slow, endless or malformed, and what is logged of them."""

from __future__ import annotations

import gc
import io
import logging
import socket
import threading
import time
import weakref
from typing import Any

import pytest
from conftest import raises
from loopback import Server
from transfers import answering

from wids.errors import FetchError
from wids.storage import fetch
from wids.storage.transport import connections, http
from wids.storage.transport.connections import Connection, Response, request_head

pytestmark = pytest.mark.usefixtures("quick_retries")


def test_silence_is_noticed_within_fifteen_seconds() -> None:
    """The time-out without an option, for a connection and for the next bytes."""
    assert http.TIMEOUT_S == 15


def test_a_response_without_a_connection_is_no_cycle() -> None:
    """Nothing but its last use keeps it: each range has one, and few collections are for them."""
    gc.disable()
    try:
        response = Response(206, {}, iter((b"abc",)))
        assert list(response.pieces) == [b"abc"]
        response = Response(206, {}, iter(()))
        found = weakref.ref(response)
        del response
        assert found() is None
    finally:
        gc.enable()


class Clock:
    """A clock that stands still; a test moves it."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all connections: a machine that is busy makes no server slow."""
    clock = Clock()
    monkeypatch.setattr(connections, "time", clock)
    return clock


class SlowSocket:
    """A socket on which the head of a response arrives, and then some bytes every 20 ms."""

    def __init__(self, clock: Clock, head: bytes, nbytes: int) -> None:
        self.clock = clock
        self.next, self.rest = head, b"2" * nbytes

    def recv_into(self, buffer: Any) -> int:
        self.clock.now_s += 0.02
        data, self.next = (self.next or self.rest)[: len(buffer)], b""
        buffer[: len(data)] = data
        return len(data)

    def ignore(self, *_: object) -> None:
        pass

    sendall = settimeout = close = ignore


def received(connection: Any) -> int:
    """Return the number of bytes of a body; the time-out is that of five arrivals."""
    response = Connection(connection, "h", 0.1).exchange(
        "GET", request_head("GET", "/a", {}), Connection.close
    )
    return sum(map(len, response.pieces))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"", id="status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", id="headers"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n", id="body"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", id="chunked"),
    ],
)
def test_a_server_that_trickles_is_too_slow(head: bytes, clock: Clock) -> None:
    """A byte now and then never reaches the time-out, but is too slow."""
    with raises(ConnectionError, "too slow"):
        received(SlowSocket(clock, head, 1))
    assert clock.now_s == pytest.approx(0.1 * connections.WINDOW_TIMEOUTS, abs=0.03)


def test_a_slow_server_is_not_given_up(clock: Clock) -> None:
    """Above a kilobyte a second a transfer may take as long as it needs."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"
    assert received(SlowSocket(clock, head, 25)) == 60_000
    assert clock.now_s > 40


def test_a_server_that_trickles_is_given_up() -> None:
    """A read ends long before all bytes have come."""
    sent: list[bytes] = []

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        while len(sent) < 3000:  # a minute
            sent.append(b"2")
            connection.sendall(sent[-1])
            time.sleep(0.02)

    with answering(trickle) as url:
        with raises(FetchError, "the connection failed", "waited"):
            fetch.Fetcher({"timeout": 0.1, "retry_s": 0.1}).read(url + "/a", 1 << 20)
    assert len(sent) < 1000


def test_the_time_of_the_reader_does_not_count(server: Server, clock: Clock) -> None:
    """A caller who is slow to take the bytes does not make the server slow."""
    url = server.page("/a", bytes(2_000_000))

    def report(*_: object) -> None:
        clock.now_s += 10_000

    fetch.Fetcher().save(url, io.BytesIO(), report=report)
    assert clock.now_s > 20_000
    assert len(server.log) == 1


@pytest.mark.parametrize(
    ("head", "again"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    ],
)
def test_endless_headers_are_an_error(head: bytes, again: bytes) -> None:
    """Interim responses and trailers without end are no file, however fast they come."""

    def flood(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(again * 1000)

    with answering(flood) as url:
        with raises(FetchError, "1048576 bytes of headers", "waited"):
            fetch.Fetcher({"retry_s": 1}).read(url + "/a", 1 << 20)


@pytest.mark.parametrize("size", [b"0x5", b"+5", b"-5", b"0_5", b"", b"5 5"])
def test_sizes_of_chunks_are_hexadecimal_digits(size: bytes) -> None:
    """What Python also takes for a number is none."""
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\nabcde\r\n0\r\n\r\n" % size
    with answering(lambda connection: connection.sendall(body)) as url:
        with raises(FetchError, "the size of a chunk is not a number"):
            fetch.Fetcher({"retry_s": 0}).read(url + "/a", 9)


def test_malformed_headers_are_logged_without_the_url(caplog: pytest.LogCaptureFixture) -> None:
    """urllib3 would log the URL with its signature (SEC-38)."""

    def respond(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nno colon\r\nX: y\r\n\r\nok")

    with answering(respond) as url, caplog.at_level(logging.INFO):
        signed = f"{url}/a?X-Amz-Signature=SECRET".replace("//", "//me:SECRET@")
        assert fetch.Fetcher().read(signed, 2) == b"ok"
    assert [record.name for record in caplog.records] == ["wids.storage.transport.connections"]
    assert "127.0.0.1" in caplog.text
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize(
    "place", ["http://h:99999999/?SECRET", "http://[/?SECRET", "http://a b/?SECRET"]
)
def test_a_redirect_to_a_malformed_address_shows_no_secret(
    place: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the message nor a log has the query of the place that a server names (SEC-38)."""
    url = server.page("/a", b"", location=place) + "?SECRET"

    with caplog.at_level(logging.INFO), pytest.raises(FetchError) as caught:
        fetch.Fetcher().read(url, 10)
    assert "SECRET" not in str(caught.value) + caplog.text


def test_retries_are_logged_without_the_url(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The library retries by itself and logs that, so that urllib3 has nothing to log (SEC-38)."""
    url = server.page("/a", b"", 503) + "?SECRET"

    with caplog.at_level(logging.INFO), pytest.raises(FetchError):
        fetch.Fetcher().read(url, 10)
    with caplog.at_level(logging.INFO), pytest.raises(FetchError):
        fetch.Fetcher().read("http://127.0.0.1:9/a?SECRET", 10)
    assert {record.name.partition(".")[0] for record in caplog.records} == {"wids"}
    assert "SECRET" not in caplog.text


def test_bytes_that_arrive_slowly_are_seen() -> None:
    """A piece of a body ends in time, so that a server that sends is not taken for silent."""
    is_seen, requests = threading.Event(), []

    def send_slowly(connection: socket.socket) -> None:
        requests.append(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n")
        left = 3000
        while left > 1 and not is_seen.wait(0.02):  # a minute
            connection.sendall(b"a")
            left -= 1
        connection.sendall(b"a" * left)

    seen = []

    def report(received: int, _total: int | None) -> None:
        seen.append(received)
        if received:
            is_seen.set()

    file = io.BytesIO()
    with answering(send_slowly) as url:
        fetch.Fetcher().save(url + "/a", file, report=report)
    assert file.getvalue() == b"a" * 3000
    assert 0 < next(filter(None, seen)) < 1000
    assert len(requests) == 1
