"""Stores that are away for some seconds, and names that are wrong."""

from __future__ import annotations

import io
import logging
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import raises, write_shards
from events import LONG_S, after, wait_for
from loopback import Fault, Server
from s3 import Bucket
from servers import free_port
from transfers import DATA, saved, waited_s

import wids
from wids.errors import FetchError, NotFoundError
from wids.storage import stages
from wids.storage.fetch import Fetcher
from wids.storage.transport import http, retry


class Store:
    """A server in a process of its own, which can be killed and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self.rate_nbytes = ""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        program = Path(__file__).parents[2] / "loopback.py"
        command = [sys.executable, str(program), str(self._folder)]
        command += [self.rate_nbytes, str(self.port)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.url

    def start_after(self, condition: Callable[[], object]) -> threading.Thread:
        """Start again, in a thread, when a condition holds."""
        return after(condition, self.start)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with a dataset of 20 samples; waits for it are logged at once."""
    monkeypatch.setattr(retry, "_SILENT_S", 0.0)
    folder = tmp_path / "store"
    folder.mkdir()
    write_shards(folder, [8, 5, 7])
    store = Store(folder)
    yield store
    store.kill()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_an_outage_in_mid_epoch_is_waited_for(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is killed in an epoch, and started again, costs seconds and two lines of log."""
    dataset = wids.ShardListDataset(f"{store.url}/train.json?sign=SECRET", cache_dir=tmp_path / "c")
    with dataset:
        samples = iter(dataset)
        found = [next(samples)[".txt"]]
        store.kill()
        restart = store.start_after(lambda: warnings_of(caplog))
        found += [sample[".txt"] for sample in samples]
        restart.join()

    assert found == [f"text {n}" for n in range(20)]
    line, back = warnings_of(caplog)
    assert f"waiting up to 300 s for {store.url}" in line
    assert "train-000001.tar" in line
    assert "SECRET" not in line
    assert re.fullmatch(rf"{re.escape(store.url)} answers again, after [\d.]+ s", back)


@pytest.mark.long
def test_workers_wait_too(store: Store, tmp_path: Path) -> None:
    """An outage of twelve seconds, twice what five attempts took, ends no DataLoader."""
    from torch.utils.data import DataLoader

    epochs, found = {}, {}
    with ExitStack() as datasets:
        for method in ("fork", "spawn"):  # each with a cache of its own
            dataset = wids.ShardListDataset(f"{store.url}/train.json", cache_dir=tmp_path / method)
            epochs[method] = iter(
                DataLoader(
                    datasets.enter_context(dataset), batch_size=2, num_workers=1, collate_fn=list,
                    prefetch_factor=1, multiprocessing_context=method,
                )
            )  # fmt: skip
            found[method] = [*next(epochs[method])]
        store.kill()
        restart = threading.Timer(12, store.start)
        restart.start()
        for method, batches in epochs.items():
            found[method] += [sample for batch in batches for sample in batch]
        restart.join()
    for samples in found.values():
        assert [sample[".txt"] for sample in samples] == [f"text {n}" for n in range(20)]


def test_a_download_resumes_after_an_outage(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What arrived before the store was killed is not requested again."""
    (tmp_path / "store" / "a.bin").write_bytes(DATA)
    store.kill()
    store.rate_nbytes = "1000000"
    store.start()
    received, file = [], io.BytesIO()
    restarts: list[threading.Thread] = []

    def report(received_nbytes: int, _: int | None) -> None:
        received.append(received_nbytes)
        if received_nbytes > 500_000 and not restarts:
            store.kill()
            store.rate_nbytes = ""
            restarts.append(store.start_after(lambda: warnings_of(caplog)))

    Fetcher().save(f"{store.url}/a.bin", file, report=report)
    restarts[0].join()
    assert file.getvalue() == DATA
    assert received == sorted(received)  # it never began again


def test_every_kind_of_read_waits(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Documents, lengths, parts and whole files wait for a store, all with one line of log."""
    name = "/train-000000.tar"
    fetcher = Fetcher()
    nbytes = fetcher.nbytes(store.url + name) or 0
    ranges = fetcher.range_reader(store.url + name, nbytes)
    reads: list[Callable[[], object]] = [
        lambda: fetcher.read(store.url + "/train.json", 1 << 20),
        lambda: fetcher.nbytes(store.url + name),
        lambda: fetcher.head(store.url + name),
        lambda: fetcher.read_start(store.url + name, 100),
        lambda: ranges(512, 1024),
        lambda: saved(store.url + name),
    ]
    store.kill()
    with ThreadPoolExecutor(len(reads)) as threads:
        before = stages.counted()["retries"]
        restart = store.start_after(
            lambda: stages.counted()["retries"] >= before + 2 * len(reads)  # and others again
        )
        results = [threads.submit(read) for read in reads]
        assert all(result.result() for result in results)
        restart.join()

    away, back = warnings_of(caplog)
    assert "waiting up to" in away
    assert "answers again" in back


@pytest.mark.long
def test_all_processes_say_once_that_a_server_is_away(store: Store, tmp_path: Path) -> None:
    """Threads of forked processes that wait for a server print a line, and one when it is back."""
    program = f"""
import os, threading, time, wids
from wids.storage import stages
from wids.storage.fetch import Fetcher
from wids.storage.transport import retry
retry._SILENT_S = 0.0
url = "{store.url}/train.json"
def read():
    Fetcher().read(url, 1 << 20)
with wids.ShardListDataset(url, cache_dir="{tmp_path / "cache"}") as dataset:
    dataset[0]
    print("read", flush=True)
    input()
    children = []
    for _ in range(3):
        if not (child := os.fork()):
            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            os._exit(0)
        children.append(child)
    while stages.counted()["retries"] < 36:
        time.sleep(0.01)
    print("waiting", flush=True)
    print([os.waitpid(child, 0)[1] for child in children])
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)  # type: ignore[call-overload]
    assert child.stdout.readline() == "read\n"
    store.kill()
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "waiting\n"
    store.start()
    output, errors = child.communicate(timeout=LONG_S)
    assert output == "[0, 0, 0]\n"
    lines = errors.splitlines()
    away = [line for line in lines if f"waiting up to 300 s for {store.url}" in line]
    back = [line for line in lines if f"{store.url} answers again, after " in line]
    assert len(away) + len(back) == len(lines)
    assert (len(away) in (1, 2), len(back) in (1, 2)) == (True, True)  # no lock between processes


def test_a_busy_server_is_waited_for_no_longer_than_stated(
    server: Server, quick_retries: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The error says how long it waited, for what, in how many attempts; the log does so once."""
    del quick_retries
    url = server.page("/a.json", b"", always=Fault(503, headers={"Retry-After": "7"}))
    with raises(FetchError, "/a.json?…: expected HTTP status 200, found 503; waited ",
                f" s for {server.url}, in ", " attempts", "set retry_s") as caught:  # fmt: skip
        Fetcher({"retry_s": 60}).read(f"{url}?SECRET", 10)
    assert 60 <= waited_s(caught.value) < 70
    (line,) = warnings_of(caplog)
    assert f"found 503; waiting up to 60 s for {server.url}" in line
    assert "SECRET" not in line


@pytest.mark.usefixtures("quick_retries")
def test_a_name_that_is_wrong_is_soon_an_error() -> None:
    """A refused first connection, or a host without an address, is an error within 10 s."""
    for url in (f"http://127.0.0.1:{free_port()}", "http://store.invalid"):
        with raises(FetchError, url, "has not answered", "check the address") as caught:
            Fetcher().read(f"{url}/a.json", 10)
        assert 4 <= waited_s(caught.value) < 15  # less than 8 if attempts are slow


def test_a_host_that_does_not_answer_is_soon_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out of a first connection is short enough for two attempts in ten seconds."""
    assert 2 * http._FIRST_CONNECT_S + 1 < 10
    monkeypatch.setattr(http, "_FIRST_CONNECT_S", 0.2)
    monkeypatch.setattr(retry, "_FIRST_CONTACT_S", 0.4)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # its queue is full: further connections are not even refused
            filler.settimeout(0.0)
            filler.connect_ex(address)
        try:
            with raises(FetchError, "ConnectTimeoutError", "check the address"):
                Fetcher().read(f"http://127.0.0.1:{address[1]}/a", 10)
        finally:
            for filler in fillers:
                filler.close()


def test_what_is_missing_is_an_error_at_once(server: Server) -> None:
    """A missing or forbidden file is asked for once, whatever ``retry_s`` is."""
    for status in (404, 410, 403, 401):
        with pytest.raises(FetchError):
            Fetcher({"retry_s": 1e9}).read(server.page(f"/{status}", b"", status), 10)
    with pytest.raises(NotFoundError):
        Fetcher({"retry_s": 1e9}).read("memory://store/missing", 10)
    assert len(server.log) == 4


def test_how_long_to_wait_is_an_option(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from ``storage_options``, for a prefix or for all, else from ``$WIDS_RETRY_S``."""

    def retry_s(options: dict[str, object] | None = None) -> float:
        fetcher = Fetcher(options)
        fetcher.bind_options("https://elsewhere/spec.json")  # it is no secret
        return fetcher._transports.plan(f"{server.url}/a").timeouts.retry_s

    assert retry_s() == 300
    monkeypatch.setenv("WIDS_RETRY_S", "20")
    assert retry_s() == 20
    assert retry_s({"retry_s": 7}) == 7
    assert retry_s({"s3://": {"retry_s": 3}, f"{server.url}/": {"retry_s": 4}}) == 4
    assert retry_s({"s3://": {"retry_s": 3}}) == 20
    for wrong in ("soon", -1, float("nan")):
        with raises(ValueError, "retry_s: expected a number of seconds, found"):
            Fetcher({"retry_s": wrong})
    monkeypatch.setenv("WIDS_RETRY_S", "soon")
    with raises(ValueError, "WIDS_RETRY_S: expected a number of seconds, found 'soon'"):
        Fetcher()
    with raises(FetchError, "waited 0.0 s", "in 1 attempt"):
        Fetcher({"retry_s": 0}).read(server.page("/busy", b"", 503), 10)


def test_ctrl_c_ends_a_wait(store: Store) -> None:
    """A program that waits for a store ends at once, with all threads that wait."""
    program = f"""
import wids
from wids.storage.fetch import Fetcher
from wids.storage.remote_lengths import ask_lengths
fetcher = Fetcher()
names = [f"{store.url}/train-00000{{n}}.tar" for n in range(3)]
assert all(ask_lengths(fetcher, names))
print("read", flush=True)
input()
ask_lengths(fetcher, names)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)  # type: ignore[call-overload]
    assert child.stdout.readline() == "read\n"
    store.kill()
    child.stdin.write("\n")
    child.stdin.flush()
    assert "waiting up to 300 s" in child.stderr.readline()
    started_s = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert time.monotonic() - started_s < 30
    assert "KeyboardInterrupt" in errors
    assert child.returncode


@pytest.mark.long
def test_the_end_of_a_pass_ends_the_waits_of_its_threads(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Threads that fetch ahead, and wait for a store, end when the pass is closed."""
    with wids.ShardListDataset(f"{store.url}/train.json", cache_dir=tmp_path / "cache") as dataset:
        ahead = wids.Prefetcher(wids.ChunkedSampler(dataset, shuffle=False), dataset)
        indices = iter(ahead)
        store.kill()
        next(indices)
        wait_for(lambda: warnings_of(caplog))
        indices.close()  # type: ignore[attr-defined]
        wait_for(lambda: not any(t.name == "wids-prefetch" for t in threading.enumerate()))


@pytest.mark.usefixtures("quick_retries")
def test_an_outage_of_a_driver_is_waited_for(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers of fsspec, which give up after some attempts, are called again."""
    bucket.system.pipe(f"{bucket.url}/a.bin", DATA)
    quick = {"retries": {"max_attempts": 0}}
    options = {**bucket.options, "config_kwargs": quick, "retry_s": 60, "driver": "fsspec"}
    fetcher = Fetcher(options)
    assert fetcher.nbytes(f"{bucket.url}/a.bin") == len(DATA)
    monkeypatch.setattr(retry, "_SILENT_S", 0.0)
    last = len(bucket.requests) + 8  # more than s3fs asks by itself
    bucket.fault = lambda *_: 503 if len(bucket.requests) <= last else None
    assert fetcher.range_reader(f"{bucket.url}/a.bin", len(DATA))(5, 10) == DATA[5:10]
    line, _ = warnings_of(caplog)
    assert f"waiting up to 60 s for {bucket.url}" in line

    bucket.requests.clear()
    bucket.fault = lambda *_: 400  # no outage: it refuses
    with raises(FetchError, "tried 5 times"):
        fetcher.range_reader(f"{bucket.url}/a.bin", len(DATA))(5, 10)


def test_workers_know_which_servers_have_answered(server: Server) -> None:
    """A worker that starts in an outage waits, as the process that it reads for would."""
    fetcher = Fetcher()
    assert fetcher.nbytes(server.page("/a", b"1")) == 1
    blob = pickle.dumps(fetcher)
    retry._answered.clear()
    pickle.loads(blob)  # noqa: S301 - of this test
    assert retry.has_answered(server.url)
