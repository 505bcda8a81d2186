"""Hundreds of requests at a time: forks, Ctrl-C, and programs that end meanwhile."""

from __future__ import annotations

import math
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from conftest import in_child, write_tar
from events import LONG_S, after, wait_for
from loopback import Fault, Server

import wids
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import in_threads
from wids.storage.transport.admission import admission
from wids.storage.transport.retry import CancelledError, cancelled_by

DATA = bytes(range(256)) * 400

_PROGRAM = """
import sys, threading
from functools import partial
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import in_threads

url, how = sys.argv[1:]
read = Fetcher().range_reader(url, 102400)
tasks = [partial(read, n, n + 10) for n in range(256)]
if how == "end":
    threading.Thread(target=in_threads, args=(tasks, "test"), daemon=True).start()
    input()
else:
    try:
        in_threads(tasks, "test")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""

MANY = 8
"""So many requests are in flight: all threads have been started, and others wait."""


def ranges(fetcher: Fetcher, url: str, count: int) -> bool:
    """Read ranges in threads; return whether all are right."""
    read = fetcher.range_reader(url, len(DATA))
    starts = [n * 97 % 50_000 for n in range(count)]
    found = in_threads([partial(read, start, start + 5000) for start in starts], "test")
    return found == [DATA[start : start + 5000] for start in starts]


def test_hundreds_of_threads_read_and_leave_nothing(server: Server) -> None:
    """256 threads share admission control, and afterwards no permit and no byte is taken."""
    url = server.page("/a", DATA)
    fetcher = Fetcher()
    for _ in range(3):
        assert ranges(fetcher, url, 256)
    known = admission().server(server.url)
    assert (known.num_in_flight, admission()._nbytes, len(known.waiting)) == (0, 0, 0)
    assert len(server.log) == 3 * 256


def test_children_that_are_forked_during_requests_read_by_themselves(server: Server) -> None:
    """A fork while threads hold turns and wait for them leaves parent and child intact."""
    url = server.page("/a", DATA)
    fetcher = Fetcher()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(ranges(fetcher, url, 512)))
    thread.start()
    children = [in_child(lambda: ranges(fetcher, url, 32)) for _ in range(5)]
    thread.join()
    assert [*children, *results] == [True] * 6


FIRST_S, MOST_REFUSED, LARGE = 8.0, 0.1, 12_000_000


def epoch_of_a_rank(url: str, cache: Path, rank: int, results: Connection) -> None:
    """Read what one of four ranks reads; send when it had its first sample, and all keys."""
    start_s, first_s, found = time.monotonic(), math.inf, []
    with wids.ShardListDataset(url, cache_dir=cache, progress=False) as dataset:
        order = wids.DistributedChunkedSampler(dataset, num_replicas=4, rank=rank)
        for index in wids.Prefetcher(order, dataset):
            found.append(dataset[index]["__key__"])
            first_s = min(first_s, time.monotonic() - start_s)
    results.send((first_s, found))


@pytest.mark.alone
@pytest.mark.parametrize("most", [6, 20, 60])
def test_four_processes_adapt_to_a_server_that_refuses(most: int, tmp_path: Path) -> None:
    """Few requests are refused, the first samples come soon, and none is lost."""
    num_shards, context = 96 if most == 6 else 32, multiprocessing.get_context("fork")
    server = Server(rate_nbytes=60e6)
    server.max_requests = most
    spec = []
    for number in range(num_shards):
        members = [(f"{number:02d}{n}.bin", bytes(LARGE // 4)) for n in range(4)]
        body = write_tar(tmp_path / "shard.tar", members).read_bytes()
        url = server.page(f"/{number}.tar", body)
        spec.append({"url": url, "nsamples": 4, "filesize": len(body)})
    server.page("/train.json", {"wids_version": 1, "shardlist": spec})
    __import__("torch.utils.data")
    receivers: list[Connection] = []
    ranks: list[multiprocessing.process.BaseProcess] = []
    try:
        for rank in range(4):
            receiver, sender = context.Pipe(duplex=False)
            receivers.append(receiver)
            about = (f"{server.url}/train.json", tmp_path / "cache", rank, sender)
            ranks.append(context.Process(target=epoch_of_a_rank, args=about))
            ranks[-1].start()
        assert all(receiver.poll(LONG_S) for receiver in receivers)
        results = [receiver.recv() for receiver in receivers]
    finally:
        for process in ranks:
            process.kill()
            process.join()
        server.close()
    assert sorted(key for _, found in results for key in found) == [
        f"{number:02d}{n}" for number in range(num_shards) for n in range(4)
    ]
    num_refused = sum(request.is_refused for request in server.log)
    print(f"{num_refused} of {len(server.log)} requests refused")  # noqa: T201 - with -s
    assert num_refused <= MOST_REFUSED * len(server.log)
    assert max(first_s for first_s, _ in results) < FIRST_S


def stalled(server: Server) -> str:
    """Return a URL of which a server sends a few bytes, and no more."""
    return server.page("/a", DATA, always=Fault(how="stall", after_nbytes=3))


@pytest.mark.long
@pytest.mark.parametrize("how", ["end", "interrupt"])
def test_a_program_ends_while_requests_are_in_flight(
    how: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is answered soon, and the end waits for no server, also of requests sent twice."""

    def ends() -> list[str]:  # the second request for a range is for its last bytes
        return [str(request.range).rpartition("-")[2] for request in server.log]

    monkeypatch.setenv("WIDS_HEDGE", "1")
    command = [sys.executable, "-c", _PROGRAM, stalled(server), how]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
    wait_for(lambda: len(server.log) >= MANY)
    wait_for(lambda: len(ends()) > len(set(ends())))
    started_s = time.monotonic()
    if how == "interrupt":
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate("\n", timeout=LONG_S)
    assert time.monotonic() - started_s < 10  # the time-out is 15 s
    assert (process.returncode, errors) == (0, "")
    assert how == "end" or out == "interrupted\n"


@pytest.mark.long
def test_cancelled_reads_end(server: Server) -> None:
    """Threads that wait for bytes or for their permit notice it; none is left."""
    read = Fetcher().range_reader(stalled(server), len(DATA))
    event, cancelled_s = threading.Event(), []

    def cancel() -> None:
        cancelled_s.append(time.monotonic())
        event.set()

    thread = after(lambda: len(server.log) >= MANY, cancel)
    with cancelled_by(event), pytest.raises(CancelledError):
        in_threads([partial(read, n, n + 10) for n in range(64)], "wids-test")
    assert time.monotonic() - cancelled_s[0] < 10  # the time-out is 15 s
    thread.join()
    wait_for(
        lambda: "wids-test" not in {other.name for other in threading.enumerate()},
        "the end of all threads",
    )
