"""Several shards are fetched at a time: how that ends after an error."""

from __future__ import annotations

import threading

import pytest
from events import wait_for
from loopback import Server

from wids.shards.counting import fetch_all
from wids.storage.download import Report
from wids.storage.fetch import Fetcher


def test_an_interrupt_ends_the_waits_for_servers(server: Server) -> None:
    """After Ctrl-C, no thread waits for a store that is away, or keeps the process from ending."""
    fetcher, url = Fetcher({"retry_s": 60}), server.page("/a.tar", b"", 503)
    found: list[threading.Thread] = []

    def fetch(number: int, _: Report) -> None:
        found.append(threading.current_thread())
        if number == 0:
            fetcher.read(url, 10)
        wait_for(lambda: server.log)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_all(fetch, {0: None, 1: None}, num_threads=2)
    for thread in found:
        thread.join(30)  # half of `retry_s`
    assert [(thread.is_alive(), thread.daemon) for thread in found] == [(False, True)] * 2
