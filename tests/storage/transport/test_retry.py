"""Which failures are retried, how long the waits are, and when to give up."""

from __future__ import annotations

import io
import random
from typing import IO, Any

import pytest
from conftest import raises
from loopback import Fault, Server
from transfers import DATA, saved, waited_s

from wids.errors import FetchError
from wids.storage.fetch import Fetcher
from wids.storage.transport import retry

pytestmark = pytest.mark.usefixtures("quick_retries")

FAILED = retry.Attempts.failed
"""What `quick_retries` replaces."""


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_a_temporary_failure_is_retried(server: Server, status: int) -> None:
    """A server that is busy for a moment is asked again."""
    url = server.page("/a", DATA, faults=[Fault(status), Fault(status)])

    assert saved(url) == DATA
    assert len(server.log) == 3


def test_a_permanent_failure_is_not_retried(server: Server) -> None:
    """An error page is never a document or part of a file; only a busy server is asked again."""
    for status, is_final in ((403, True), (401, True), (400, True), (500, False), (503, False)):
        url = server.page(f"/{status}", b"<html>", status)
        with raises(FetchError, f"expected HTTP status 200, found {status}"):
            saved(url, storage_options={"retry_s": 5})
        assert (server.requests.count(f"/{status}") == 1) is is_final


def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the waits from now on."""
    waits: list[float] = []

    def noted(*args: Any) -> float:
        waits.append(FAILED(*args))
        return 0.0

    monkeypatch.setattr(retry.Attempts, "failed", noted)
    return waits


def test_an_error_is_not_remembered(server: Server) -> None:
    """A file that was forbidden or missing can be read once the server offers it."""
    url = server.page("/a", DATA, faults=[Fault(404), Fault(403)])
    fetcher = Fetcher()
    for _ in range(2):
        with pytest.raises(FetchError):
            fetcher.read(url, 1 << 30)

    assert fetcher.read(url, 1 << 30) == DATA


def test_the_server_says_how_long_to_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After is followed, and a little more, so that clients do not come back together."""
    waits = waited(monkeypatch)
    url = server.page("/a", b"x", faults=[Fault(503, headers={"Retry-After": "3"})])

    assert saved(url) == b"x"
    assert len(waits) == 1
    assert 3 < waits[0] < 3.3


@pytest.mark.parametrize(("status", "longest_s"), [(503, 1.0), (500, 10.0)])
def test_who_is_refused_often_does_not_wait_longer_and_longer(
    status: int, longest_s: float, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admission control limits requests; others would have the server meanwhile."""
    waits = waited(monkeypatch)
    monkeypatch.setattr(random, "uniform", lambda _, longest_s: longest_s)
    url = server.page("/a", b"x", faults=[Fault(status)] * 8)

    assert saved(url) == b"x"
    assert waits[:2] == [0.2, 0.4]
    assert max(waits) == longest_s


def test_a_stall_is_noticed(server: Server) -> None:
    """Silence for longer than the time-out counts as a failed connection."""
    url = server.page("/a", DATA, faults=[Fault(after_nbytes=1_000_000, how="stall")])

    assert saved(url, storage_options={"timeout": 0.5}) == DATA
    assert len(server.log) >= 2  # a machine that is busy is silent too


def test_a_server_that_never_recovers_is_given_up(server: Server) -> None:
    """Failures without progress end after ``retry_s``."""
    url = server.page("/a", DATA, always=Fault(503))

    with raises(FetchError, "found 503", f" s for {server.url}, in ") as caught:
        saved(url, storage_options={"retry_s": 5})
    assert 5 <= waited_s(caught.value) < 15


@pytest.mark.parametrize("how", ["close", "reset"])
def test_responses_that_always_break_off_are_no_outage(server: Server, how: str) -> None:
    """Five of them without a megabyte in between end the read: the length is wrong."""
    url = server.page("/a", DATA, always=Fault(after_nbytes=1000, how=how), has_tag=False)
    with raises(FetchError, "the connection failed", "tried 5 times"):
        saved(url)
    assert len(server.log) == 5
    with raises(FetchError, "the connection failed", "tried 5 times"):
        Fetcher().read(url, 1 << 30)
    assert len(server.log) == 10


def test_a_driver_whose_files_are_short() -> None:
    """Neither is a file that always has fewer bytes than its length."""
    fetcher = Fetcher(handlers={"short": lambda _: Short(b"abc")})
    with raises(FetchError, "expected 4 bytes, found 3", "tried 5 times"):
        fetcher.read("short://host/a", 10)


class Short(io.BytesIO):
    """A file that states one byte more than it has."""

    def seek(self, offset: int, whence: int = 0) -> int:
        return super().seek(offset, whence) + (whence == io.SEEK_END)


def test_what_a_driver_cannot_do_is_not_retried() -> None:
    """It could not do it the next time either."""
    calls = []

    def opener(url: str) -> IO[bytes]:
        calls.append(url)
        if "bad" in url:
            raise NotImplementedError
        return io.BytesIO(b"abc")

    fetcher = Fetcher(handlers={"some": opener})
    assert fetcher.read("some://host/good", 10) == b"abc"
    with raises(FetchError, "some://host/bad: expected a readable file, found: NotImplemented"):
        fetcher.read("some://host/bad", 10)
    assert len(calls) == 2


def test_a_server_that_makes_slow_progress_is_not_given_up(server: Server) -> None:
    """Failures are forgotten once another megabyte has arrived."""
    faults = [Fault(after_nbytes=1_200_000 if n % 2 else 1000) for n in range(8)]
    url = server.page("/a", DATA, faults=faults)

    assert saved(url) == DATA
