"""Processes that share a server which refuses what is beyond a number of requests (CACHE-40)."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection

import pytest
from events import LONG_S, wait_for
from loopback import Server

from wids.storage.fetch import Fetcher
from wids.storage.ranges import RangeReader
from wids.storage.reading_threads import in_threads
from wids.storage.transport import shared_refusals
from wids.storage.transport.gate import gate

MOST = 6
NBYTES = 1_000_000


@pytest.fixture
def small_server() -> Iterator[Server]:
    """A server that takes six requests at a time, each of which lasts about 0.3 s."""
    server = Server(rate_nbytes=MOST * NBYTES / 0.3)
    server.max_requests = MOST
    server.page("/large", bytes(NBYTES))
    server.page("/small", bytes(1000))
    yield server
    server.close()


def read_in_child(reader: RangeReader, results: Connection) -> None:
    """Read small ranges, as a batch does; send the seconds and the bytes."""
    started_s = time.monotonic()
    found = in_threads([partial(reader, n, n + 10) for n in range(40)], "test")
    results.send((time.monotonic() - started_s, found == [bytes(10)] * 40))


@pytest.mark.alone
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_that_fills_a_server_makes_room_for_another(
    small_server: Server, method: str
) -> None:
    """A worker soon reads its ranges, few of its requests are refused, and both continue."""
    shared_refusals.share()
    fetcher = Fetcher()
    large = fetcher.range_reader(f"{small_server.url}/large", NBYTES)
    small = fetcher.range_reader(f"{small_server.url}/small", 1000)
    is_over = threading.Event()

    def fill() -> None:
        while not is_over.is_set():
            large(0, NBYTES)

    threads = [threading.Thread(target=fill) for _ in range(2 * MOST)]
    for thread in threads:
        thread.start()
    try:
        wait_for(
            lambda: (
                gate().server(small_server.url).limit.value <= MOST
                and small_server.num_busy >= MOST
            ),
            "the server is full",
        )
        context = multiprocessing.get_context(method)
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=read_in_child, args=(small, sender))
        child.start()
        assert receiver.poll(LONG_S)
        seconds, is_right = receiver.recv()
        child.join()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    asked = [request for request in small_server.log if request.path == "/small"]
    assert is_right
    assert seconds < 20
    assert sum(request.is_refused for request in asked) <= 15


def test_those_that_wait_are_not_refused_one_after_the_other(small_server: Server) -> None:
    """While a server has no room at all, single requests find out when it has."""
    small_server.max_requests = 0
    reader = Fetcher().range_reader(f"{small_server.url}/small", 1000)
    reader_thread = threading.Thread(target=reader, args=(0, 10))
    reader_thread.start()
    wait_for(lambda: small_server.log)
    threads = [threading.Thread(target=reader, args=(n, n + 10)) for n in range(100)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    small_server.max_requests = MOST
    for thread in [reader_thread, *threads]:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert sum(request.is_refused for request in small_server.log) <= 30


def test_no_pickle_has_the_numbers_but_that_of_a_process() -> None:
    """A fetcher that is pickled by hand shares nothing."""
    shared_refusals.share()
    assert shared_refusals.passed() is None
    before = shared_refusals.number("http://a")
    shared_refusals.note("http://a")
    assert shared_refusals.number("http://a") != before
    assert shared_refusals.number("http://b") == 0
