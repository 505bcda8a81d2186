"""One deadline for a read, whatever it waits for."""

from __future__ import annotations

import math
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import raises
from events import LONG_S, wait_for
from loopback import Fault, Server, has_unread
from transfers import answering, permit_of

from wids.errors import FetchError
from wids.storage.fetch import Fetcher
from wids.storage.transport import retry
from wids.storage.transport.admission import admission
from wids.storage.transport.request_limit import FIRST_AWAITED
from wids.storage.transport.retry import Attempts


@pytest.fixture
def passed_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass, for deadlines alone, when a test adds them."""
    passed_s: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed_s), sleep=time.sleep)
    monkeypatch.setattr(retry, "time", clock)
    return passed_s


def test_a_read_of_many_attempts_ends(
    server: Server, passed_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds count over all attempts, and the error says what they were spent on."""
    url = server.page("/a", b"abc", always=Fault(503)) + "?SECRET"
    monkeypatch.setattr("wids.storage.transport.admission._LONGEST_PAUSE_S", 0.0)
    failed = Attempts.failed

    def pass_at_once(*args: Any) -> float:
        passed_s.append(failed(*args))
        return 0.0

    monkeypatch.setattr(Attempts, "failed", pass_at_once)
    with raises(
        TimeoutError, "/a?…: expected all bytes within 60 s (deadline_s)", "for the next attempt"
    ) as caught:
        Fetcher({"deadline_s": 60}).read(url, 3)
    assert len(passed_s) > 5
    assert 40 < sum(passed_s[:-1]) <= 60  # the last wait reaches the deadline
    assert isinstance(caught.value, FetchError)
    assert "SECRET" not in str(caught.value)


def test_a_silent_server_ends_a_read_at_its_deadline(passed_s: list[float]) -> None:
    """Neither the time-out of the server nor the retries matter then."""
    is_over = threading.Event()

    def stay_silent(_: socket.socket) -> None:
        passed_s.append(60)
        is_over.wait(LONG_S)

    with answering(stay_silent) as url:
        started_s = time.monotonic()
        with raises(TimeoutError, "deadline_s", "for a connection or a response"):
            Fetcher({"deadline_s": 60}).read(url + "/a", 3)
        assert time.monotonic() - started_s < 10  # the time-out is 15 s
        is_over.set()


def test_a_slow_server_ends_a_read_at_its_deadline(passed_s: list[float]) -> None:
    """Bytes that arrive, but too slowly, do not extend it."""

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        wait_for(lambda: not has_unread(connection))
        passed_s.append(60)
        for _ in range(1000):
            connection.sendall(b"2")
            time.sleep(0.02)

    with answering(trickle) as url:
        with raises(TimeoutError, "deadline_s", "for bytes"):
            Fetcher({"deadline_s": 60}).read(url + "/a", 1000)


def test_a_connection_that_comes_after_the_deadline_is_used(
    server: Server, passed_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that still looks up a name does not hold up the read, and its work is not lost."""
    is_found, look_up, num_looked_up = threading.Event(), socket.getaddrinfo, []

    def look_up_slowly(*args: Any, **options: Any) -> Any:
        num_looked_up.append(1)
        passed_s.append(60)
        is_found.wait(LONG_S)
        return look_up(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_slowly)
    fetcher, url = Fetcher({"deadline_s": 60}), server.page("/a", b"abc")
    with raises(TimeoutError, "deadline_s", "for a connection or a response"):
        fetcher.read(url, 3)
    is_found.set()
    passed_s.clear()
    wait_for(lambda: all(each.name != "wids-connect" for each in threading.enumerate()))
    assert fetcher.read(url, 3) == b"abc"
    assert len(num_looked_up) == 1


def test_a_wait_for_a_turn_ends_at_the_deadline(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of others count too."""
    monkeypatch.setattr("wids.storage.transport.admission._SILENT_S", math.inf)
    url = server.page("/a", b"abc")
    permits = [permit_of(admission(), server.url, is_awaited=True) for _ in range(FIRST_AWAITED)]
    with raises(TimeoutError, "deadline_s", "for its turn"):
        Fetcher({"deadline_s": 1}).read(url, 3)
    for permit in permits:
        permit.leave()


def test_where_the_deadline_is_stated(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the options, those of a prefix or the environment, or nowhere."""
    url = server.page("/a", b"abc")

    def stated(options: dict[str, object] | None = None) -> float:
        return Fetcher(options)._transports.plan(url).timeouts.deadline_s

    assert stated() == float("inf")
    monkeypatch.setenv("WIDS_DEADLINE_S", "20")
    assert stated() == 20
    assert stated({"deadline_s": 7}) == 7
    assert stated({"s3://": {"deadline_s": 3}, f"{server.url}/": {"deadline_s": 4}}) == 4
    monkeypatch.setenv("WIDS_DEADLINE_S", "soon")
    with raises(ValueError, "WIDS_DEADLINE_S: expected a number of seconds, found 'soon'"):
        stated()
    assert Fetcher({"deadline_s": 30}).read(url, 3) == b"abc"
