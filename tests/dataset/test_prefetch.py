"""Shards are fetched ahead: in the order of need, within a limit, by the main process."""

from __future__ import annotations

import copy
import doctest
import gc
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from conftest import in_child, raises, sample_members, write_tar
from events import LONG_S, wait_for
from loopback import Fault, Server
from served_shards import LENGTH, NUM_SAMPLES, NUM_SHARDS, identity, serve_shards
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
)

import wids
from wids.dataset import fetch_window, prefetch
from wids.errors import FetchError
from wids.shards.access_counts import AccessCounts
from wids.shards.policy import remote_file
from wids.shards.specs.model import ShardSpec
from wids.storage.cache import cache_names, eviction, leases

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture
def shards(tmp_path: Path, server: Server) -> list[dict[str, Any]]:
    """Eight shards of 25 samples."""
    return serve_shards(tmp_path, server)


@pytest.mark.parametrize(
    ("workers", "context"),
    [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.long)],
)
def test_every_sample_once_and_each_shard_once(
    shards: list[dict[str, Any]], server: Server, workers: int, context: str | None
) -> None:
    """With any number of workers, started in any way."""
    dataset = wids.ShardListDataset(shards)
    sampler = wids.Prefetcher(wids.ChunkedSampler(dataset, chunksize=LENGTH), dataset)
    loader = DataLoader(
        dataset,
        batch_size=10,
        sampler=sampler,
        num_workers=workers,
        collate_fn=identity,
        multiprocessing_context=context,
    )
    seen = Counter(sample[".txt"] for batch in loader for sample in batch)

    assert seen == Counter(f"text {n}" for n in range(NUM_SAMPLES))
    expected = Counter(f"/{n}.tar" for n in range(NUM_SHARDS))
    assert Counter(server.requests) == expected, server.log
    dataset.close()


def test_the_next_shard_is_requested_before_the_last_sample(
    shards: list[dict[str, Any]], server: Server
) -> None:
    """The next shards are fetched while the current one is read."""
    dataset = wids.ShardListDataset(shards)
    size = shards[0]["filesize"]
    sampler = wids.Prefetcher(SequentialSampler(dataset), dataset, ahead_nbytes=2 * size)
    for index in sampler:
        assert dataset.__getitems__([index])[0][".txt"] == f"text {index}"
        number = index // LENGTH
        wanted = min(number + 2, NUM_SHARDS - 1)
        if index % LENGTH == 0:
            wait_for(lambda wanted=wanted: f"/{wanted}.tar" in server.requests)
            # Bounded: not more than two beyond the one that is read.
            assert len(server.requests) <= number + 3
    assert len(server.requests) == NUM_SHARDS
    dataset.close()


@pytest.mark.usefixtures("forked")
def test_nothing_is_fetched_by_the_workers(
    shards: list[dict[str, Any]], server: Server, tmp_path: Path
) -> None:
    """Each shard but the first is opened by this process; workers wait for it."""
    log, own = tmp_path / "log", str(os.getpid())

    def open_noted(url: str) -> BinaryIO:
        name = url.rpartition("/")[2]
        with log.open("a") as file:
            file.write(f"{os.getpid()} {name}\n")
        return io.BytesIO(server.pages[f"/{name}"].body)

    def when_the_next_is_open(samples: list[Any]) -> list[Any]:
        """Return a batch of a worker, which reads no shard that nobody has opened ahead of it."""
        following = min(samples[-1]["__index__"] // LENGTH + 1, NUM_SHARDS - 1)
        wait_for(lambda: f" {following}.tar\n" in log.read_text())
        return samples

    mine = [{**shard, "url": f"mine://x/{n}.tar"} for n, shard in enumerate(shards)]
    dataset = wids.ShardListDataset(mine, handlers={"mine": open_noted})
    sampler = wids.Prefetcher(wids.ChunkedSampler(dataset, shuffle=False), dataset)
    loader = DataLoader(
        dataset, batch_size=5, sampler=sampler, num_workers=2, collate_fn=when_the_next_is_open
    )

    assert sum(len(batch) for batch in loader) == NUM_SAMPLES
    opened_by = log.read_text().split()[::2]
    # A worker may open the first one: fetching begins when a shard is read (decision 0037).
    assert opened_by.count(own) >= NUM_SHARDS - 1
    assert len(opened_by) == NUM_SHARDS
    dataset.close()


def test_a_shard_that_another_process_fetches_is_looked_for(
    shards: list[dict[str, Any]], server: Server, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock, which costs more, is tried much less often; it is fetched when that is free."""
    dataset = wids.ShardListDataset(shards)
    calls: Counter[tuple[str, int]] = Counter()

    def count(name: str) -> None:
        method = getattr(dataset.reader, name)

        def counted(number: int, *rest: Any) -> Any:
            calls[name, number] += 1
            return method(number, *rest)

        monkeypatch.setattr(dataset.reader, name, counted)

    count("fetch")
    count("is_local")
    path = cache_names.copy_path(str(own_cache), remote_file(dataset.reader.shards[1]))
    indices = iter(wids.Prefetcher(SequentialSampler(dataset), dataset))
    lock_path = cache_names.lock_path(str(own_cache), path)
    with leases.folder_lock(lock_path, timeout_s=0):  # as another process has it
        dataset.__getitems__([next(indices)])
        wait_for(lambda: calls["is_local", 1] > 60)
        assert 0 < 4 * calls["fetch", 1] < calls["is_local", 1]
        assert "/1.tar" not in server.requests
    wait_for(lambda: "/1.tar" in server.requests)
    indices.close()
    dataset.close()


def test_local_shards_need_no_thread(tmp_path: Path) -> None:
    """For a dataset of local shards, the prefetcher starts no thread."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 10))
    dataset = wids.ShardListDataset(str(path))
    prefetcher = wids.Prefetcher(wids.ChunkedSampler(dataset), dataset)
    threads = set(threading.enumerate())  # some of earlier tests may end meanwhile

    for index in prefetcher:
        assert dataset[index]["__index__"] == index
        assert set(threading.enumerate()) <= threads
    dataset.close()


def test_threads_run_during_a_pass_only(
    shards: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads start with the first index, and more when a shard is read; none outlives a pass."""
    monkeypatch.setattr(fetch_window, "_PAUSE_S", LONG_S)  # a busy machine is no pause of a loader
    dataset = wids.ShardListDataset(shards)
    prefetcher = wids.Prefetcher(
        wids.ChunkedSampler(dataset, chunksize=LENGTH), dataset, num_threads=2
    )

    def names() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "wids-prefetch"]

    indices = iter(prefetcher)
    assert names() == []
    index = next(indices)
    assert names() == ["wids-prefetch"]
    dataset.__getitems__([index])
    wait_for(lambda: names() == ["wids-prefetch"] * 2)
    indices.close()
    wait_for(lambda: names() == [])
    for _ in prefetcher:
        pass
    assert names() == []
    loader = DataLoader(dataset, batch_size=5, sampler=prefetcher, collate_fn=identity)
    for _ in loader:
        break
    wait_for(lambda: names() == [])
    dataset.close()


def test_a_pass_that_is_cancelled_ends_its_downloads(
    shards: list[dict[str, Any]], server: Server, own_cache: Path
) -> None:
    """Downloads end at once, and leave no partial file."""
    for number in range(1, NUM_SHARDS):  # others would last longer than the end of a pass waits
        server.pages[f"/{number}.tar"].always = Fault(after_nbytes=9000, how="stall")
    dataset = wids.ShardListDataset(shards)
    indices = iter(wids.Prefetcher(SequentialSampler(dataset), dataset, num_threads=2))
    dataset.__getitems__([next(indices)])
    wait_for(lambda: len(server.requests) > 2)
    indices.close()

    whole = {f"{n}.tar{end}" for n in (0, 1, 2) for end in ("", ".index")}

    def left() -> set[str]:
        return {path.name.partition("-")[2] for path in (own_cache / "shards").iterdir()}

    wait_for(lambda: left() <= whole)  # before the server ends what stalls
    dataset.close()


@pytest.mark.long
def test_a_process_that_ends_during_a_pass(
    shards: list[dict[str, Any]], server: Server, own_cache: Path
) -> None:
    """An uncaught error ends the process at once, and leaves no partial file."""
    server.rate_nbytes = 2000
    code = f"""
import wids
from torch.utils.data import SequentialSampler
dataset = wids.ShardListDataset({shards!r})
indices = iter(wids.Prefetcher(SequentialSampler(dataset), dataset))
next(indices)
1 / 0
"""
    started_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.strip().endswith("ZeroDivisionError: division by zero")
    assert time.monotonic() - started_s < 100  # the shards would take 200 s
    assert not list((own_cache / "shards").glob(".*"))


def test_a_failed_fetch_reaches_the_reader(shards: list[dict[str, Any]], server: Server) -> None:
    """The reader gets its cause and type, also from a worker; ``on_error`` works."""
    server.pages["/3.tar"].always = Fault(403)
    for workers in (0, 2):
        dataset = wids.ShardListDataset(shards)
        loader = DataLoader(
            dataset,
            batch_size=5,
            sampler=wids.Prefetcher(SequentialSampler(dataset), dataset),
            num_workers=workers,
            collate_fn=identity,
        )
        batches = iter(loader)
        with raises(FetchError, "/3.tar: expected HTTP status 200, found 403"):
            for _ in batches:
                pass
        if workers:
            batches._shutdown_workers()  # what collects it with the error would wait for them
        dataset.close()
    with wids.ShardListDataset(shards, on_error=lambda _: None) as dataset:
        sampler = wids.Prefetcher(SequentialSampler(dataset), dataset)
        found = [s for b in DataLoader(dataset, 5, sampler=sampler, collate_fn=identity) for s in b]
    assert [sample is None for sample in found] == [n // LENGTH == 3 for n in range(NUM_SAMPLES)]


def test_a_handler_that_raises_anything(shards: list[dict[str, Any]]) -> None:
    """Whatever a handler raises ends no thread, blocks no pass, and reaches the reader."""

    def refuse(_: str) -> BinaryIO:
        raise RuntimeError("no such thing")

    def localname(url: str) -> str:
        raise ZeroDivisionError(url)

    mine = [{**shard, "url": f"mine://x/{n}.tar"} for n, shard in enumerate(shards)]
    for kind, about in (
        (FetchError, {"handlers": {"mine": refuse}}),
        (wids.SpecError, {"localname": localname}),
    ):
        dataset = wids.ShardListDataset(mine, **about)
        sampler = wids.Prefetcher(SequentialSampler(dataset), dataset)
        loader = DataLoader(dataset, 5, sampler=sampler, collate_fn=identity)
        with pytest.raises(kind):
            list(loader)
        dataset.close()


def test_a_child_does_not_end_the_pass_of_its_parent(shards: list[dict[str, Any]]) -> None:
    """It has none of the threads, of which one may have held a lock when it was forked."""
    dataset = wids.ShardListDataset(shards)
    indices = iter(wids.Prefetcher(SequentialSampler(dataset), dataset))
    next(indices)

    def close() -> bool:
        signal.alarm(30)  # ends it if it waits
        indices.close()
        return True

    with indices.gi_frame.f_locals["window"]._lock:  # type: ignore[attr-defined]
        assert in_child(close)
    indices.close()
    dataset.close()


def wait_for_threads() -> None:
    """Wait for those of passes, which must end."""
    for thread in threading.enumerate():
        if thread.name.startswith("wids-prefetch"):
            thread.join(30)
            assert not thread.is_alive()


def test_a_pass_that_is_collected_by_its_own_thread_ends(
    shards: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The thread that happens to collect garbage may be one of the pass that is garbage."""
    is_dropped, is_collected = threading.Event(), threading.Event()

    def localname(url: str) -> str:
        if threading.current_thread().name == "wids-prefetch":
            assert is_dropped.wait(30)
            gc.collect()
            is_collected.set()
        return f"{tmp_path}/copy-of-{os.path.basename(url)}"

    dataset = wids.ShardListDataset(shards, localname=localname)
    cycle: dict[str, Any] = {"pass": iter(wids.Prefetcher(SequentialSampler(dataset), dataset))}
    cycle["itself"] = cycle
    next(cycle["pass"])
    dataset[0]  # its threads begin with the first shard that is opened
    del cycle
    is_dropped.set()
    assert is_collected.wait(30)
    wait_for_threads()
    dataset.close()


def test_a_pass_that_is_collected_by_a_thread_for_which_its_own_wait_ends(
    shards: list[dict[str, Any]],
) -> None:
    """Its threads may wait for a lock of the caller, which the thread that collects it holds."""
    lock, is_waiting = threading.Lock(), threading.Event()

    class Locking(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            for index in range(NUM_SAMPLES):
                if threading.current_thread().name == "wids-prefetch":
                    is_waiting.set()
                    with lock:
                        pass
                yield index

    dataset = wids.ShardListDataset(shards)
    indices = iter(wids.Prefetcher(Locking(dataset), dataset, ahead_nbytes=1))
    next(indices)
    with lock:
        dataset[0]  # its threads begin with the first shard that is opened
        assert is_waiting.wait(30)
        started_s = time.monotonic()
        indices.close()
        assert time.monotonic() - started_s < 30
    wait_for_threads()
    dataset.close()


def test_a_pass_whose_end_waits_for_a_lock_ends_as_it_was_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What workers are still to read is not cancelled."""
    monkeypatch.setattr(fetch_window, "_PATIENCE_S", 0.01)
    catalog: Any = Catalog(100, 10)
    lock = threading.Lock()
    window = fetch_window.FetchWindow(fetch_window.ShardMap(catalog), iter(()), 1, None, lock)
    window._fetching[threading.Event()] = "http://host", 1
    with lock:
        window.close(cancels=False)
        assert not window._closed.is_set()
    wait_for(window._closed.is_set)
    assert not window._threads._is_over.is_set()
    window.close()
    assert window._threads._is_over.is_set()


def test_the_end_of_the_interpreter_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.12 none can be started then, and those of the pass end with it."""
    monkeypatch.setattr(fetch_window, "_PATIENCE_S", 0.01)
    catalog: Any = Catalog(100, 10)
    lock = threading.Lock()
    window = fetch_window.FetchWindow(fetch_window.ShardMap(catalog), iter(()), 1, None, lock)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with lock, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        window.close()
    window.close()


def test_a_temporary_failure_is_not_noticed(shards: list[dict[str, Any]], server: Server) -> None:
    """A fetch ahead is tried as often as any other, and the reader tries again."""
    server.pages["/3.tar"].faults = [Fault(503)] * 6
    dataset = wids.ShardListDataset(shards)
    sampler = wids.Prefetcher(SequentialSampler(dataset), dataset)
    loader = DataLoader(dataset, 5, sampler=sampler, num_workers=2, collate_fn=identity)

    assert sum(len(batch) for batch in loader) == NUM_SAMPLES
    dataset.close()


# The prefetcher behaves like its sampler.


def test_length_epoch_and_state_are_those_of_the_sampler(shards: list[dict[str, Any]]) -> None:
    """However far ahead the prefetcher has looked."""
    dataset = wids.ShardListDataset(shards)
    plain = wids.ChunkedSampler(dataset, chunksize=LENGTH)
    sampler = wids.ChunkedSampler(dataset, chunksize=LENGTH)
    prefetcher = wids.Prefetcher(sampler, dataset)
    assert len(prefetcher) == NUM_SAMPLES

    for epoch in (0, 5):
        prefetcher.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert list(prefetcher) == list(plain)
    indices = iter(prefetcher)
    taken = [next(indices) for _ in range(33)]
    state = prefetcher.state_dict()
    assert state["position"] == 33
    indices.close()
    assert (state["epoch"], sampler.epoch) == (5, 5)

    again = wids.Prefetcher(wids.ChunkedSampler(dataset, chunksize=LENGTH), dataset)
    again.load_state_dict(state)
    plain.set_epoch(5)
    assert taken + list(again) == list(plain)
    dataset.close()


def test_looking_ahead_is_no_pass_of_its_own(shards: list[dict[str, Any]]) -> None:
    """The second full pass of a fixed epoch warns once, and not ahead of time (ORDER-14)."""
    dataset = wids.ShardListDataset(shards)
    prefetcher = wids.Prefetcher(wids.ChunkedSampler(dataset, chunksize=LENGTH), dataset)
    prefetcher.set_epoch(2)
    list(prefetcher)
    again = iter(prefetcher)
    taken = [next(again) for _ in range(NUM_SAMPLES - 1)]
    with pytest.warns(UserWarning, match="second full pass") as caught:
        taken += again
    assert (sorted(taken), len(caught)) == (list(range(NUM_SAMPLES)), 1)
    dataset.close()


def test_epochs_advance_by_themselves(shards: list[dict[str, Any]]) -> None:
    """Only a pass that was read to its end advances the epoch."""
    dataset = wids.ShardListDataset(shards)
    sampler = wids.ChunkedSampler(dataset, chunksize=LENGTH)
    prefetcher = wids.Prefetcher(sampler, dataset)
    list(prefetcher)
    assert sampler.epoch == 1
    indices = iter(prefetcher)
    for _ in range(NUM_SAMPLES - 1):
        next(indices)
    indices.close()
    assert sampler.epoch == 1
    dataset.close()


def test_a_prefetcher_of_a_distributed_sampler_is_one(shards: list[dict[str, Any]]) -> None:
    """Trainers leave it alone then; around any other sampler it is not one."""
    dataset = wids.ShardListDataset(shards)
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=4, rank=1)
    prefetcher = wids.Prefetcher(sampler, dataset)
    assert isinstance(prefetcher, DistributedSampler)
    assert isinstance(prefetcher, wids.Prefetcher)
    assert (prefetcher.rank, prefetcher.num_replicas, prefetcher.drop_last) == (1, 4, False)
    prefetcher.set_epoch(3)
    indices = list(prefetcher)
    sampler.set_epoch(3)
    assert indices == list(sampler)
    assert not isinstance(wids.Prefetcher(SequentialSampler(dataset), dataset), DistributedSampler)
    dataset.close()


def test_attributes_that_trainers_read(shards: list[dict[str, Any]]) -> None:
    """They are those of the sampler where it has them; other names are not answered for."""

    class Named(BatchSampler):
        my_own = 1

    with wids.ShardListDataset(shards) as dataset:
        batches = wids.Prefetcher(Named(SequentialSampler(dataset), 5, drop_last=True), dataset)
        assert (batches.batch_size, batches.drop_last) == (5, True)
        assert not hasattr(batches, "num_replicas")
        assert not hasattr(batches, "my_own")
        assert batches.sampler.my_own == 1


def test_any_sampler(shards: list[dict[str, Any]]) -> None:
    """A sampler with a random order of its own is read once, a little ahead."""
    dataset = wids.ShardListDataset(shards)
    prefetcher = wids.Prefetcher(RandomSampler(dataset), dataset)

    assert sorted(prefetcher) == list(range(NUM_SAMPLES))
    with raises(TypeError, "RandomSampler: expected state_dict and load_state_dict"):
        prefetcher.state_dict()
    prefetcher.set_epoch(1)  # trainers call it where it exists
    with pytest.raises(AttributeError):
        _ = prefetcher.nonsense
    dataset.close()


def test_views(shards: list[dict[str, Any]], server: Server) -> None:
    """Indices are those of the view, and only its shards are fetched."""
    dataset = wids.ShardListDataset(shards)[2 * LENGTH : 4 * LENGTH]
    prefetcher = wids.Prefetcher(wids.ChunkedSampler(dataset), dataset)

    samples = [dataset.__getitems__([index])[0] for index in prefetcher]
    assert sorted(sample[".txt"] for sample in samples) == sorted(
        f"text {n}" for n in range(2 * LENGTH, 4 * LENGTH)
    )
    assert sorted(server.requests) == ["/2.tar", "/3.tar"]
    dataset.close()


def test_a_small_cache_is_respected(
    shards: list[dict[str, Any]],
    server: Server,
    own_cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Shards that were, are and will be read fit into the limit together."""
    limit = 5 * shards[0]["filesize"]
    dataset = wids.ShardListDataset(shards, cache_size=limit)
    prefetcher = wids.Prefetcher(SequentialSampler(dataset), dataset)
    assert prefetcher.ahead_nbytes == limit // 4
    most = 0
    for index in prefetcher:
        dataset.__getitems__([index])
        # A file that is renamed meanwhile may be listed under both names: its digits count once.
        sizes = {
            file.name.lstrip(".")[:32]: file.nbytes
            for file in eviction.contents(str(own_cache))
            if not file.name.endswith(".index")
        }
        most = max(most, sum(sizes.values()))

    assert most <= limit + 2000  # an index that is being written
    assert caplog.records == []
    assert len(server.requests) == NUM_SHARDS
    dataset.close()


def test_one_shard_at_a_time(shards: list[dict[str, Any]], server: Server) -> None:
    """``ahead_nbytes=0`` means one shard ahead, and not the default."""
    dataset = wids.ShardListDataset(shards)
    prefetcher = wids.Prefetcher(SequentialSampler(dataset), dataset, ahead_nbytes=0)
    indices = iter(prefetcher)
    dataset.__getitems__([next(indices)])
    wait_for(lambda: len(server.requests) == 2)
    time.sleep(0.1)

    assert (prefetcher.ahead_nbytes, len(server.requests)) == (0, 2)
    indices.close()
    dataset.close()


def test_unknown_lengths(shards: list[dict[str, Any]], server: Server) -> None:
    """Where no length is stated, a few shards are fetched ahead."""
    for shard in shards:
        del shard["filesize"]
    dataset = wids.ShardListDataset(shards)
    indices = iter(wids.Prefetcher(SequentialSampler(dataset), dataset))
    dataset.__getitems__([next(indices)])
    wait_for(lambda: len(server.requests) >= 4)
    time.sleep(0.1)

    assert len(server.requests) <= 5
    indices.close()
    dataset.close()


def test_arguments(shards: list[dict[str, Any]]) -> None:
    """Wrong arguments are errors that name the argument."""
    dataset = wids.ShardListDataset(shards)
    for num_threads in (0, 1.5, float("nan"), "2"):
        with raises(ValueError, "num_threads: expected an integer of at least 1"):
            wids.Prefetcher(SequentialSampler(dataset), dataset, num_threads=num_threads)
    with raises(ValueError, "ahead_nbytes", "'much'"):
        wids.Prefetcher(SequentialSampler(dataset), dataset, ahead_nbytes="much")
    dataset.close()
    with raises(TypeError, "dataset: expected a wids.ShardListDataset, or torch's", "found Subset"):
        wids.Prefetcher(wids.ChunkedSampler(range(5)), Subset(range(5), [1]))  # type: ignore[arg-type]


class Catalog:
    """What a prefetcher asks of a dataset; counts how many samples it looks up."""

    limit_nbytes = None

    @property
    def sample_access(self) -> Catalog:
        return self

    @property
    def reader(self) -> Catalog:
        return self

    def __init__(self, num_samples: int, length: int, missing: int = -1) -> None:
        self.num_samples, self.length, self.missing = num_samples, length, missing
        self.num_asked = 0
        self.fetched: list[int] = []
        self.accesses = AccessCounts()

    def __len__(self) -> int:
        return self.num_samples

    def shard_number(self, index: int) -> int:
        self.num_asked += 1
        return index // self.length

    def is_local(self, number: int) -> bool:
        return number != self.missing

    @property
    def shards(self) -> list[ShardSpec]:
        return [ShardSpec("http://127.0.0.1/a.tar")] * (self.num_samples // self.length)

    def let_ahead(self, part: float) -> None:
        pass

    def announce_shards(self, numbers: list[int]) -> None:
        pass

    def nbytes(self, number: int) -> int:
        return number + 1

    def fetch(self, number: int, report: Any) -> None:
        report(self.nbytes(number), self.nbytes(number))
        self.fetched.append(number)


def test_a_pass_over_local_shards_begins_at_once() -> None:
    """The rest of the epoch is looked up bit by bit, and not before the first index."""
    catalog = Catalog(10**8, 10**5)
    indices = iter(wids.Prefetcher(wids.ChunkedSampler(catalog), catalog))

    next(indices)
    assert catalog.num_asked < 100_000
    for _ in zip(range(10_000), indices, strict=False):
        pass
    assert catalog.num_asked < 200_000
    indices.close()  # type: ignore[attr-defined]


def test_a_shard_far_ahead_is_found_in_time() -> None:
    """After many indices of local shards, a remote shard is fetched long before it is read."""
    catalog = Catalog(1_000_000, 500_000, missing=1)
    sampler = wids.ChunkedSampler(catalog, shuffle=False)
    indices = iter(wids.Prefetcher(sampler, catalog))

    next(indices)
    catalog.accesses.note_opening(0)
    for _ in zip(range(60_000), indices, strict=False):
        pass

    wait_for(lambda: catalog.fetched == [1])
    indices.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [wids.ChunkedSampler, wids.DistributedChunkedSampler])
def test_it_can_be_copied_and_pickled(kind: Any, tmp_path: Path) -> None:
    """Trainers that start their processes by ``spawn`` do that."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 20))
    with wids.ShardListDataset(path) as dataset:
        ahead = wids.Prefetcher(kind(dataset, seed=3), dataset, ahead_nbytes=5)
        for again in (copy.copy(ahead), copy.deepcopy(ahead), pickle.loads(pickle.dumps(ahead))):  # noqa: S301
            assert type(again) is type(ahead)
            assert list(again) == list(kind(dataset, seed=3))
            assert again.ahead_nbytes == 5


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the class."""
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(prefetch).failed == 0
