"""Parts of one remote file, all from the same version of it."""

from __future__ import annotations

import email.utils
import pickle
import random
import signal
import socket
import statistics
import threading
import time
import tracemalloc
from contextlib import suppress
from itertools import count
from typing import Any

import fsspec
import pytest
from conftest import in_child, raises
from events import LONG_S
from loopback import Fault, Page, Server
from transfers import DATA

from wids.errors import FetchError, MismatchError
from wids.storage.fetch import Fetcher
from wids.storage.ranges import WholeFileError
from wids.storage.transport.schemes import Plan, Transports
from wids.storage.transport.stream import CHUNK_NBYTES

pytestmark = pytest.mark.usefixtures("quick_retries")

OTHER = random.Random(2).randbytes(len(DATA))


def test_only_the_range_is_sent(server: Server) -> None:
    """A range is one request, and the server sends no other byte."""
    read = Fetcher().range_reader(server.page("/a", DATA), len(DATA))

    assert read(1000, 1500) == DATA[1000:1500]
    assert read(0, 7) == DATA[:7]
    assert (server.num_sent, server.log[0].range) == (507, "bytes=1000-1499")


def test_a_range_arrives_without_copies(server: Server) -> None:
    """The bytes are in memory once, but where this machine stopped and they came in two pieces."""
    body = bytes(8 << 20)
    reader = Fetcher().range_reader(server.page("/a", body), len(body))
    nbytes = CHUNK_NBYTES
    peaks = []
    for start in range(0, len(body) - nbytes, nbytes):
        tracemalloc.start()
        view = reader.view(start, start + nbytes)
        peaks.append(tracemalloc.get_traced_memory()[1] / nbytes)
        tracemalloc.stop()
        assert len(view) == nbytes
        assert view.readonly
    assert statistics.median(peaks) < 1.5


def test_a_range_of_another_file_is_refused(server: Server) -> None:
    """The length of the whole file, which each response states, must be the expected one."""
    url = server.page("/a", DATA)

    with raises(MismatchError, f"expected a file of 9 bytes, as its index says, found {len(DATA)}"):
        Fetcher().range_reader(url, 9)(1, 5)


def test_a_server_without_ranges_is_an_error(server: Server) -> None:
    """The whole file is not transferred for a few bytes."""
    read = Fetcher().range_reader(server.page("/a", DATA * 10, has_ranges=False), 10 * len(DATA))

    with raises(WholeFileError, "whole files only", 'access="download"'):
        read(1000, 1500)
    # The beginning of the file can be read without ranges, and then it still has none.
    assert read(0, 500) == DATA[:500]
    with raises(WholeFileError, "whole files only"):
        read(1000, 1500)


def test_ranges_are_requested_again(server: Server) -> None:
    """A range is retried after a cut, also one that looks like its end, or while it is busy."""
    cuts = [Fault(after_nbytes=100, how=how) for how in ("reset", "short")]
    url = server.page("/a", DATA, faults=[Fault(503), *cuts])

    assert Fetcher().range_reader(url, len(DATA))(1000, 5000) == DATA[1000:5000]


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (1000, 1500)])
def test_a_file_that_is_encoded_on_its_way(server: Server, start: int, stop: int) -> None:
    """The error says so, also if the encoded bytes end before the part (the status is 416)."""

    class Encoded(Page):
        def answer(self, *arguments: Any) -> Any:
            status, *rest, headers = super().answer(*arguments)
            return status, *rest, headers | {"Content-Encoding": "gzip"} if status == 206 else {}

    server.pages["/a"] = Encoded(DATA[:100])
    with raises(FetchError, server.url, "Content-Encoding gzip; configure the server"):
        Fetcher().range_reader(server.url + "/a", len(DATA))(start, stop)


@pytest.mark.parametrize("start", [0, 1000])
def test_a_replaced_file_is_an_error(server: Server, start: int) -> None:
    """Another version of the same length is not mixed with the first (CACHE-30)."""
    url = server.page("/a.tar", DATA)
    read = Fetcher().range_reader(url + "?SECRET", len(DATA))
    assert read(start, 1500) == DATA[start:1500]

    server.pages["/a.tar"].body = OTHER

    with raises(MismatchError, url, "it was replaced while it was being read"):
        read(start, 1500)
    assert server.log[-1].headers["if-range"].startswith('"')
    server.pages["/a.tar"].body = DATA
    assert read(start, 1500) == DATA[start:1500]


def test_a_server_that_ignores_if_range(server: Server) -> None:
    """The tag of each response is compared, not only its status (CACHE-30)."""
    read = Fetcher().range_reader(server.page("/a", DATA), len(DATA))
    assert read(0, 9) == DATA[:9]
    headers = {"ETag": '"other"', "Content-Range": f"bytes 0-8/{len(DATA)}"}
    server.pages["/a"].faults.append(Fault(206, headers=headers, body=OTHER[:9]))

    with raises(MismatchError, "replaced while it was being read"):
        read(0, 9)


def test_the_version_outlives_the_reader(server: Server) -> None:
    """A shard that is opened again is still the one that was read first (CACHE-30)."""
    url = server.page("/a", DATA)
    fetcher = Fetcher()
    assert fetcher.range_reader(url, len(DATA))(0, 9) == DATA[:9]
    server.pages["/a"].body = OTHER

    for other in (fetcher, pickle.loads(pickle.dumps(fetcher))):  # noqa: S301 - made here
        with raises(MismatchError, "replaced"):
            other.range_reader(url, len(DATA))(0, 9)
    assert Fetcher().range_reader(url, len(DATA))(0, 9) == OTHER[:9]


def test_threads_agree_on_the_first_version(server: Server) -> None:
    """Of the first requests, which are sent together, only those of one version succeed."""
    url = server.page("/a", DATA)
    read = Fetcher().range_reader(url, len(DATA))
    results: list[bytes] = []
    versions, numbers, together = [Page(DATA), Page(OTHER)], count(), threading.Barrier(6)

    class Alternating(Page):
        def answer(self, *arguments: Any) -> Any:
            number = next(numbers)
            if number < 6:
                together.wait(LONG_S)
            return versions[number % 2].answer(*arguments)

    server.pages["/a"] = Alternating(DATA)

    def run() -> None:
        try:
            results.append(read(1000, 21_000))
        except MismatchError:
            results.append(b"replaced")

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results) - {b"replaced"}) == 1
    assert b"replaced" in results


def _last_modified(age_s: float) -> dict[str, str]:
    now_s = time.time()
    return {
        "Last-Modified": email.utils.formatdate(now_s - age_s, usegmt=True),
        "Content-Range": f"bytes 0-8/{len(DATA)}",
    }


def test_without_a_strong_tag_only_the_length_is_compared(server: Server) -> None:
    """A weak tag may stay when bytes change, or change when they stay (RFC 9110, 8.8.1)."""
    url = server.page("/a", DATA, has_tag=False)
    read = Fetcher().range_reader(url, len(DATA))
    for tag in ({"ETag": 'W/"1"'}, {"ETag": 'W/"2"'}, _last_modified(1), _last_modified(9), {}):
        headers = {"Content-Range": f"bytes 0-8/{len(DATA)}", **tag}
        server.pages["/a"].faults.append(Fault(206, headers=headers, body=DATA[:9]))
        assert read(0, 9) == DATA[:9]
    assert all("if-range" not in request.headers for request in server.log)


def test_an_old_date_is_a_strong_tag(server: Server) -> None:
    """A file that was modified long before it was sent has this date once (RFC 9110, 8.8.2.2)."""
    read = Fetcher().range_reader(server.page("/a", DATA), len(DATA))
    for age_s in (7200, 3600):
        fault = Fault(206, headers=_last_modified(age_s), body=DATA[:9])
        server.pages["/a"].faults.append(fault)
    assert read(0, 9) == DATA[:9]

    with raises(MismatchError, "replaced while it was being read"):
        read(0, 9)
    assert server.log[-1].headers["if-range"].endswith("GMT")


class Versions(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A file system with one file that has tags, and is replaced before one of the requests."""

    cachable = False
    replaced_before = 0
    num_requests = 0

    @classmethod
    def request(cls) -> tuple[bytes, str]:
        """Count a request; return the current version and its tag."""
        is_old = cls.num_requests < cls.replaced_before
        cls.num_requests += 1
        return (DATA, "1") if is_old else (OTHER, "2")

    def info(self, path: str, **_: object) -> dict[str, object]:
        body, tag = self.request()
        return {"name": path, "size": len(body), "type": "file", "ETag": tag}

    def cat_file(self, path: str, start: int = 0, end: int = 0, **_: object) -> bytes:  # noqa: ARG002
        return self.request()[0][start:end]


@pytest.mark.parametrize("replaced_before", range(10))
def test_a_file_system_with_tags(replaced_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the file is replaced, between two requests too, no part is of another version."""
    fsspec.register_implementation("versions", Versions, clobber=True)
    monkeypatch.setattr(Versions, "replaced_before", replaced_before)
    monkeypatch.setattr(Versions, "num_requests", 0)
    read = Fetcher().range_reader("versions://a", len(DATA))

    parts = {}
    for start in range(0, 3000, 1000):
        with suppress(MismatchError):
            parts[start] = read(start, start + 1000)
    assert parts
    assert any(
        all(part == body[start : start + 1000] for start, part in parts.items())
        for body in (DATA, OTHER)
    )
    assert len(parts) == 3 or 0 < replaced_before < 8
    assert Versions.num_requests <= 12


def test_tiny_chunks_take_the_memory_of_their_bytes() -> None:
    """A server that sends one byte at a time does not make the reader keep an object for each."""

    def serve(listener: socket.socket) -> None:
        for _ in range(2):  # the loop of ranges leaves it to a stream
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(65_536)
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                connection.sendall(head + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        tracemalloc.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/a"
            assert Fetcher().read(url, 1 << 30) == b"x" * 50_000
            _, peak_nbytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_nbytes < 8 << 20


def test_a_fork_while_another_thread_begins_to_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child waits for no thread that it does not have, whichever file that was about to read."""
    url, plan = server.page("/a", DATA), Transports.plan
    has_begun, is_over = threading.Event(), threading.Event()

    def slow(transports: Transports, url: str) -> Plan:
        if threading.current_thread() is thread:
            has_begun.set()
            is_over.wait(LONG_S)
        return plan(transports, url)

    monkeypatch.setattr(Transports, "plan", slow)
    thread = threading.Thread(target=lambda: Fetcher().range_reader(url, len(DATA))(0, 9))
    thread.start()
    assert has_begun.wait(LONG_S)

    def reads() -> bool:
        signal.alarm(int(LONG_S))  # which ends a child that waits
        return Fetcher().range_reader(url, len(DATA))(0, 9) == DATA[:9]

    has_read = in_child(reads)
    is_over.set()
    thread.join()
    assert has_read
