"""A remote file as a sequence of bytes: what is requested for which slices."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from loopback import Fault, Server

from wids.storage.fetch import Fetcher
from wids.storage.file_parts import JUMP_NBYTES, FileParts
from wids.storage.ranges import STEP_NBYTES

DATA = random.Random(1).randbytes(8 << 20)
FIRST = 64 << 10


class Source:
    """Reads ranges of `DATA` and records them."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> bytes:
        assert start < stop <= len(DATA)
        self.spans.append((start, stop))
        return DATA[start:stop]


def parts_of(source: Source, **options: int) -> FileParts:
    return FileParts(DATA[:FIRST], len(DATA), source, **options)


def test_slices_are_those_of_the_bytes() -> None:
    """Any slices in any order are equal, whatever was kept and dropped."""
    draw = random.Random(2)
    for keep_nbytes in (1, 200_000, 4 << 20):
        parts = parts_of(Source(), keep_nbytes=keep_nbytes)
        for _ in range(300):
            start = draw.randrange(len(DATA) + 10)
            stop = start + draw.choice([0, 1, 512, 70_000])
            assert parts[start:stop] == DATA[start:stop]
            assert parts.read(start, min(stop, len(DATA))) == DATA[start:stop]
        assert len(parts) == len(DATA)
        assert parts[len(DATA) - 100 :] == DATA[-100:]


def test_near_parts_are_read_along_and_far_ones_skipped() -> None:
    """What is less than the cost of a request away is read with what lies between."""
    source = Source()
    parts = parts_of(source)
    parts[0:512]
    assert source.spans == []
    far = FIRST + STEP_NBYTES
    parts[far : far + 512]
    assert source.spans == [(far, far + JUMP_NBYTES)]
    parts[far + 1000 : far + 1512]
    assert len(source.spans) == 1
    near = far + 1000 + STEP_NBYTES - 1
    parts[near : near + 512]
    assert source.spans[1] == (far + JUMP_NBYTES, near + JUMP_NBYTES)
    far = near + STEP_NBYTES
    parts[far : far + 512]
    assert source.spans[2] == (far, far + JUMP_NBYTES)
    assert parts.num_requests == 4
    assert parts.num_read_nbytes == FIRST + sum(b - a for a, b in source.spans)


def test_a_file_that_is_read_in_full_costs_few_requests() -> None:
    """Requests become longer as long as the next part is near, and no byte is read twice."""
    source = Source()
    parts = parts_of(source)
    for start in range(0, len(DATA), 4096):
        parts[start : start + 512]
    assert parts.num_read_nbytes == len(DATA)
    assert parts.num_requests <= 7


def test_memory_is_limited() -> None:
    """Parts beyond the limit are dropped, and read again if they are wanted again."""
    source = Source()
    parts = parts_of(source, keep_nbytes=1 << 20)
    for start in range(0, len(DATA), 4096):
        parts[start : start + 512]
    assert not parts.has(0, 512)
    assert parts.has(len(DATA) - 512, len(DATA))
    assert parts[0:512] == DATA[:512]


def test_threads_share_a_file() -> None:
    """Parts that are read by several threads at once are right."""
    parts = parts_of(Source(), keep_nbytes=300_000)

    def read(seed: int) -> bool:
        draw = random.Random(seed)
        starts = [draw.randrange(len(DATA) - 600) for _ in range(200)]
        return all(parts[start : start + 600] == DATA[start : start + 600] for start in starts)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(16)))


def test_the_start_of_a_file(server: Server) -> None:
    """The first bytes tell the length of the file, and whether its server has ranges."""
    fetcher = Fetcher()
    url = server.page("/a.tar", DATA)
    start = fetcher.read_start(url, 1000)
    assert (start.data, start.total_nbytes, start.has_ranges) == (DATA[:1000], len(DATA), True)
    assert server.num_sent == 1000
    assert fetcher.range_reader(url, len(DATA))(5000, 6000) == DATA[5000:6000]
    assert server.log[-1].headers["if-range"] == server.pages["/a.tar"].tag

    short = fetcher.read_start(server.page("/short.tar", b"abc"), 1000)
    assert (short.data, short.total_nbytes, short.has_ranges) == (b"abc", 3, True)


def test_a_server_without_ranges_is_cut_off(server: Server) -> None:
    """Of a server that sends whole files only, the first bytes are read and not the body."""
    body = bytes(64 << 20)  # more than sockets buffer
    for options in ({}, {"is_chunked": True}, {"has_length": False}):
        url = server.page("/a.tar", body, has_ranges=False, **options)
        start = Fetcher().read_start(url, 1 << 20)
        assert (len(start.data), start.has_ranges) == (1 << 20, False)
        assert start.total_nbytes == (None if options else len(body))
    assert server.num_sent < 3 * (16 << 20)


@pytest.mark.usefixtures("quick_retries")
def test_the_start_of_a_cut_transfer_is_read_again(server: Server) -> None:
    """A transfer that breaks off inside the first bytes is retried."""
    url = server.page("/a.tar", DATA, faults=[Fault(after_nbytes=500), Fault(503)])
    assert Fetcher().read_start(url, 1000).data == DATA[:1000]
    assert len(server.log) == 3
