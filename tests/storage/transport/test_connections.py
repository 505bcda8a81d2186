"""Servers that are slow, endless or malformed, and what is logged of them."""

from __future__ import annotations

import io
import logging
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import need, raises
from events import LONG_S
from loopback import Server
from objects import new_certificate
from transfers import answering

from wids.errors import FetchError
from wids.storage import fetch
from wids.storage.transport import http, machine
from wids.storage.transport.connections import Chunks, _tls_context, connected, split_url
from wids.storage.transport.machine import Machine

pytestmark = pytest.mark.usefixtures("quick_retries")

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_silence_is_noticed_within_fifteen_seconds() -> None:
    """The time-out without an option, for a connection and for the next bytes."""
    assert http.TIMEOUT_S == 15


class Clock:
    """A clock that a test moves."""

    now_s = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all loops, beside the usual one."""
    clock = Clock()
    here = Machine(now_s=lambda: time.monotonic() + clock.now_s)
    monkeypatch.setattr(machine, "HERE", here)
    return clock


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        pytest.param(b"", b"2", id="status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", b"2", id="headers"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n", b"2", id="body"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", b"2", id="without a length"),
        pytest.param(CHUNKED, b"2", id="size of a chunk"),
        pytest.param(CHUNKED, b"1\r\n2\r\n", id="chunks"),
        pytest.param(CHUNKED + b"0\r\n", b"X: y\r\n", id="trailers"),
    ],
)
def test_a_server_that_trickles_is_too_slow(clock: Clock, head: bytes, piece: bytes) -> None:
    """A byte a second never reaches the time-out, but is too slow."""
    ended = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.sendall(head)
        while not ended.wait(0.005):
            clock.now_s += 1
            connection.sendall(piece)

    with answering(trickle) as url:
        with raises(FetchError, "the connection failed", "too slow"):
            fetch.Fetcher({"retry_s": 0}).read(url + "/a", 1 << 20)
        ended.set()


def test_a_slow_server_is_not_given_up(clock: Clock) -> None:
    """Above a kilobyte a second a transfer may take as long as it needs."""

    def send(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
        for _ in range(10):
            connection.sendall(b"2" * 6000)
            seen.acquire()

    seen = threading.Semaphore(0)

    def report(received_nbytes: int, _: int | None) -> None:
        if received_nbytes:
            clock.now_s += 5
            seen.release()

    file = io.BytesIO()
    with answering(send) as url:
        fetch.Fetcher({"timeout": 10, "hedge": False}).save(f"{url}/a", file, report=report)
    assert file.getvalue() == b"2" * 60_000
    assert clock.now_s >= 50


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
        (CHUNKED + b"0\r\n", b"X: y\r\n"),
        (CHUNKED, b"0"),
        (CHUNKED + b"1;", b"comment "),
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


def test_chunks_with_more_about_them_than_in_them() -> None:
    """Extensions without end are no file, though each chunk has a byte of it."""
    chunk, chunks = b"1;" + bytes(900_000).replace(b"\0", b"e") + b"\r\nx\r\n", Chunks()
    chunks.payload(memoryview(bytearray(chunk)))
    with pytest.raises(ConnectionError, match="1048576 bytes of headers"):
        chunks.payload(memoryview(bytearray(chunk)))
    small, chunks = memoryview(bytearray(b"1;abcdefghi\r\nx\r\n" * 80_000)), Chunks()
    assert chunks.payload(small) == 80_000


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_chunks_in_pieces_of_any_length(step: int) -> None:
    """The bytes of the file come out of them, up to the end, and no others."""
    body = b"5;a=b\r\nabcde\r\n0b\r\nfghijklmnop\r\n1\nq\n0\r\nX: y\r\n\r\n"
    chunks, found = Chunks(), b""
    for at in range(0, len(body), step):
        assert not chunks.is_over
        piece = memoryview(bytearray(body[at : at + step]))
        found += piece[: chunks.payload(piece)]
    assert (found, chunks.is_over, chunks.has_rest) == (b"abcdefghijklmnopq", True, False)
    rest = memoryview(bytearray(b"0\r\n\r\nHTTP"))
    chunks = Chunks()
    assert (chunks.payload(rest), chunks.is_over, chunks.has_rest) == (0, True, True)


@pytest.mark.parametrize(
    ("body", "num_connections"),
    [
        (b"3\r\nabc\r\n0\r\n\r\n", 1),
        (b"3\r\nabc\r\n0\r\n\r\nand", 2),
        (b"6\r\nabcdef\r\n", 2),  # longer than a document may be
    ],
)
def test_which_connections_are_used_again(body: bytes, num_connections: int) -> None:
    """Those whose response has ended, and nothing else."""
    ports = set()

    def respond(connection: socket.socket) -> None:
        ports.add(connection.getpeername())
        connection.sendall(CHUNKED + body)

    with answering(respond) as url:
        fetcher = fetch.Fetcher({"retry_s": 0, "hedge": False})
        for _ in range(2):
            with suppress(FetchError):
                assert fetcher.read(url + "/a", 3) == b"abc"
    assert len(ports) == num_connections


@pytest.mark.parametrize("size", [b"0x5", b"+5", b"-5", b"0_5", b"", b"5 5"])
def test_sizes_of_chunks_are_hexadecimal_digits(size: bytes) -> None:
    """What Python also takes for a number is none."""
    body = CHUNKED + b"%s\r\nabcde\r\n0\r\n\r\n" % size
    with answering(lambda connection: connection.sendall(body)) as url:
        with raises(FetchError, "the size of a chunk is not a number"):
            fetch.Fetcher({"retry_s": 0}).read(url + "/a", 9)


def test_malformed_headers_are_logged_without_the_url(caplog: pytest.LogCaptureFixture) -> None:
    """No line of the log has the signature of the URL (SEC-38)."""

    def respond(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nno colon\r\nX: y\r\n\r\nok")

    with answering(respond) as url, caplog.at_level(logging.INFO):
        signed = f"{url}/a?X-Amz-Signature=SECRET".replace("//", "//me:SECRET@")
        assert fetch.Fetcher().read(signed, 2) == b"ok"
    assert [record.name for record in caplog.records] == ["wids.storage.transport.range_loop"]
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
    """No line of the log has the query of the URL (SEC-38)."""
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


PART = b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-9/"


@pytest.mark.parametrize(
    ("response", "found"),
    [
        (
            PART + b"*\r\nContent-Length: 10\r\n\r\n0123456789",
            "expected the whole file, found a part",
        ),
        (PART + b"20\r\nContent-Length: 10\r\n\r\n0123456789", "up to 10 of 20"),
        (
            PART + b"10\r\nContent-Length: 1000000000000000\r\n\r\n0123456789abcdefgh",
            "found more",
        ),
        (
            PART + b"10\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n0123456789abcdefgh\r\n",
            "expected 10 bytes, as its Content-Range says, found more",
        ),
    ],
)
def test_a_part_that_nobody_asked_for(response: bytes, found: str) -> None:
    """It is a document only if it says that it is all of it, and has as much; or an error."""
    with answering(lambda connection: connection.sendall(response)) as url:
        with raises(FetchError, found):
            fetch.Fetcher().read(f"{url}/a", 1000)


def test_a_part_that_has_all_is_a_document() -> None:
    """Some servers answer every request with a part."""
    whole = PART + b"10\r\nContent-Length: 10\r\n\r\n0123456789"
    with answering(lambda connection: connection.sendall(whole)) as url:
        assert fetch.Fetcher().read(f"{url}/a", 1000) == b"0123456789"


def test_a_beginning_of_unknown_length_that_is_cut() -> None:
    """It is no shorter file."""
    with answering(_sent_and_closed(PART.replace(b"0-9", b"0-99") + b"*\r\n\r\n0123456789")) as url:
        with raises(FetchError, "expected 100 bytes, found 10"):
            fetch.Fetcher({"retry_s": 0}).read_start(f"{url}/a", 100)


def _sent_and_closed(response: bytes) -> Callable[[socket.socket], None]:
    def respond(connection: socket.socket) -> None:
        connection.sendall(response)
        connection.shutdown(socket.SHUT_RDWR)

    return respond


def test_an_encoding_that_is_none() -> None:
    """The length counts, and no chunk is looked for."""
    body = b"5\r\nhello and more"
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nTransfer-Encoding: identity\r\n\r\n"
    with answering(lambda connection: connection.sendall(head.encode() + body)) as url:
        assert fetch.Fetcher().read(f"{url}/a", 1000) == body


@contextmanager
def _by_tls(folder: Path, respond: Callable[[socket.socket], None]) -> Iterator[str]:
    """Provide the URL of a server of one connection by TLS, which `respond` is called with."""
    need(shutil.which("openssl"), "openssl (Debian: openssl)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(new_certificate(folder))

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as inside:
                while inside.recv(10_000):
                    respond(inside)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    thread.join()


def test_bytes_that_tls_has_read_are_no_response(tmp_path: Path) -> None:
    """More bytes than a response states, in one record with it, do not begin the next one."""
    head = b"HTTP/1.1 206 OK\r\nContent-Length: 2\r\nContent-Range: bytes %d-%d/9\r\n\r\n%s"
    both = head % (0, 1, b"ab") + head % (2, 3, b"no")
    with _by_tls(tmp_path, lambda connection: connection.sendall(both)) as url:
        certificates = (tmp_path / "only.pem").read_bytes()
        new = connected(split_url(url)[0], None, LONG_S, certificates)
        sock = new.begin(b"GET / HTTP/1.1\r\n\r\n")
        sock.settimeout(LONG_S)
        assert sock.recv(len(both) - 10) == both[:-10]
        assert not new.is_idle()
        new.close()


def test_a_cut_by_tls_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that ends without the end of TLS has a part of a body without a length."""

    def respond(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf of it")
        connection.shutdown(socket.SHUT_RDWR)

    with _by_tls(tmp_path, respond) as url:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "only.pem"))
        _tls_context.cache_clear()
        with raises(FetchError, "the connection failed: SSLEOFError"):
            fetch.Fetcher({"retry_s": 0}).read(f"{url}/a", 1000)
    _tls_context.cache_clear()
