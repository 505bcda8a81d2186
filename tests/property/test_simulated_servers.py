"""Thousands of servers that fail, lie and change their minds, in this process: what is fetched?

The law: a fetch returns the bytes of one version of the file or raises an error of wids, after a
bounded number of attempts. Each server is made from a seed, which the message of a failure names.

A server is honest about its tags, since nobody could notice otherwise. If it lies about more than
lengths and positions, the caller knows the digest.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import os
import random
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import IO, Any, Final, TypeAlias

import pytest

from wids.errors import WidsError
from wids.storage.download import Download, Expected
from wids.storage.fetch import Fetcher
from wids.storage.ranges import Arrived, read_all
from wids.storage.transport import admission, hedging, http, machine, range_loop, retry
from wids.storage.transport.connecting import Connecting
from wids.storage.transport.connections import (
    Connection,
    SilenceError,
)
from wids.storage.transport.exchanges import Exchange
from wids.storage.transport.http import Http, Route
from wids.storage.transport.machine import Machine, Poller
from wids.storage.transport.range_loop import _Loop
from wids.storage.transport.range_reads import Read

_NOW_S = 1_700_000_000
_PROGRESS_NBYTES = 500
_RETRY_S = 2.0
_MOST_ATTEMPTS = 30
"""More are hardly possible in that time: the waits double up to ten seconds."""
_LONGEST_S = 10_000.0
"""Simulated time in which whatever is checked ends."""


class Body(io.BytesIO):
    """A body that ends, or raises an error when it has been read."""

    def __init__(self, data: bytes, piece_nbytes: int, error: Exception | None) -> None:
        super().__init__(data)
        self.piece_nbytes = piece_nbytes
        self.error = error

    def read1(self, size: int | None = -1) -> bytes:
        data = super().read(min(size or 0, self.piece_nbytes))
        if not data and self.error is not None:
            raise self.error
        return data

    def read(self, size: int | None = -1) -> bytes:
        return self.read1(size)


class Site:
    """One file, in some versions, and the habits of its server."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chance = self.random.random
        nbytes = self.random.choice([1, 10, 700, 3000])
        self.versions = [self.random.randbytes(nbytes)]
        for _ in range(self.random.randrange(3)):
            other = nbytes if chance() < 0.7 else self.random.randrange(1, 3000)
            self.versions.append(self.random.randbytes(other))
        self.tags = self.random.choice(["strong", "strong", "date", "weak", "weak", "none"])
        self.has_ranges = chance() < 0.8
        self.has_if_range = chance() < 0.8
        self.has_length = chance() < 0.8
        self.reliability = self.random.choice([0.1, 0.5, 0.9])
        self.is_liar = chance() < 0.3
        self.current = 0
        self.num_requests = 0
        self.idle: list[Connection] = []
        self.made: list[SimulatedConnection] = []
        self.clock: Clock | None = None  # by which responses arrive in pieces

    @property
    def body(self) -> bytes:
        return self.versions[self.current]

    def tag_headers(self) -> dict[str, str]:
        """Return the headers that identify the current version."""
        return {
            "strong": {"ETag": f'"{self.current}"'},
            "weak": {"ETag": f'W/"{self.random.choice([1, 1, 1, 2])}"'},
            "date": {
                "Last-Modified": formatdate(_NOW_S - 1000 + self.current, usegmt=True),
                "Date": formatdate(_NOW_S, usegmt=True),
            },
            "none": {},
        }[self.tags]

    def begin_request(self) -> None:
        """Count a request; maybe publish the next version before it is answered."""
        self.num_requests += 1
        if self.random.random() < 0.2 and self.current + 1 < len(self.versions):
            self.current += 1

    def fails(self) -> bool:
        """Whether this time something goes wrong."""
        return self.random.random() > self.reliability


Answer: TypeAlias = "tuple[int, bytes, dict[str, str], Exception | None]"
"""Status, body and headers of a response, and the error after it."""


class SimulatedConnection(Connection):
    """A connection whose other end has answered as soon as the request is sent, or by and by."""

    def __init__(self, http: SimulatedHttp) -> None:
        self.near, self.far = socket.socketpair()
        super().__init__(self.near)
        self.exchange_with, self.site = http.exchange, http.site

    def begin(self, request: bytes) -> socket.socket:
        lines = request.decode().split("\r\n")[1:-2]
        status, body, answer, error = self.exchange_with(dict(line.split(": ") for line in lines))
        head = "".join(f"{name}: {value}\r\n" for name, value in answer.items())
        data = f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body
        stated = answer.get("Content-Length")  # else the body ends with the connection
        ends = stated != str(len(body)) and status != 204
        is_cut = not isinstance(error, SilenceError) and (error is not None or ends)
        is_reset = isinstance(error, ConnectionResetError)
        if self.site.clock is None:
            self._send(data, is_last=True, is_cut=is_cut, is_reset=is_reset)
        else:
            draw, at_s = self.site.random, self.site.clock.now_s
            for start in range(0, len(data), size := draw.choice([1 + len(data) // 5, 9000])):
                at_s += draw.choice([0, 0.001, 0.02, 1, 10])
                send = partial(
                    self._send,
                    data[start : start + size],
                    is_last=start + size >= len(data),
                    is_cut=is_cut,
                    is_reset=is_reset,
                )
                self.site.clock.at(at_s, send)
        self._sock.settimeout(0)
        return self._sock

    def _send(self, data: bytes, *, is_last: bool, is_cut: bool, is_reset: bool) -> None:
        with suppress(OSError):  # nobody reads any more
            self.far.sendall(data)
            if is_last and is_reset:
                self.near.send(b"unread")  # which makes the end a reset
            if is_last and is_cut:
                self.far.close()

    def close(self) -> None:
        super().close()
        self.far.close()


class Clock:
    """Time, which passes only where the loop waits and nothing comes."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.until_s = math.inf
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Have something happen at a time."""
        heappush(self._events, (time_s, next(self._order), action))

    def pass_time(self, most_s: float) -> None:
        """Have time pass, until something happens."""
        until_s = self.now_s + most_s
        if not self._events or self._events[0][0] > until_s:
            self.sleep(most_s)
        else:
            time_s, _, action = heappop(self._events)
            self.sleep(max(0.0, time_s - self.now_s))
            action()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        assert self.now_s < self.until_s, "it waits for what does not come"

    def poller(self) -> Poller:
        """Return a poller that waits by this clock."""
        clock = self

        class Waits(selectors.DefaultSelector):
            def poll(self, timeout: float, /) -> list[tuple[int, int]]:
                found, until_s = super().select(0), clock.now_s + timeout
                while not found and clock.now_s < until_s:
                    clock.pass_time(until_s - clock.now_s)
                    found = super().select(0)
                return [(key.fd, events) for key, events in found]

        return Waits()


def connect_now(self: Connecting, idle: list[Connection], connect: Any) -> None:
    """Connect in this thread."""
    self._made.append((idle, connect()))
    self._other.send(b"x")


class SimulatedHttp(Http):
    """The HTTP of wids, as far as it is above the connections."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def route(
        self,
        url: str,  # noqa: ARG002
        location: str,  # noqa: ARG002
        ours: Mapping[str, str],
    ) -> Route:
        return Route(b"GET /a HTTP/1.1\r\n", ours, os.getpid(), self.site.idle, self.connect)

    def connect(self) -> SimulatedConnection:
        self.site.made.append(SimulatedConnection(self))
        return self.site.made[-1]

    def exchange(self, headers: Mapping[str, str]) -> Answer:
        """Return what the server sends, and how it fails after that."""
        site = self.site
        site.begin_request()
        status, body, answer = self._answer(headers)
        error: Exception | None = None
        if site.fails():
            status, body, answer, error = self._failure(status, body, answer)
        if "Content-Length" in answer and answer["Content-Length"].isdigit():
            body = body[: int(answer["Content-Length"])]
        elif site.clock is not None and status != 204 and site.random.random() < 0.5:
            answer["Transfer-Encoding"] = "chunked"
            body = self._chunked(body, is_whole=error is None)
        if site.clock is not None and site.random.random() < 0.05:
            return 302, b"", {"Location": "/elsewhere", "Content-Length": "0"}, None
        return status, b"" if status == 204 else body, answer, error

    def _chunked(self, body: bytes, *, is_whole: bool) -> bytes:
        """Return a body in chunks; if it is not whole, the end of the last one is missing."""
        found, start = b"", 0
        while start < len(body):
            piece = body[start : start + self.site.random.choice([1, 100, 5000])]
            found += b"%x%s\r\n%s\r\n" % (
                len(piece),
                self.site.random.choice([b"", b";a=b"]),
                piece,
            )
            start += len(piece)
        return found + b"0\r\n\r\n" if is_whole else found[: len(found) - 3]

    def _answer(self, headers: Mapping[str, str]) -> tuple[int, bytes, dict[str, str]]:
        """Return what an honest server sends."""
        site = self.site
        body, answer, status = site.body, site.tag_headers(), 200
        if_range = headers.get("If-Range")
        is_same = not site.has_if_range or if_range in (None, *answer.values())
        if "Range" in headers and site.has_ranges and is_same:
            first, _, last = headers["Range"].removeprefix("bytes=").partition("-")
            start, stop = int(first), min(len(body), int(last or len(body)) + 1)
            if start >= len(body):
                return 416, b"", answer
            if if_range is not None and site.has_if_range and site.random.random() < 0.2:
                answer = {}  # it is that version, so that some servers do not say so
            status = 206
            answer["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
            body = body[start:stop]
        if site.has_length:
            answer["Content-Length"] = str(len(body))
        return status, body, answer

    def _failure(
        self, status: int, body: bytes, answer: dict[str, str]
    ) -> tuple[int, bytes, dict[str, str], Exception | None]:
        """Return what a server sends that fails or lies."""
        choice, chosen = self.site.random.choice, self.site.random.random()
        if chosen < 0.15:
            return choice([500, 503, 503, 429, 404, 403, 416, 206, 204]), b"an error", {}, None
        if chosen < 0.3 and self.site.is_liar:
            lie = choice([self.site.random.randbytes(len(body)), body[:-1], body + b"x", b""])
            return status, lie, {**answer, "Content-Length": str(len(lie))}, None
        if chosen < 0.6 and status == 206:
            body, answer["Content-Range"] = self._other_part(body, answer["Content-Range"])
            answer.pop("Content-Length", None)
            return status, body, answer, None
        if chosen < 0.7 and self.site.has_length:
            answer["Content-Length"] = str(len(body) + choice([1, 99]))
            return status, body, answer, None
        cut = self.site.random.randrange(len(body) + 1)
        return status, body[:cut], answer, choice([ConnectionResetError(), SilenceError()])

    def _other_part(self, body: bytes, content_range: str) -> tuple[bytes, str]:
        """Return a part that was not requested, or one whose header is wrong."""
        whole, start = self.site.body, self.site.random.randrange(len(self.site.body))
        part = content_range.partition("/")[0]
        lies = ["", "bytes 0-0/1", "bytes */9", "bytes 5-2/9", f"bytes 0-{len(body)}/{10**30}"]
        lies += [f"{part}/*", f"{part}/0", f"{part}/{len(whole) + 1}"]
        if self.site.random.random() < 0.5:
            return whole[start:], f"bytes {start}-{len(whole) - 1}/{len(whole)}"
        return body, self.site.random.choice(lies)


class OpenedFile(Body):
    """What a caller's handler opens: it may not seek, end early, or fail."""

    def __init__(self, site: Site) -> None:
        data, error = site.body, None
        self.claimed_nbytes = len(data)
        self.can_seek = site.random.random() < 0.7
        if site.fails():
            cut = site.random.randrange(len(data) + 1)
            error = site.random.choice([OSError("lost"), TimeoutError(), EOFError(), TypeError()])
            if self.can_seek and site.random.random() < 0.5:
                error = None  # only the length reveals it
            data = data[:cut]
        super().__init__(data, site.random.choice([90, 1000]), error)

    def seekable(self) -> bool:
        return self.can_seek

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == io.SEEK_END:
            return self.claimed_nbytes
        return super().seek(offset, whence)


def fetcher_of(site: Site, monkeypatch: pytest.MonkeyPatch, *, is_timed: bool) -> Fetcher:
    """Return a fetcher of the site, which is HTTP or, if time is of no matter, a handler's."""
    if is_timed or site.random.random() < 0.8:
        monkeypatch.setattr(http, "transport_for", lambda *_: SimulatedHttp(site))
        return Fetcher({"retry_s": _RETRY_S, "hedge": is_timed})

    def open_file(_: str) -> IO[bytes]:
        site.begin_request()
        if site.fails() and site.random.random() < 0.3:
            raise site.random.choice([FileNotFoundError(), OSError("busy"), PermissionError()])
        return OpenedFile(site)

    site.tags, site.is_liar = "none", False
    return Fetcher({"retry_s": _RETRY_S}, {"http": open_file})


def check_save(site: Site, fetcher: Fetcher) -> bool:
    """Download the file; return whether it succeeded."""
    wanted = site.random.choice(site.versions)
    expected = Expected()
    if site.is_liar or site.random.random() < 0.2:
        expected = Expected(sha256=hashlib.sha256(wanted).hexdigest())
    elif site.random.random() < 0.3:
        expected = Expected(nbytes=len(wanted))
    file = io.BytesIO()
    try:
        fetcher.save("http://h/a", file, expected)
    except WidsError:
        return False
    found = file.getvalue()
    assert found in site.versions
    assert expected.sha256 is None or found == wanted
    assert expected.nbytes is None or len(found) == len(wanted)
    return True


def check_read(site: Site, fetcher: Fetcher) -> bool:
    """Read the file as a document; return whether it succeeded."""
    site.is_liar = False  # documents have no digest
    try:
        found = fetcher.read("http://h/a", 10_000)
    except WidsError:
        return False
    assert found in site.versions
    return True


def check_ranges(site: Site, fetcher: Fetcher) -> bool:
    """Read parts of the first version; return whether all succeeded."""
    site.is_liar = False  # CRCs of the index reveal other bytes, but not here
    nbytes = len(site.body)
    possible, is_complete = set(range(len(site.versions))), True
    for _ in range(4):
        start = site.random.randrange(nbytes)
        stop = site.random.randrange(start, nbytes) + 1
        num_requests = site.num_requests
        try:
            # Shards are closed and opened again in an epoch.
            part = fetcher.range_reader("http://h/a", nbytes)(start, stop)
        except WidsError:
            is_complete = False
            continue
        finally:
            assert site.num_requests - num_requests <= _MOST_ATTEMPTS
        of = {number for number, body in enumerate(site.versions) if body[start:stop] == part}
        assert of
        if site.tags in ("strong", "date"):
            possible &= of
    assert possible
    return is_complete


def check_many(site: Site, fetcher: Fetcher) -> bool:
    """Read parts of the first version at once; maybe the reader is interrupted."""
    site.is_liar = False
    draw, nbytes = site.random.randrange, len(site.body)
    starts = [draw(nbytes) for _ in range(draw(1, 24))]
    spans = [(start, draw(start, nbytes) + 1) for start in starts]
    num_left = draw(2 * len(spans))

    def use(_: int, arrived: Arrived) -> Arrived:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            raise KeyboardInterrupt
        return arrived

    reader, found = fetcher.range_reader("http://h/a", nbytes), []
    with suppress(KeyboardInterrupt):
        found = read_all([(reader, *span) for span in spans], use)
    pace = hedging.pace_of("http://h")
    assert (pace._num_hedges - 1) * 20 <= pace.num_requests, "too many were sent twice"
    assert not admission.admission().server("http://h", is_awaited=True).num_in_flight
    is_open = [each.near.fileno() >= 0 for each in site.made if each not in site.idle]
    assert not any(is_open), "the connection of a request that was dropped is open"
    versions, possible = site.versions, set(range(len(site.versions)))
    for (start, stop), part in zip(spans, found, strict=bool(found)):
        if not isinstance(part, WidsError):
            of = {number for number, body in enumerate(versions) if body[start:stop] == part}
            assert of, "these bytes are of no version"
            if site.tags in ("strong", "date"):
                possible &= of
    assert possible, "parts of several versions"
    return any(not isinstance(part, WidsError) for part in found)


def check_places(site: Site, _: Fetcher) -> bool:
    """Let requests pass by their places, in whatever order they are asked for and end."""
    control, draw = admission.Admission(), site.random
    waiting: list[admission.Permit] = []
    passed: list[admission.Permit] = []
    for _ in range(100):
        if draw.random() < 0.6:
            place = draw.random() < 0.5, float(draw.randrange(5))
            waiting.append(control.ask("http://h", 1, ("GET", "/a"), place=place))
        elif passed:
            passed.pop(draw.randrange(len(passed))).leave()
        now = [permit for permit in waiting if permit.is_counted]
        waiting = [permit for permit in waiting if not permit.is_counted]
        passed += now
        for permit in now:
            assert all(permit.place <= other.place for other in waiting), "a later one has passed"
    return True


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """To collect the warnings of thousands of servers would take longer than to check these."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


CHECKS: Final = [check_save, check_save, check_read, check_ranges]


def run(
    num_servers: int,
    first_seed: int,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float = 1e9,
    checks: Sequence[Callable[[Site, Fetcher], bool]] = CHECKS,
    *,
    is_timed: bool = False,
) -> int:
    """Check servers, for some seconds at most; return how many gave what was asked for.

    With ``is_timed`` their responses arrive in pieces, and what is late is requested again.
    """
    clock = Clock()
    here = Machine(clock.monotonic, clock.sleep, clock.poller)
    monkeypatch.setattr(machine, "HERE", here)
    monkeypatch.setattr(Connecting, "start", connect_now)
    monkeypatch.setattr(retry, "_pause", lambda *_: False)
    monkeypatch.setattr(admission, "_LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(retry, "_PROGRESS_NBYTES", _PROGRESS_NBYTES)
    # One thread after the other, so that a seed determines what happens.
    started_s, num_complete = time.monotonic(), 0
    for seed in range(first_seed, first_seed + num_servers):
        if time.monotonic() - started_s > seconds:
            break
        site = Site(seed)
        check = site.random.choice(checks)
        clock.until_s = clock.now_s + _LONGEST_S
        hedging._paces.clear()
        site.clock = clock if is_timed else None
        monkeypatch.setattr(Download, "part_nbytes", site.random.choice([100, 300, 1000, 8000]))
        try:
            fetcher = fetcher_of(site, monkeypatch, is_timed=is_timed)
            num_complete += check(site, fetcher)
        except BaseException as error:
            raise AssertionError(f"the server with seed {seed}, {check.__name__}") from error
        finally:
            for connection in site.made:
                connection.close()
        # Each further piece of a file allows as many more failures.
        assert site.num_requests <= 4 * _MOST_ATTEMPTS * (1 + 3000 // _PROGRESS_NBYTES), seed
    return num_complete


def test_any_server_gives_one_version_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that fails in any way, no mixed or partial file is returned."""
    assert 60 < run(600, 0, monkeypatch) < 600


def test_a_length_of_one_byte_that_is_a_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without a tag that starts over is requested whole, whatever its length was said to be.

    It was found by `test_many_more_servers`.
    """
    run(1, 1795387261792394877, monkeypatch)


def test_a_part_with_more_than_it_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is all of it, or an error. It was found by `test_many_more_servers`."""
    run(1, 1795967776224120073, monkeypatch)


def test_a_document_that_becomes_longer_while_it_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its second request is for all of it again. It was found by `test_many_more_servers`."""
    run(1, 1795969233032415321, monkeypatch)


def test_many_parts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is of the one version, wherever the reader is interrupted, and nothing stays behind."""
    assert run(400, 0, monkeypatch, checks=[*CHECKS, check_many], is_timed=True) > 100


def test_requests_pass_by_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read first comes first."""
    run(50, 0, monkeypatch, checks=[check_places], is_timed=True)


_BUFFER = bytearray(1 << 20)


def _in_one_buffer(_: object, nbytes: int) -> memoryview:
    return memoryview(_BUFFER)[:nbytes]


def _closed(loop: _Loop, exchange: Exchange, _: object = None) -> None:
    loop._forget(exchange)
    exchange.connection.close()


MUTANTS = [
    pytest.param(
        *(admission, "insort", lambda all_, one, **_: all_.append(one), check_places),
        id="places are ignored",
    ),
    pytest.param(range_loop, "heappush", lambda *_: None, check_many, id="a retry is forgotten"),
    pytest.param(*(_Loop, "_end", _closed, check_many), id="what ends by an error stays in flight"),
    pytest.param(
        *(machine.Memory, "get", _in_one_buffer, check_many), id="bytes arrive in another's buffer"
    ),
    pytest.param(
        *(Read, "keeps", lambda *_: True, check_many),
        id="the rest of an answer without a version is added",
    ),
    pytest.param(
        *(hedging.Pace, "lets_hedge", lambda *_, **__: True, check_many), id="all may be sent twice"
    ),
]


@pytest.mark.parametrize(("place", "name", "mutant", "check"), MUTANTS)
def test_a_broken_loop_is_found(
    place: Any,
    name: str,
    mutant: object,
    check: Callable[[Site, Fetcher], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checks are not empty: each of these mistakes fails at some server."""
    monkeypatch.setattr(place, name, mutant)
    with pytest.raises(AssertionError, match="the server with seed"):
        run(2000, 0, monkeypatch, checks=[check], is_timed=True)


@pytest.mark.seeds
def test_many_more_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a minute, with other servers each time."""
    run(
        1_000_000,
        time.time_ns(),
        monkeypatch,
        seconds=60,
        checks=[*CHECKS, check_many],
        is_timed=True,
    )


def test_endless_starting_over_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to be fetched again is no progress."""
    # Waits are not waited for, and a machine that is busy takes no time either.
    monkeypatch.setattr(retry, "_pause", lambda *_: False)
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: 1.0))
    monkeypatch.setattr(admission, "_LONGEST_PAUSE_S", 0.0)
    data, requests = bytes(5_000_000), []

    def open_file(_: str) -> IO[bytes]:
        requests.append(1)
        assert len(requests) < 100
        return Body(data[: (2_000_000, 0)[len(requests) % 2]], 1 << 20, OSError("lost"))

    fetcher = Fetcher({"retry_s": _RETRY_S}, {"http": open_file})
    with pytest.raises(WidsError, match=r"waited [2-9]\.\d s for http://h, in \d+ attempts"):
        fetcher.save("http://h/a", io.BytesIO())
    assert len(requests) <= 2 * _MOST_ATTEMPTS
