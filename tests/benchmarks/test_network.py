"""The networks of the benchmark are what they are called, and every row can be measured."""

from __future__ import annotations

import http.client
import shutil
import statistics
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import network
import pytest
from conftest import need
from web_server import Network, web_server

BODY = bytes(4_000_000)


@pytest.fixture(autouse=True)
def _programs() -> None:
    need(shutil.which("nginx"), "nginx (Debian: nginx-light)")
    need(shutil.which("curl"), "curl")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file of four megabytes."""
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "a.bin").write_bytes(BODY)
    return folder


def get(url: str) -> int:
    """Return the status of a request, after its body has been read."""
    try:
        with urllib.request.urlopen(f"{url}/a.bin") as response:  # noqa: S310 - loopback
            assert response.read() == BODY
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def seconds_of(url: str, at_a_time: int) -> tuple[float, list[int]]:
    """Return how long so many requests at a time take, and their statuses."""
    start = time.perf_counter()
    with ThreadPoolExecutor(at_a_time) as threads:
        statuses = list(threads.map(get, [url] * at_a_time))
    return time.perf_counter() - start, statuses


def test_each_connection_has_its_rate(root: Path) -> None:
    """Four connections take as long as one; the log has all requests and all bytes."""
    with web_server(root, Network(connection_nbytes=8e6)) as server:
        rounds = [[seconds_of(server.url, number)[0] for number in (1, 4)] for _ in range(3)]
        counted = server.counted()
        nothing = server.counted()

    # The fastest of several turns, since a busy machine slows some of them.
    one_s, four_s = map(min, zip(*rounds, strict=True))
    assert one_s == pytest.approx(0.5, rel=0.3)
    assert four_s < 2 * one_s
    assert (counted.num_requests, counted.num_refused) == (15, 0)
    assert counted.nbytes_of == {"/a.bin": 15 * len(BODY)}
    assert (nothing.num_requests, nothing.nbytes) == (0, 0)


def test_too_many_requests_at_a_time_are_refused(root: Path) -> None:
    """What comes while two requests are answered is refused, and counted, also after a delay."""
    with web_server(root, Network(delay_s=0.2, connection_nbytes=2e6, max_requests=2)) as server:
        seconds, statuses = seconds_of(server.url, 8)
        counted = server.counted()

    assert sorted(statuses) == [200] * 2 + [503] * 6
    assert counted.num_refused == 6
    assert counted.nbytes == 2 * len(BODY)
    assert seconds >= 2


def test_a_card_is_shared_and_connections_are_cut(root: Path) -> None:
    """All connections together have the rate of the card; a cut one has its bytes and no more."""
    with web_server(root, Network(card_nbytes=20e6)) as server:
        rounds = [seconds_of(server.url, 4) for _ in range(3)]
    assert all(statuses == [200] * 4 for _, statuses in rounds)
    assert min(seconds for seconds, _ in rounds) == pytest.approx(4 * len(BODY) / 20e6, rel=0.3)
    with web_server(root, Network(cut_nbytes=1_000_000)) as server:
        with urllib.request.urlopen(f"{server.url}/a.bin") as response:  # noqa: S310 - loopback
            with pytest.raises(http.client.IncompleteRead) as caught:
                response.read()
    assert 0 < len(caught.value.partial) <= 1_000_000


def test_requests_fail_are_uneven_and_stall(root: Path) -> None:
    """Delays have a tail, requests fail in three ways, one is silent, and one stops in its body."""
    (root / "a.tar").write_bytes(BODY)
    uneven = Network(delay_s=0.02, delay_sigma=0.5, slow_share=0.2, connection_nbytes=1e9)
    with web_server(root, uneven) as server:
        seconds = sorted(seconds_of(server.url, 1)[0] for _ in range(100))
    assert 0.8 * 0.02 < statistics.median(seconds) < 2 * 0.02 + 0.02
    assert seconds[-5] > 4 * statistics.median(seconds)  # some of the tail
    with web_server(root, Network(error_share=0.6)) as server:
        found = [fault_of(server.url) for _ in range(60)]
        counted = server.counted()
    assert {"200", "500", "503", "reset"} == set(found)
    assert (counted.num_requests, counted.num_refused) == (60, found.count("503"))
    assert 0.3 < found.count("200") / 60 < 0.6

    with web_server(root, Network(silent_at=2, stalled_at=3)) as server:
        part = urllib.request.Request(f"{server.url}/a.tar", headers={"Range": "bytes=5-8"})  # noqa: S310
        for _ in range(2):
            try:
                with urllib.request.urlopen(part, timeout=3) as response:  # noqa: S310
                    assert (response.status, response.read()) == (206, BODY[5:9])
            except TimeoutError:
                break
        else:
            pytest.fail("the second request was answered")
        with urllib.request.urlopen(f"{server.url}/a.tar", timeout=3) as response:  # noqa: S310
            assert len(response.read(1 << 16)) == 1 << 16
            with pytest.raises(TimeoutError):
                response.read()
        assert get(server.url) == 200


def fault_of(url: str) -> str:
    """Return the status of a request, or how it failed."""
    try:
        return str(get(url))
    except (ConnectionResetError, http.client.RemoteDisconnected):
        return "reset"


@pytest.mark.long
@pytest.mark.timeout(900)  # a process with torch for each number
def test_every_row_can_be_measured() -> None:
    """Each row has its numbers, transfers every byte once, and has its verdicts."""
    found = network.main(["--toy", "--rounds", "1"])

    assert list(found) == [row.name for row in network.ROWS]
    for row in network.ROWS:
        for bound in row.bounds:
            assert len(found[row.name][bound.metric][network.OWN]) == 1
    for name in ("fetch", "shard", "epoch", "workers", "card", "cut"):
        assert found[name]["bytes / dataset"][network.OWN][0] >= 1
