"""One thread reads many ranges by HTTP, from servers that fail, redirect, refuse and wait."""

from __future__ import annotations

import gc
import io
import os
import random
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
from conftest import raises
from events import LONG_S, in_time, wait_for
from loopback import Fault, Page, Request, Server
from transfers import answering

from wids.errors import FetchError, MismatchError, NotFoundError
from wids.storage.fetch import Fetcher
from wids.storage.ranges import Arrived, RangeReader, bytes_of, read_all
from wids.storage.transport import hedging, machine, range_loop
from wids.storage.transport.admission import admission
from wids.storage.transport.machine import Machine
from wids.storage.transport.retry import CancelledError, cancelled_by
from wids.storage.transport.stream import Content

pytestmark = pytest.mark.usefixtures("quick_retries")

DATA = random.Random(1).randbytes(300_000)


def spans(count: int, most_nbytes: int = 20_000) -> list[tuple[int, int]]:
    """Return ranges of the data at random."""
    draw = random.Random(count)
    starts = [draw.randrange(len(DATA) - most_nbytes) for _ in range(count)]
    return [(start, start + draw.randint(1, most_nbytes)) for start in starts]


def kept(_: int, arrived: Arrived) -> bytes:
    """Return the bytes of a range, or raise its error."""
    if isinstance(arrived, Exception):
        raise arrived
    return bytes(arrived)


def check_all(readers: Sequence[RangeReader], count: int = 40) -> None:
    """Read ranges of all readers together, and compare each with the data."""
    wanted = [(readers[at % len(readers)], *span) for at, span in enumerate(spans(count))]
    assert read_all(wanted, kept) == [DATA[start:stop] for _, start, stop in wanted]


FAULTS = {
    "refused": Fault(503),
    "broken": Fault(500),
    "cut": Fault(after_nbytes=100),
    "reset": Fault(after_nbytes=100, how="reset"),
    "cut head": Fault(how="close"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_fails_is_requested_again(server: Server, name: str) -> None:
    """Whatever the first requests of a file meet, each range has its own bytes in the end."""
    pages = [f"/{number}" for number in range(5)]
    urls = [server.page(path, DATA, faults=[FAULTS[name]] * 3) for path in pages]
    check_all([Fetcher().range_reader(url, len(DATA)) for url in urls])
    wait_for(lambda: admission().server(server.url, is_awaited=True).num_in_flight == 0)


def test_no_more_requests_are_in_flight_than_the_limit_allows(server: Server) -> None:
    """And as many connections are made, each for many requests."""
    url = server.page("/a", DATA)
    check_all([Fetcher().range_reader(url, len(DATA))], 200)
    most = admission().server(server.url, is_awaited=True).limit.value
    assert len({request.port for request in server.log}) <= most
    assert len(server.log) == 200


def test_headers_that_expire_are_renewed(server: Server) -> None:
    """A batch whose login has expired is read with the next one, a request at a time."""
    tokens = iter(["old", "new"])
    url = server.page("/a", DATA, needs=("Authorization", "new"), denial=401)
    options = {f"{server.url}/": {"headers": lambda: {"Authorization": next(tokens)}}}
    check_all([Fetcher(options).range_reader(url, len(DATA))])


def test_redirects_are_followed(server: Server) -> None:
    """The caller's headers stay on the server that they are for (SEC-9)."""
    with closing(Server()) as other:
        url = server.page("/a", b"", location=other.page("/b", DATA))
        fetcher = Fetcher({f"{server.url}/": {"headers": {"Authorization": "secret"}}})
        check_all([fetcher.range_reader(url, len(DATA))])
        assert {request.headers.get("authorization") for request in server.log} == {"secret"}
        assert {request.headers.get("authorization") for request in other.log} == {None}


@pytest.mark.parametrize(
    ("location", "found"), [("/a", "more than 10 redirects"), ("file:///etc/passwd", "file:///")]
)
def test_redirects_that_lead_nowhere(server: Server, location: str, found: str) -> None:
    """They are an error, as for a single read."""
    url = server.page("/a", b"", location=location)
    with raises(FetchError, found):
        check_all([Fetcher().range_reader(url, len(DATA))], 1)


def test_each_range_has_its_own_error(server: Server) -> None:
    """One that is missing, another version, a server without ranges; the others are read."""
    fetcher = Fetcher({"retry_s": 0.1})
    readers = [
        fetcher.range_reader(server.page("/a", DATA), len(DATA)),
        fetcher.range_reader(f"{server.url}/missing", len(DATA)),
        fetcher.range_reader(server.page("/c", DATA + b"longer"), len(DATA)),
        fetcher.range_reader(server.page("/d", DATA, has_ranges=False), len(DATA)),
        fetcher.range_reader(server.page("/e", DATA, always=Fault(500)), len(DATA)),
    ]
    found = read_all([(reader, 10, 20) for reader in readers], lambda _, arrived: arrived)
    kinds = (memoryview, NotFoundError, MismatchError, FetchError, FetchError)
    assert all(map(isinstance, found, kinds))
    assert found[0] == DATA[10:20]


@pytest.mark.parametrize("how", ["reset", "close"])
def test_only_what_is_missing_is_requested_after_a_cut(server: Server, how: str) -> None:
    """It is of the version that was cut; without one, all of it is requested."""
    faults = [Fault(after_nbytes=at, how=how) for at in (100_000, 50_000)]
    for has_tag, at in ((True, [1000, 101_000, 151_000]), (False, [1000] * 3)):
        server.log.clear()
        url = server.page("/a", DATA, faults=faults[:], has_tag=has_tag)
        read = Fetcher({"hedge": False}).range_reader(url, len(DATA))
        assert read(1000, 200_000) == DATA[1000:200_000]
        assert [request.range for request in server.log] == [f"bytes={n}-199999" for n in at]
        tags = [request.headers.get("if-range") for request in server.log]
        assert tags == [None, *[server.pages["/a"].tag if has_tag else None] * 2]


class Replaced(Page):
    """A page that has another version after its first answer, which breaks off."""

    def next_fault(self, request: Request) -> Fault | None:
        fault = super().next_fault(request)
        if fault is None:
            self.body = DATA[::-1]
        return fault


@pytest.mark.parametrize("how", ["close", "stall"])
@pytest.mark.parametrize("is_compared", [False, True])
@pytest.mark.parametrize("has_tag", [False, True])
def test_the_rest_of_another_version_is_not_added(
    server: Server, has_tag: bool, is_compared: bool, how: str
) -> None:
    """Nothing was known of the version before: all bytes are of the new one."""
    fault = Fault(after_nbytes=100_000, how=how)
    server.pages["/a"] = Replaced(DATA, has_tag=has_tag, faults=[fault])
    options = {"timeout": 0.3, "hedge": False}
    reader = Fetcher(options).range_reader(f"{server.url}/a", len(DATA), is_compared=is_compared)
    assert reader(0, 200_000) == DATA[::-1][:200_000]


def test_an_error_of_the_reader_ends_the_others(server: Server) -> None:
    """No request stays in flight, and the next read is an ordinary one."""
    url = server.page("/a", DATA)
    reader = Fetcher().range_reader(url, len(DATA))

    def failing(number: int, arrived: Arrived) -> bytes:
        if number == 3:
            raise KeyboardInterrupt
        return kept(number, arrived)

    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            read_all([(reader, *span) for span in spans(40)], failing)
        assert admission().server(server.url, is_awaited=True).num_in_flight == 0
        check_all([reader])


def test_a_cancelled_read_ends(server: Server) -> None:
    """Within a moment, while servers are silent."""
    url = server.page("/a", DATA, always=Fault(how="silent"))
    reader, event = Fetcher().range_reader(url, len(DATA)), threading.Event()
    timer = threading.Timer(0.2, event.set)
    timer.start()
    with cancelled_by(event), raises(CancelledError, "cancelled"):
        read_all([(reader, *span) for span in spans(40)], kept)
    assert admission().server(server.url, is_awaited=True).num_in_flight == 0


def test_a_late_request_is_sent_again_by_the_thread_that_waits(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a batch is silent; the first answer counts, and the loser is dropped."""
    monkeypatch.setenv("WIDS_HEDGE", "1")
    reader = Fetcher().range_reader(server.page("/a", DATA), len(DATA))
    check_all([reader])

    def attempt() -> bool | None:
        server.log.clear()
        server.pages["/a"].faults = [Fault(how="silent")]
        check_all([reader], 30)
        return True if len(server.log) == 31 else None

    in_time(attempt)
    wait_for(lambda: admission().server(server.url, is_awaited=True).num_in_flight == 0)


def test_a_second_request_that_is_not_needed_any_more_is_not_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is answered while the second waits for its permit: it gives it up."""
    monkeypatch.setenv("WIDS_HEDGE", "1")
    reader = Fetcher().range_reader(server.page("/a", DATA), len(DATA))
    check_all([reader])
    limit = admission().server(server.url, is_awaited=True).limit
    queue, send = range_loop._Loop._queue, range_loop._Loop._send
    was_late, num_sent = False, 0

    def queued(loop: Any, read: Any, *, is_first: bool = False) -> None:
        nonlocal was_late
        queue(loop, read, is_first=is_first)
        if is_first:  # since it is late; its bytes come now
            was_late, server.rate_nbytes = True, None

    def sent(*args: Any, **options: bool) -> None:
        nonlocal num_sent
        num_sent += 1
        send(*args, **options)

    monkeypatch.setattr(range_loop._Loop, "_queue", queued)
    monkeypatch.setattr(range_loop._Loop, "_send", sent)

    def attempt() -> int | None:
        nonlocal was_late, num_sent
        was_late, num_sent = False, 0
        limit.value, server.rate_nbytes = 1, 20_000
        read_all([(reader, 0, 60_000)], kept)
        return num_sent if was_late else None

    assert in_time(attempt) == 1
    assert admission().server(server.url, is_awaited=True).num_in_flight == 0
    assert not admission().server(server.url, is_awaited=True).waiting


def test_memory_of_which_a_view_is_kept_is_not_used_again(server: Server) -> None:
    """Whoever keeps a view finds the same bytes in it later."""
    reader = Fetcher().range_reader(server.page("/a", DATA), len(DATA))
    wanted = [(reader, *span) for span in spans(40)]
    views = read_all(wanted, lambda _, arrived: arrived)
    check_all([reader], 80)
    assert views == [DATA[start:stop] for _, start, stop in wanted]


def test_memory_is_used_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as nobody has a view of what was received there."""
    num_made = 0

    def memory(nbytes: int) -> memoryview:
        nonlocal num_made
        num_made += nbytes == 1000  # the others are for heads
        return memoryview(bytearray(nbytes))

    def read(use: Callable[[int, Arrived], Any]) -> int:
        nonlocal num_made
        num_made = 0
        starts = range(20)
        found = read_all([(reader, start, start + 1000) for start in starts], use)
        assert list(map(bytes, found)) == [DATA[start : start + 1000] for start in starts]
        return num_made

    reader = Fetcher().range_reader(server.page("/a", DATA), len(DATA))
    monkeypatch.setattr(machine, "HERE", Machine(memory=memory))
    admission().server(server.url, is_awaited=True).limit.value = 1
    assert read(kept) < 5
    assert read(lambda _, arrived: arrived) == 20
    assert read(lambda _, arrived: bytes_of(arrived)[:]) == 20


def test_a_child_has_connections_of_its_own(server: Server) -> None:
    """It reads while its parent reads, and nobody gets the bytes of the other."""
    reader = Fetcher().range_reader(server.page("/a", DATA), len(DATA))
    check_all([reader])
    child = os.fork()
    if not child:
        try:
            check_all([reader], 100)
        except BaseException:  # noqa: BLE001 - the parent says what is wrong
            os._exit(1)
        os._exit(0)
    check_all([reader], 100)
    assert os.waitpid(child, 0)[1] == 0


def closing_server(listener: socket.socket) -> None:
    """Close each connection after one response, though it says that it stays open."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            request = connection.recv(65536).decode()
            match = re.search(r"bytes=(\d+)-(\d+)", request)
            if match is None:
                continue
            start, stop = int(match[1]), int(match[2]) + 1
            head = (
                f"HTTP/1.1 206 Partial Content\r\nContent-Length: {stop - start}\r\n"
                f"Content-Range: bytes {start}-{stop - 1}/{len(DATA)}\r\n\r\n"
            )
            connection.sendall(head.encode() + DATA[start:stop])


def test_a_closed_connection_costs_no_attempt() -> None:
    """A server may close a connection at any time, also while a request is sent by it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=closing_server, args=[listener], daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a"
        reader = Fetcher({"retry_s": 0, "hedge": False}).range_reader(url, len(DATA))
        check_all([reader], 200)
        listener.shutdown(socket.SHUT_RDWR)


def test_an_error_between_requests_leaves_the_connection(server: Server) -> None:
    """What ends a batch while the next request is chosen: the connection is free for others."""
    reader = Fetcher().range_reader(server.page("/a", DATA), len(DATA))
    wanted = reader.request(3, 9)
    assert wanted is not None
    finish, arrived = wanted.finish, list[bytes]()

    def finish_and_note(stream: Content, data: memoryview) -> memoryview:
        arrived.append(bytes(data))
        return finish(stream, data)

    def more() -> None:
        if arrived:
            raise KeyboardInterrupt

    wanted.finish = finish_and_note
    with pytest.raises(KeyboardInterrupt):
        range_loop.read_ranges([wanted], range_loop.raise_error, more)
    assert arrived == [DATA[3:9]]
    assert reader(3, 9) == DATA[3:9]
    assert len({request.port for request in server.log}) == 1


def test_no_error_keeps_what_callers_hold(server: Server) -> None:
    """Open shards are freed at once, so that the cache can evict their files."""
    body = DATA * 20  # it arrives in pieces, for which the loop waits
    url = server.page("/a", body)
    reader = Fetcher().range_reader(url, len(body))

    class Held:
        """What a caller has."""

    def held_by_caller(read: Callable[[], object]) -> weakref.ref[Held]:
        held = Held()
        read()
        return weakref.ref(held)

    gc.disable()
    try:
        assert held_by_caller(lambda: reader.view(0, len(body)))() is None
        assert held_by_caller(lambda: Fetcher().read(url, len(body)))() is None
        assert held_by_caller(lambda: Fetcher().save(url, io.BytesIO()))() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<Error><Code>SlowDown</Code></Error>", "found 503 SlowDown; waited"),
        ("too many requests by Basic dXNlcjpodW50ZXIy", "found 503; waited"),  # may be secrets
        ("<Error><Code>dXNlcjpodW50ZXIy</Code></Error>", "found 503; waited"),
        ("", "found 503; waited"),
    ],
)
@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_refusal_says_what_its_text_says(text: str, found: str, is_chunked: bool) -> None:
    """Also if it comes later than its head, and in pieces."""
    length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(text)}"
    body = f"{len(text):x}\r\n{text}\r\n0\r\n\r\n" if is_chunked and text else text
    body = body or ("0\r\n\r\n" if is_chunked else "")

    def respond(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(f"HTTP/1.1 503 Busy\r\n{length}\r\n\r\n".encode())
        for at in range(0, len(body), 16):
            connection.sendall(body[at : at + 16].encode())

    with answering(respond) as url:
        reader = Fetcher({"retry_s": 0}).range_reader(f"{url}/a", len(DATA))
        with raises(FetchError, found):
            reader(3, 9)


def test_a_refusal_whose_text_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the error, and not the silence."""
    monkeypatch.setattr(range_loop, "_TEXT_S", 0.0)
    head = b"HTTP/1.1 500 Error\r\nContent-Length: 100\r\n\r\nwho "
    with answering(lambda connection: connection.sendall(head)) as url:
        reader = Fetcher({"retry_s": 0}).range_reader(f"{url}/a", len(DATA))
        with raises(FetchError, "found 500; waited"):
            reader(3, 9)


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has the option")
def test_a_body_that_is_sent_after_its_head_does_not_wait() -> None:
    """A server that sends them apart, as `http.server` does, waits for an acknowledgement."""

    def respond(connection: socket.socket) -> None:
        connection.sendall(
            f"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-7/{len(DATA)}\r\n"
            'Content-Length: 8\r\nETag: "1"\r\n\r\n'.encode()
        )
        connection.sendall(DATA[:8])

    def attempt() -> bool | None:
        with answering(respond) as url:
            reader = Fetcher().range_reader(f"{url}/a", len(DATA))
            started_s = time.monotonic()
            assert [reader(0, 8) for _ in range(20)] == [DATA[:8]] * 20
            return time.monotonic() - started_s < 0.4 or None  # 0.8 s if each waits 40 ms

    assert in_time(attempt)


def test_two_requests_follow_a_redirect_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both were sent before the first was answered, and the address is relative."""
    url = server.page("/d/a", b"", location="r/a")
    server.page("/d/r/a", DATA)
    reader = Fetcher({"hedge": True}).range_reader(url, len(DATA))
    check_all([reader], 30)  # so that it is known what is late
    are_both_sent, answer, paths = threading.Event(), server._answer, list[str]()

    def answer_late(handler: Any, request: Request) -> None:
        paths.append(request.path)
        if request.path == "/d/a":
            if paths.count("/d/a") == 2:
                are_both_sent.set()
            are_both_sent.wait(LONG_S)
        answer(handler, request)

    monkeypatch.setattr(server, "_answer", answer_late)
    assert reader(5, 9) == DATA[5:9]
    assert set(paths) == {"/d/a", "/d/r/a"}


def test_what_ends_before_a_range_is_said_long_after_the_reader_was_made(server: Server) -> None:
    """The deadline of that reading has passed, and is not the reason."""
    url = server.page("/a", DATA, has_tag=False)
    reader = Fetcher({"deadline_s": 0.5}).range_reader(url, len(DATA))
    assert reader(3, 9) == DATA[3:9]
    time.sleep(0.6)
    server.pages["/a"].body = DATA[:100]
    with raises(MismatchError, f"expected a file of {len(DATA)} bytes", "found 100"):
        reader(200, 300)


class Hesitant(Page):
    """A page whose parts come late; that it ends before them is said at once."""

    def answer(self, request: Request, fault: Fault | None) -> Any:
        found = super().answer(request, fault)
        time.sleep(0.3 if found[0] == 206 else 0)
        return found


def test_what_ends_before_a_range_does_not_wait_for_others(server: Server) -> None:
    """All requests that may be in flight are, and their thread asks how long the file is."""
    server.pages["/a"] = Hesitant(DATA[:100])
    reader = Fetcher().range_reader(f"{server.url}/a", len(DATA))
    parts = [(reader, 200, 300), *[(reader, start, start + 1) for start in range(30)]]

    def attempt() -> bool | None:
        started_s = time.monotonic()
        found = read_all(parts, lambda _, arrived: arrived)
        assert all(isinstance(arrived, MismatchError) for arrived in found)
        return True if time.monotonic() - started_s < 1.5 else None

    in_time(attempt)


def test_a_response_without_a_length_is_requested_once(server: Server) -> None:
    """Its connection is used again after the last chunk."""
    url = server.page("/a", DATA, is_chunked=True, has_ranges=False)
    fetcher = Fetcher()
    for _ in range(2):
        assert fetcher.read(url, len(DATA)) == DATA
        saved = io.BytesIO()
        fetcher.save(url, saved)
        assert saved.getvalue() == DATA
    assert (len(server.log), len({request.port for request in server.log})) == (4, 1)
    wait_for(lambda: admission().server(server.url).num_in_flight == 0)


def test_parts_in_chunks() -> None:
    """A part may be of unknown length, if its range is stated."""
    part = f"HTTP/1.1 206 Part\r\nContent-Range: bytes 3-8/{len(DATA)}\r\n"
    head = f"{part}Transfer-Encoding: chunked\r\n\r\n6\r\n".encode()
    tail = DATA[3:9] + b"\r\n0\r\n\r\n"
    num_asked = []

    def respond(connection: socket.socket) -> None:
        num_asked.append(1)
        connection.sendall(head + tail)

    with answering(respond) as url:
        reader = Fetcher().range_reader(f"{url}/a", len(DATA))
        assert [reader(3, 9) for _ in range(2)] == [DATA[3:9]] * 2
    assert len(num_asked) == 2


class Unstated(Page):
    """A page of which all is sent, without its length, if the beginning is asked for."""

    def answer(self, request: Request, fault: Fault | None) -> Any:
        is_whole = (request.range or "").startswith("bytes=0-")
        asked = Request(request.path, {}, 0) if is_whole else request
        return super().answer(asked, fault)


class Shorter(Unstated):
    """A page that has another version, of half the length, after an answer that breaks off."""

    def next_fault(self, request: Request) -> Fault | None:
        fault = super().next_fault(request)
        if fault is None:
            self.body = DATA[::-1][:150_000]
        return fault


@pytest.mark.parametrize("has_length", [True, False])  # else the body ends with the connection
def test_a_file_of_unknown_length_that_is_cut(server: Server, *, has_length: bool) -> None:
    """Only what is missing is requested of the same version; else all, also if it is shorter."""
    about: Any = {"is_chunked": has_length, "has_length": has_length}
    for page, wanted, at in (
        (Unstated(DATA, **about), DATA, "bytes=200000-"),
        (Unstated(DATA, has_tag=False, **about), DATA, None),
        (Shorter(DATA, has_tag=False, **about), DATA[::-1][:150_000], None),
        (Shorter(DATA, **about), DATA[::-1][:150_000], "bytes=200000-"),
    ):
        server.pages["/a"], saved = page, io.BytesIO()
        page.faults = [Fault(after_nbytes=200_000, how="reset")]
        server.log.clear()
        Fetcher({"hedge": False}).save(f"{server.url}/a", saved)
        assert saved.getvalue() == wanted
        assert server.log[1].range == at


def test_an_empty_file(server: Server) -> None:
    """It is read and saved as any other, whatever states that it is empty."""
    for about in ({}, {"is_chunked": True}, {"has_length": False}, {"has_ranges": False}):
        url, saved = server.page("/a", b"", **about), io.BytesIO()
        assert Fetcher().read(url, 10) == b""
        assert Fetcher().nbytes(url) in (0, None)
        Fetcher().save(url, saved)
        assert saved.getvalue() == b""


@pytest.mark.parametrize("has_ranges", [True, False])
def test_chunks_that_end_without_the_last_one(server: Server, *, has_ranges: bool) -> None:
    """All bytes had arrived, and nothing says so: the file is read again."""
    about: Any = {"is_chunked": True, "has_ranges": has_ranges}
    for at in (len(DATA), 100_000):
        server.pages["/a"], saved = Unstated(DATA, **about), io.BytesIO()
        for read in (
            lambda fetcher, url: fetcher.read(url, len(DATA)),
            lambda fetcher, url, saved=saved: fetcher.save(url, saved) or saved.getvalue(),
        ):
            server.pages["/a"].faults = [Fault(after_nbytes=at, how="reset")]
            assert read(Fetcher(), f"{server.url}/a") == DATA


def test_a_file_that_is_always_said_to_end_before(server: Server) -> None:
    """A server that says so of the whole file too is asked a few times."""
    url = server.page("/a", DATA, always=Fault(416))
    with raises(FetchError, "found 416", "tried 5 times"):
        Fetcher().save(url, io.BytesIO())
    with raises(FetchError, "found 416"):
        Fetcher().range_reader(url, len(DATA))(5, 9)
    assert len(server.log) + len(server.asked) <= 12


def test_a_batch_of_responses_without_a_length(server: Server) -> None:
    """Each is requested once, and ends with its connection."""
    reader = Fetcher().range_reader(server.page("/a", DATA, has_length=False), len(DATA))
    parts = [(reader, at, at + 9) for at in range(0, 2000, 100)]
    found = read_all(parts, lambda _, arrived: bytes(arrived))
    assert found == [DATA[start:stop] for _, start, stop in parts]
    assert len(server.log) == 20


def test_time_in_which_nobody_looks_is_no_silence(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrives while a caller uses other bytes is not requested again."""
    reader = Fetcher({"hedge": True}).range_reader(server.page("/a", DATA), len(DATA))
    passed_s = [0.0]
    here = Machine(now_s=lambda: time.monotonic() + passed_s[0])
    monkeypatch.setattr(machine, "HERE", here)
    is_used, is_sent = threading.Event(), threading.Event()
    answer, hedged = server._answer, list[float]()
    monkeypatch.setattr(hedging.Pace, "note_hedge", lambda *args: hedged.append(args[-1]))

    def answer_later(handler: Any, request: Request) -> None:
        if request.range == "bytes=5-6":
            is_used.wait(LONG_S)
        answer(handler, request)
        if request.range == "bytes=5-6":
            is_sent.set()

    server._answer = answer_later  # type: ignore[method-assign]

    def use(number: int, arrived: Arrived) -> bytes:
        if number == 0:
            is_used.set()
            assert is_sent.wait(LONG_S)
            passed_s[0] = 10.0
        return kept(number, arrived)

    assert read_all([(reader, 1, 3), (reader, 5, 7)], use) == [DATA[1:3], DATA[5:7]]
    assert hedged == []


def test_parts_arrive_side_by_side(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long part that has arrived one window is taken, and then of the others."""
    real, taken = range_loop.write, []

    def noted(exchange: Any, window: memoryview) -> OSError | None:
        before = exchange.nbytes
        error = real(exchange, window)
        taken.append(exchange.nbytes - before)
        return error

    monkeypatch.setattr(range_loop, "write", noted)
    monkeypatch.setattr(range_loop, "_WINDOW_NBYTES", 20_000)
    saved = io.BytesIO()
    Fetcher().save(server.page("/a", DATA), saved)
    assert saved.getvalue() == DATA
    assert sum(taken) == len(DATA)
    assert max(taken) <= 20_000
