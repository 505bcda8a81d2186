"""Large files that arrive in parts: at a time, resumed part by part, and all of one version."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from conftest import raises
from events import LONG_S, after, wait_for
from loopback import Fault, Mirrors, Page, Request, Server
from transfers import DATA, answering, permit_of, saved

from wids.errors import FetchError, MismatchError
from wids.storage.download import Download, Expected
from wids.storage.fetch import Fetcher
from wids.storage.transport.admission import admission
from wids.storage.transport.http import Http
from wids.storage.transport.request_limit import FIRST
from wids.storage.transport.retry import CancelledError, cancelled_by
from wids.storage.transport.stream import TransientError

PART = 500_000
NUM_PARTS = len(DATA) // PART
EXPECTED = Expected(len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
FIRST_RANGE = f"bytes=0-{PART - 1}"


pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten parts instead of one."""
    monkeypatch.setattr(Download, "part_nbytes", PART)


def ranges(server: Server) -> list[str | None]:
    return sorted((request.range for request in server.log), key=str)


def part_ranges() -> list[str]:
    return sorted(f"bytes={at}-{at + PART - 1}" for at in range(0, len(DATA), PART))


class Changing(Page):
    """A page that does something at its n-th request."""

    def __init__(self, body: bytes, number: int, change: Callable[[Page], None]) -> None:
        super().__init__(body)
        self.number, self.change = number, change

    def next_fault(self, request: Request) -> Fault | None:
        self.number -= 1
        if not self.number:
            self.change(self)
        return super().next_fault(request)


def test_a_large_file_arrives_in_parts(server: Server) -> None:
    """Each part is requested once, all but the first with the tag that it stated."""
    url = server.page("/a", DATA)

    assert saved(url, Expected(len(DATA))) == DATA
    assert ranges(server) == part_ranges()
    tags = {
        request.headers.get("if-range") for request in server.log if request.range != FIRST_RANGE
    }
    assert tags == {server.pages["/a"].tag}
    assert server.num_sent == len(DATA)


def test_parts_are_as_long_as_a_moment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where connections are slow, parts are shorter, and later files wait for less."""
    monkeypatch.setattr(Download, "part_nbytes", 8 << 20)
    data = bytes(9_000_000)
    for speed, length in ((0, 1 << 20), (1e6, 256 << 10), (4e6, 7 * (256 << 10))):
        admission().server(server.url).speed = speed
        server.log.clear()
        assert saved(server.page("/a", data), Expected(len(data))) == data
        first = min(ranges(server), key=lambda each: int(str(each).split("=")[1].split("-")[0]))
        assert first == f"bytes=0-{length - 1}"


def test_parts_arrive_at_the_same_time(server: Server) -> None:
    """A server that answers no second request before three others are there is served."""
    barrier = threading.Barrier(3)
    url = server.page("/a", DATA)
    answer, numbers = server._answer, itertools.count()

    def wait_and_answer(handler: BaseHTTPRequestHandler, request: Request) -> None:
        if 1 <= next(numbers) <= 3:
            barrier.wait(LONG_S)
        answer(handler, request)

    server._answer = wait_and_answer  # type: ignore[method-assign]
    assert saved(url) == DATA
    assert not barrier.broken


@pytest.mark.parametrize("how", ["reset", "close"])
def test_each_part_is_resumed(server: Server, how: str) -> None:
    """After cuts only what is missing of each part is requested."""
    faults = [Fault(after_nbytes=n, how=how) for n in (100_000, 0, 200_000, 499_999)]
    url = server.page("/a", DATA, faults=faults)

    assert saved(url, EXPECTED) == DATA
    assert server.num_sent <= len(DATA) + 4 * 300_000  # what was sent and not read


def test_a_file_that_is_replaced_between_two_parts(server: Server) -> None:
    """Parts are compared with the tag of the first: versions never mix."""
    other = random.Random(2).randbytes(len(DATA))
    for number in range(2, NUM_PARTS + 1):
        page = Changing(DATA, number, lambda page: setattr(page, "body", other))
        server.pages["/a"] = page
        assert saved(server.url + "/a") == other, number

    shorter = other[: len(DATA) - 2 * PART]
    for body in (shorter, other + other, b"", b"x"):
        server.pages["/a"] = Changing(DATA, 4, lambda page, new=body: setattr(page, "body", new))
        assert saved(server.url + "/a") == body
    server.pages["/a"] = Changing(DATA, 4, lambda page: setattr(page, "body", other))
    with raises(MismatchError, "expected the sha256"):
        saved(server.url + "/a", EXPECTED)


@pytest.mark.parametrize(("expected", "num_sent"), [(EXPECTED, 1), (Expected(), 2)])
def test_mirrors_with_tags_of_their_own(server: Server, expected: Expected, num_sent: int) -> None:
    """A stated digest decides; without one, all bytes come from one of the mirrors."""
    server.pages["/a"] = Mirrors(DATA)

    assert saved(server.url + "/a", expected) == DATA
    # Each of the first requests for other parts may bring all of the file.
    assert server.num_sent <= (1 if num_sent == 1 else FIRST + 2) * len(DATA)
    assert ranges(server).count(None) == num_sent - 1
    assert not any("if-range" in r.headers for r in server.log if num_sent == 1)


def test_a_file_that_always_changes(server: Server) -> None:
    """It arrives as one response, whose bytes are of one version."""
    versions = iter(range(10**6))

    class Restless(Page):
        def next_fault(self, request: Request) -> Fault | None:
            self.body = next(versions).to_bytes(8, "big") + DATA[8:]
            return super().next_fault(request)

    server.pages["/a"] = Restless(DATA)
    assert saved(server.url + "/a") == server.pages["/a"].body


def test_a_server_that_stops_sending_parts(server: Server) -> None:
    """If one of its machines sends whole files, the file is fetched as one stream."""
    page = Changing(DATA, 3, lambda page: setattr(page, "has_ranges", False))
    server.pages["/a"] = page

    assert saved(server.url + "/a", EXPECTED) == DATA
    # Perhaps not as the last one: a request for a part may be on its way meanwhile.
    assert ranges(server).count(None) == 1


@pytest.mark.parametrize("options", [{"has_tag": False}, {"has_ranges": False}])
def test_without_tags_or_ranges_a_file_is_one_stream(
    server: Server, options: dict[str, bool]
) -> None:
    """Nothing would reveal that parts without a tag are of different versions."""
    assert saved(server.page("/a", DATA, **options)) == DATA
    assert [r.range for r in server.log][1:] == ([] if "has_ranges" in options else [None])


def test_an_empty_file(server: Server) -> None:
    """A file without a first part is requested whole."""
    assert saved(server.page("/a", b"")) == b""
    assert saved(server.page("/b", DATA[: PART + 1])) == DATA[: PART + 1]
    assert saved(server.page("/c", DATA[:PART])) == DATA[:PART]


def test_a_server_that_claims_a_huge_file(server: Server) -> None:
    """Its parts are not listed ahead: a claim of an exabyte costs no memory."""
    body = DATA[:PART]
    url = server.page("/a", body)

    class Boastful(Page):
        def answer(self, *arguments: object) -> tuple[int, bytes, int, int, dict[str, str]]:
            *rest, headers = super().answer(*arguments)  # type: ignore[arg-type]
            if "Content-Range" in headers:
                headers["Content-Range"] = f"bytes 0-{PART - 1}/{10**18 - 1}"
            return (*rest, headers)  # type: ignore[return-value]

    server.pages["/a"] = Boastful(body)
    assert saved(url) == body  # in one response, which claims nothing
    with raises(MismatchError, "(filesize), found 999999999999999999"):
        saved(url, Expected(len(DATA)))


@pytest.mark.parametrize("extra", [1, PART])
def test_more_than_a_part(server: Server, extra: int) -> None:
    """Bytes beyond a part are never written over the next one."""

    class Generous(Page):
        def answer(self, *arguments: object) -> tuple[int, bytes, int, int, dict[str, str]]:
            status, body, start, stop, headers = super().answer(*arguments)  # type: ignore[arg-type]
            if status == 206:
                body = body[:stop] + bytes(extra) + body[stop:]
                return status, body, start, stop + extra, headers
            return status, body, start, stop, headers

    server.pages["/a"] = Generous(DATA)
    assert saved(server.url + "/a") == DATA  # as one stream, after that


def test_one_part_that_never_arrives(server: Server) -> None:
    """Attempts are bounded for each part."""

    class Broken(Page):
        def next_fault(self, request: Request) -> Fault | None:
            is_bad = (request.range or "").startswith(f"bytes={3 * PART}-")
            return Fault(after_nbytes=0) if is_bad else None

    server.pages["/a"] = Broken(DATA)
    with raises(FetchError, "tried 5 times"):
        saved(server.url + "/a")
    assert len(server.log) <= NUM_PARTS + 25


def test_progress_only_grows(server: Server) -> None:
    """The report counts bytes of all parts, from one thread at a time."""
    found: list[tuple[int, int | None]] = []
    lock = threading.Lock()

    def report(received_nbytes: int, total_nbytes: int | None) -> None:
        assert lock.acquire(blocking=False)
        found.append((received_nbytes, total_nbytes))
        lock.release()

    Fetcher().save(server.page("/a", DATA), io.BytesIO(), EXPECTED, report)
    assert found[0] == (0, len(DATA))
    assert found == sorted(found)
    assert found[-1] == (len(DATA), len(DATA))


def test_cancel_ends_all_parts(server: Server) -> None:
    """The download ends long before the file does."""
    cancel = threading.Event()
    server.rate_nbytes = 100_000  # 50 s for the file

    def report(received_nbytes: int, _: int | None) -> None:
        if received_nbytes:
            cancel.set()

    with cancelled_by(cancel), raises(CancelledError):
        Fetcher().save(server.page("/a", DATA), io.BytesIO(), EXPECTED, report)
    assert server.num_sent < len(DATA) / 2


def test_ctrl_c_ends_a_file_in_parts(server: Server) -> None:
    """Also while the server is silent."""
    url = server.page("/a", DATA, always=Fault(after_nbytes=10_000, how="stall"))
    pressed_s = []

    def press() -> None:
        pressed_s.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    # Programs of earlier tests in this process may have left another handler.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = after(lambda: server.num_sent >= 30_000, press)  # three parts are silent
        with pytest.raises(KeyboardInterrupt):
            Fetcher().save(url, io.BytesIO(), EXPECTED)
        assert time.monotonic() - pressed_s[0] < 10  # the time-out is 15 s
        thread.join()
    finally:
        signal.signal(signal.SIGINT, previous)
    server._is_closed.set()  # ends the silence


def test_a_failing_disk_ends_all_parts(server: Server) -> None:
    """What the file raises reaches the caller."""

    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            if self.tell() > 2_000_000:
                raise OSError(28, "No space left on device")
            return super().write(data)  # type: ignore[arg-type]

    with pytest.raises(OSError, match="No space left"):
        Fetcher().save(server.page("/a", DATA), Full(), EXPECTED)


@pytest.mark.parametrize("call", [3, 4, 5])
def test_an_attempt_that_ends_between_two_parts(
    server: Server, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """What it had received counts no more: no part is missing, and none is counted twice.

    Credentials may fail to be renewed when the next part is about to be requested.
    """
    calls, by_http = itertools.count(1), Http.by_http

    def failing_once(self: Http, url: str) -> Any:
        if next(calls) == call:
            raise TransientError("no credentials", is_outage=False)
        return by_http(self, url)

    monkeypatch.setattr(Http, "by_http", failing_once)
    assert saved(server.page("/a", DATA), Expected(len(DATA))) == DATA


def test_downloads_at_the_same_time(server: Server) -> None:
    """Several large files share a server, and none waits for another forever."""
    urls = [server.page(f"/{n}", bytes([n]) + DATA[1:]) for n in range(6)]
    results: dict[int, bytes] = {}
    threads = [
        threading.Thread(target=lambda n=n, url=url: results.update({n: saved(url)}))
        for n, url in enumerate(urls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert results == {n: bytes([n]) + DATA[1:] for n in range(6)}


def test_parts_that_wait_for_a_server_log_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage is one line of the log for a file, and not one for each part."""

    class Down(Page):
        def next_fault(self, request: Request) -> Fault | None:
            return None if request.range == FIRST_RANGE or len(server.log) > 60 else Fault(500)

    server.pages["/a"] = Down(DATA)
    assert saved(server.url + "/a", EXPECTED) == DATA
    assert len([r for r in caplog.records if "waiting up to" in r.message]) == 1


def test_bytes_that_were_hashed_are_not_replaced() -> None:
    """A server that sends other bytes again, in place of the rest, does not pass the digest."""
    requests = itertools.count()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n\r\n".encode()

    def respond(connection: socket.socket) -> None:
        if next(requests):
            connection.sendall(head + bytes(len(DATA) - 1) + DATA[-1:])
        else:
            connection.sendall(head + DATA[:-1])
            time.sleep(0.2)  # until they are hashed
            connection.shutdown(socket.SHUT_RDWR)

    with answering(respond) as url:
        assert saved(f"{url}/a", EXPECTED) == DATA
    assert next(requests) == 2


def test_a_deadline_while_all_requests_fail(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more parts are requested while those before them wait for their next attempts."""
    monkeypatch.setattr(Download, "part_nbytes", PART // 10)
    num_calls = itertools.count()

    def headers() -> tuple[dict[str, str], float]:
        if not next(num_calls):
            return {}, time.time() + 0.1
        time.sleep(0.05)
        raise ConnectionError("the server of the tokens is away")

    server.rate_nbytes = 1_000_000
    options = {f"{server.url}/": {"headers": headers, "deadline_s": 1, "retry_s": 60}}
    with raises(FetchError, "deadline_s"):
        saved(server.page("/a", DATA), EXPECTED, storage_options=options)
    assert next(num_calls) < 5 * NUM_PARTS


def test_a_file_that_a_reader_waits_for_is_first(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its parts come before those of files that are fetched ahead, the first one first."""
    known = admission().server(server.url)
    monkeypatch.setattr(known, "takes_another", lambda: known.num_in_flight < 1)
    held = permit_of(admission(), server.url)
    urls = [server.page(path, DATA) for path in ("/ahead", "/later", "/awaited")]
    threads = []

    def save(url: str, *, is_ahead: bool) -> None:
        with cancelled_by(threading.Event()):  # as for all tasks of `in_threads`
            fetcher = Fetcher({"hedge": False})
            fetcher.save(url, io.BytesIO(), EXPECTED, is_ahead=is_ahead)

    for url in urls:
        about = {"is_ahead": url != urls[-1]}
        threads.append(threading.Thread(target=save, args=[url], kwargs=about))
        threads[-1].start()
        wait_for(lambda: len(known.waiting) == len(threads), "it waits for its turn")
    held.leave()
    for thread in threads:
        thread.join(LONG_S)
    assert server.requests == [
        path for path in ("/awaited", "/ahead", "/later") for _ in range(NUM_PARTS)
    ]


def test_a_deadline_ends_all_parts(server: Server) -> None:
    """The error of the file says what the part waited for that noticed it."""
    server.rate_nbytes = 1_000_000
    options = {"deadline_s": 0.5}
    with raises(FetchError, "expected all bytes within 0.5 s (deadline_s), found that it waited"):
        saved(server.page("/a", DATA), EXPECTED, storage_options=options)
