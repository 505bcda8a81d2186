"""Downloads that are killed, raced or interrupted: no process ever reads a wrong or partial shard.

All processes are real ones (`read_remote.py`), and the server is on loopback, in this process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import sample_members, settle, write_tar
from events import LONG_S, wait_for
from loopback import Fault, Server

import wids

SCRIPT = Path(__file__).with_name("read_remote.py")
NUM_SHARDS, LENGTH = 8, 20
EXPECTED = [f"text {n}" for n in range(NUM_SHARDS * LENGTH)]


@pytest.fixture
def spec(tmp_path: Path, server: Server) -> str:
    """Eight shards on the server, and the URL of their spec."""
    shardlist = []
    for number in range(NUM_SHARDS):
        members = sample_members(number * LENGTH, (number + 1) * LENGTH)
        body = write_tar(tmp_path / f"{number}.tar", members).read_bytes()
        server.page(f"/{number}.tar", body)
        shardlist.append({"url": f"{number}.tar", "nsamples": LENGTH})
    return server.page("/spec.json", {"shardlist": shardlist})


def start(spec: str, *numbers: int) -> subprocess.Popen[str]:
    """Start a process that reads all samples."""
    command = [sys.executable, str(SCRIPT), spec, *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, object]:
    """Return what a process printed."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def temporary_files(cache: Path) -> list[str]:
    return [path.name for path in (cache / "shards").glob(".*")]


@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.long)])
def test_many_processes_fetch_each_shard_once(
    count: int, spec: str, server: Server, own_cache: Path
) -> None:
    """Many readers of eight shards, each in its own order, make eight requests (CACHE-5)."""
    processes = [start(spec, seed) for seed in range(count)]

    assert all(result(process)["texts"] == EXPECTED for process in processes)
    asked = Counter(path for path in server.requests if path.endswith(".tar"))
    assert asked == Counter(f"/{n}.tar" for n in range(NUM_SHARDS))
    assert temporary_files(own_cache) == []


@pytest.mark.parametrize("count", [2, pytest.param(16, marks=pytest.mark.long)])
def test_many_processes_find_copies_that_were_edited(
    count: int, spec: str, server: Server, own_cache: Path
) -> None:
    """None returns what is wrong, also while another discards it; one fetches it (CACHE-35)."""
    assert result(start(spec, 0))["texts"] == EXPECTED
    for copy in own_cache.glob("shards/*.tar"):
        copy.chmod(0o644)
        with copy.open("r+b") as file:
            data = file.read()
            file.seek(0)
            file.write(data.replace(b"text ", b"TEXT "))
        os.utime(copy, ns=(0, 0))
    server.log.clear()
    processes = [start(spec, seed) for seed in range(count)]

    assert all(result(process)["texts"] == EXPECTED for process in processes)
    asked = Counter(path for path in server.requests if path.endswith(".tar"))
    assert asked == Counter(f"/{n}.tar" for n in range(NUM_SHARDS))


@pytest.mark.long
def test_killed_at_any_point(
    spec: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill at each of ten points, the next process reads everything correctly (CACHE-10).

    A point is an event that Python's audit hooks report, such as a file opened, locked or renamed.
    """
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "count"))
    num_events = int(str(result(start(spec, 1, 0))["events"]))
    per_shard = num_events // NUM_SHARDS
    assert per_shard >= 10
    # In the first shard, and in a later one.
    points = [1 + n * per_shard // 5 for n in range(5)]
    points += [3 * per_shard + 1 + n * per_shard // 5 for n in range(5)]
    for point in points:
        cache = tmp_path / f"killed-{point}"
        monkeypatch.setenv("WIDS_CACHE", str(cache))
        process = start(spec, 1, point)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        server.log.clear()
        for path in (cache / "shards").glob(".*"):
            settle(path)  # temporary files are deleted after a minute

        assert result(start(spec, 2))["texts"] == EXPECTED, f"killed at event {point}"
        asked = Counter(path for path in server.requests if path.endswith(".tar"))
        assert max(asked.values(), default=0) <= 1
        assert sum(asked.values()) >= NUM_SHARDS - point // per_shard - 1
        assert temporary_files(cache) == []


@pytest.mark.parametrize("part", [pytest.param(0.1, marks=pytest.mark.long), 0.9])
def test_killed_in_the_middle_of_the_bytes(
    spec: str, server: Server, own_cache: Path, tmp_path: Path, part: float
) -> None:
    """Part of a file is never taken for the file (CACHE-10)."""
    members = [*sample_members(0, LENGTH), ("s00019.bin", bytes(3_000_000))]
    body = write_tar(tmp_path / "large.tar", members).read_bytes()
    faults = [Fault(after_nbytes=int(len(body) * part), how="stall")]
    server.page("/0.tar", body, faults=faults)
    process = start(spec, 1, 10**9)

    def has_a_part() -> bool:
        return any(path.stat().st_size > 200_000 for path in (own_cache / "shards").glob(".*"))

    wait_for(has_a_part)
    process.kill()
    process.communicate()
    assert len(temporary_files(own_cache)) == 1

    assert result(start(spec, 2))["texts"] == EXPECTED


FORK_AND_WAIT = """
import os, sys, threading, time
import wids

def fork_when_fetching():
    folder = os.path.join(os.environ["WIDS_CACHE"], "shards")
    while not os.path.isdir(folder) or not os.listdir(folder):
        time.sleep(0.01)
    if not os.fork():
        print(os.getpid(), flush=True)
        time.sleep(1000)
        os._exit(0)

threading.Thread(target=fork_when_fetching, daemon=True).start()
wids.ShardListDataset(sys.argv[1], access="download")[0]
"""


def test_killed_with_a_live_child(spec: str, server: Server, own_cache: Path) -> None:
    """A child that was forked during a download holds no lock of it.

    The next process neither waits for the child, nor does the temporary file stay.
    """
    server.pages["/0.tar"].faults = [Fault(after_nbytes=9000, how="stall")]
    command = [sys.executable, "-W", "ignore", "-c", FORK_AND_WAIT, spec]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        (left,) = (own_cache / "shards").iterdir()
        settle(left)
        start_s = time.monotonic()
        assert result(start(spec, 2))["texts"] == EXPECTED
        assert time.monotonic() - start_s < LONG_S  # who waits for a lock does so for two minutes
        assert temporary_files(own_cache) == []
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_ctrl_c_leaves_nothing(spec: str, server: Server, own_cache: Path) -> None:
    """An interrupted download deletes its temporary file (CACHE-10)."""
    for number in range(NUM_SHARDS):
        server.pages[f"/{number}.tar"].always = Fault(after_nbytes=9000, how="stall")
    process = start(spec, 1)
    wait_for(lambda: temporary_files(own_cache))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONG_S)

    assert "KeyboardInterrupt" in err
    assert temporary_files(own_cache) == []
    assert not list((own_cache / "shards").glob("*.tar"))


@pytest.mark.parametrize("how", [pytest.param("stall", marks=pytest.mark.long), "silent"])
def test_ctrl_c_leaves_nothing_of_a_request_that_was_sent_twice(
    how: str, spec: str, server: Server, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the program soon, which waits for neither of the two (CACHE-10)."""
    monkeypatch.setenv("WIDS_HEDGE", "1")
    for number in range(NUM_SHARDS):
        server.pages[f"/{number}.tar"].always = Fault(after_nbytes=9000, how=how)
    process = start(spec, 1)
    wait_for(lambda: max(Counter(server.requests).values(), default=0) > 1)
    process.send_signal(signal.SIGINT)
    started_s = time.monotonic()
    _, err = process.communicate(timeout=LONG_S)

    assert time.monotonic() - started_s < 10  # the time-out is 15 s
    assert "KeyboardInterrupt" in err
    assert temporary_files(own_cache) == []
    assert not list((own_cache / "shards").glob("*.tar"))


@pytest.mark.long
def test_evicted_while_another_process_reads(spec: str, server: Server, own_cache: Path) -> None:
    """A shard in use elsewhere stays; one that is deleted stays readable (CACHE-7)."""
    with wids.ShardListDataset(spec, access="download") as dataset:
        first = dataset[0][".txt"]
        (copy,) = (own_cache / "shards").glob("*-0.tar")
        limit = str(3 * copy.stat().st_size)
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), spec, "1"],
            env={**os.environ, "WIDS_CACHE_SIZE": limit},
            stdout=subprocess.PIPE,
            text=True,
        )
        out, _ = process.communicate(timeout=60)
        assert json.loads(out)["texts"] == EXPECTED
        assert copy.exists()
        assert len(list((own_cache / "shards").glob("*.tar"))) <= 3
        copy.unlink()
        assert dataset[0][".txt"] == first
        assert [dataset[i][".txt"] for i in range(LENGTH)] == EXPECTED[:LENGTH]
    server.log.clear()
    with wids.ShardListDataset(spec, access="download") as dataset:
        assert dataset[0][".txt"] == first
    assert "/0.tar" in server.requests


def test_threads_of_one_process(spec: str, server: Server) -> None:
    """Eight threads that share a dataset read correctly and fetch each shard once (CACHE-5)."""
    with wids.ShardListDataset(spec, lru_size=2) as dataset:

        def read(seed: int) -> list[str]:
            numbers = list(range(seed, len(dataset), 7)) + list(range(seed))
            return [s[".txt"] for s in dataset.__getitems__(numbers)]

        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(read, range(8)))
    assert found == [
        [EXPECTED[n] for n in [*range(seed, len(EXPECTED), 7), *range(seed)]] for seed in range(8)
    ]
    assert len([path for path in server.requests if path.endswith(".tar")]) == NUM_SHARDS


def test_a_reader_waits_for_a_slow_download(spec: str, server: Server) -> None:
    """A slow download that makes progress is not started a second time (CACHE-6)."""
    server.rate_nbytes = len(server.pages["/0.tar"].body)
    texts = []

    def read() -> None:
        with wids.ShardListDataset(spec, access="download") as dataset:
            texts.append(dataset[0][".txt"])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["text 0"] * 3
    assert server.requests.count("/0.tar") == 1
