"""Requests that come late are sent once more."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from functools import partial
from typing import Any

import pytest
from conftest import raises
from events import LONG_S, in_time, wait_for
from loopback import Fault, Page, Request, Server
from transfers import saved

from wids.errors import FetchError, MismatchError
from wids.storage.download import Download, Expected
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import in_threads
from wids.storage.transport import hedging
from wids.storage.transport.admission import admission
from wids.storage.transport.hedging import Pace

DATA = bytes(range(256)) * 4000
SILENT, STALLED = Fault(how="silent"), Fault(after_nbytes=100_000, how="stall")
PATIENT = {"timeout": 50, "deadline_s": 40}
"""Without a second request a stalled read would end with an error, and not with bytes."""


@pytest.fixture(autouse=True)
def _hedges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIDS_HEDGE", "1")


@pytest.fixture
def _unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this machine stops, another request may come late too, and be sent twice."""
    monkeypatch.setattr(hedging, "_REQUESTS_A_HEDGE", 0)


def asked(server: Server) -> list[str | None]:
    """Return the ranges of the requests."""
    return [request.range for request in server.log]


def begin_again(server: Server) -> None:
    """Forget all requests: in the last attempt this machine stopped, and one came late."""
    server.log.clear()
    hedging._paces.clear()


@pytest.mark.parametrize("nbytes", [None, 100_000, 300_000])
def test_a_range_that_does_not_come_is_requested_again(
    server: Server, nbytes: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The first answer counts, and the log has no secrets (SEC-4)."""
    fault = SILENT if nbytes is None else Fault(after_nbytes=nbytes, how="stall")

    def attempt() -> bool | None:
        begin_again(server)
        url = server.page("/a", DATA, faults=[fault])
        read = Fetcher(PATIENT).range_reader(url + "?SECRET", len(DATA))
        with caplog.at_level(logging.INFO, "wids"):
            assert read(1000, 900_001) == DATA[1000:900_001]
        wanted = ["bytes=1000-900000", f"bytes={1000 + (nbytes or 0)}-900000"]
        return True if asked(server) == wanted else None

    in_time(attempt)
    assert re.search(r"/a\?…: requested again after \d+\.\d\d s", caplog.text)
    assert "SECRET" not in caplog.text
    wait_for(lambda: admission().server(server.url).num_in_flight == 0)


@pytest.mark.usefixtures("_unbounded")
@pytest.mark.parametrize("number", [0, 1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", [SILENT, pytest.param(STALLED, marks=pytest.mark.long)])
def test_a_part_of_a_download_that_does_not_come_is_requested_again(
    server: Server, fault: Fault, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first one, whose response states the length; and every byte comes from one."""
    monkeypatch.setattr(Download, "part_nbytes", 400_000)
    server.page("/a", DATA)
    server.pages["/a"] = Nth(DATA, number, fault)
    digest = hashlib.sha256(DATA).hexdigest()
    expected = Expected(len(DATA), sha256=digest)
    assert saved(f"{server.url}/a", expected, storage_options=PATIENT) == DATA
    assert len(server.log) >= 4


class Nth(Page):
    """A page with a fault in the n-th request, whose body may be another afterwards."""

    def __init__(self, body: bytes, number: int, fault: Fault, then: bytes | None = None) -> None:
        super().__init__(body)
        self.number, self.fault, self.then = number, fault, then
        self.lock, self.is_replaced = threading.Lock(), threading.Event()

    def next_fault(self, request: Request) -> Fault | None:  # noqa: ARG002
        with self.lock:
            self.number -= 1
            return self.fault if self.number == -1 else None

    def answer(self, request: Request, fault: Fault | None) -> Any:
        if self.then is not None and fault is None and self.number < -1:
            assert self.is_replaced.wait(LONG_S)
        found = super().answer(request, fault)
        if fault is not None and self.then is not None:
            self.body = self.then
            self.is_replaced.set()
        return found


OTHER = DATA[::-1]


@pytest.mark.long
@pytest.mark.usefixtures("_unbounded")
def test_a_second_answer_of_another_version_is_not_mixed_with_the_first(server: Server) -> None:
    """A read of which nothing was known is of the new version; another one is an error."""
    server.pages["/a"] = Nth(DATA, 0, STALLED, OTHER)
    read = Fetcher(PATIENT).range_reader(f"{server.url}/a", len(DATA))
    assert read(0, 900_000) == OTHER[:900_000]
    hedging._paces.clear()
    server.pages["/b"] = Nth(DATA, 1, STALLED, OTHER)
    read = Fetcher(PATIENT).range_reader(f"{server.url}/b", len(DATA))
    assert read(0, 1) == DATA[:1]
    with raises(MismatchError, "it was replaced while it was being read"):
        read(0, 900_000)


@pytest.mark.usefixtures("_unbounded")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_download_of_which_another_version_arrives_starts_over(
    server: Server, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever part the second request was for, all bytes are of one version."""
    monkeypatch.setattr(Download, "part_nbytes", 400_000)
    server.pages["/a"] = Nth(DATA, number, STALLED, OTHER)
    assert saved(f"{server.url}/a", storage_options=PATIENT) == OTHER


@pytest.mark.long
def test_the_rest_of_a_file_without_versions_is_not_requested_again(server: Server) -> None:
    """Nothing would reveal that it is of another version; what has not begun is."""
    url = server.page("/a", DATA, faults=[SILENT, STALLED], has_tag=False)
    read = Fetcher({"timeout": 2}).range_reader(url, len(DATA))
    assert read(0, 900_000) == DATA[:900_000]
    # The second request stalled too, in its body.
    assert set(asked(server)) == {"bytes=0-899999"}
    assert len(server.log) >= 3


@pytest.mark.long
def test_a_whole_file_may_come_in_place_of_its_rest(server: Server) -> None:
    """A server without ranges sends all of it again, which counts if it is there first."""
    stalled = Fault(after_nbytes=300_000, how="stall")

    def attempt() -> bool | None:
        begin_again(server)
        url = server.page("/a", DATA, faults=[stalled], has_ranges=False)
        assert Fetcher(PATIENT).read(url, len(DATA)) == DATA
        return True if asked(server) == [None, f"bytes=300000-{len(DATA) - 1}"] else None

    in_time(attempt)


class Uneven(Page):
    """A page of which a quarter of the requests take a second more."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.lock, self.num_asked = threading.Lock(), 0

    def answer(self, request: Request, fault: Fault | None) -> Any:
        with self.lock:
            self.num_asked += 1
            is_slow = self.num_asked % 4 == 3
        time.sleep(1.2 if is_slow else 0.03)
        return super().answer(request, fault)


@pytest.mark.long
def test_at_most_one_request_in_twenty_is_sent_twice(server: Server) -> None:
    """However many are late; without a version they are read from their beginning."""
    server.pages["/a"] = Uneven(DATA)
    read = Fetcher().range_reader(f"{server.url}/a", len(DATA))
    # Some to learn from, in which too few are slow to be usual.
    server.pages["/a"].num_asked = -1000
    in_threads([partial(read, n, n + 1000) for n in range(32)], "test")
    server.pages["/a"].num_asked = 0
    found = in_threads([partial(read, n, n + 1000) for n in range(100)], "test")
    assert found == [DATA[n : n + 1000] for n in range(100)]
    # Two threads at once may each send the last one.
    assert 1 <= len(server.log) - 132 <= 2 + 132 // 20


def test_one_request_is_kept_for_what_has_stalled() -> None:
    """Late ones are sent twice only while that leaves one; nothing needs to be known of others."""
    pace = Pace()
    assert (pace.lets_hedge(is_stalled=True), pace.lets_hedge(is_stalled=False)) == (True, False)
    pace.num_requests = 20
    assert pace.lets_hedge(is_stalled=False)
    pace._num_hedges = 1
    assert (pace.lets_hedge(is_stalled=True), pace.lets_hedge(is_stalled=False)) == (True, False)
    pace._num_hedges = 2
    assert not pace.lets_hedge(is_stalled=True)


@pytest.mark.parametrize(
    "options",
    [
        *(pytest.param(case, marks=pytest.mark.long) for case in ({"hedge": False}, {})),
        {"http://": {"hedge": 0, "deadline_s": 1.5}},
    ],
)
def test_nothing_is_sent_twice_where_that_is_off(
    server: Server, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an option for all servers, for some, or of the environment."""
    monkeypatch.setenv("WIDS_DEADLINE_S", "1.5")
    if not options:
        monkeypatch.setenv("WIDS_HEDGE", "0")
    url = server.page("/a", DATA, always=SILENT)
    with raises(FetchError, "deadline_s"):
        Fetcher(options).range_reader(url, len(DATA))(0, 10)
    assert len(server.log) <= 1


def test_a_wrong_option_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the option, or the variable."""
    with raises(ValueError, "storage_options: hedge: expected true or false", "'maybe'"):
        Fetcher({"hedge": "maybe"})
    monkeypatch.setenv("WIDS_HEDGE", "maybe")
    with raises(ValueError, "WIDS_HEDGE: expected true or false"):
        Fetcher()
