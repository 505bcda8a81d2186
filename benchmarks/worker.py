"""One library at work: reads requests from standard input, answers with seconds.

Runs under the interpreter of the library that is measured, so it imports nothing else of this
project, except ``pictures.py`` beside it, which is of the same kind. A request is a JSON line
``{"work": …, …}``; the answer is a JSON line with ``seconds`` (or ``nbytes``). What a work prepares
before its clock starts stays open for the next request.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

clock = time.perf_counter
cpu_clock = time.process_time  # where nothing is waited for: other programs do not count


class Library:
    """What the works need of a library; each is a subclass."""

    def dataset(self, spec: str, lru_size: int) -> Any:
        raise NotImplementedError

    def batch(self, dataset: Any, indices: list[int]) -> Any:
        return dataset.__getitems__(indices)

    def open_shard(self, path: str) -> Any:
        """Open a shard that may have been indexed before."""
        raise NotImplementedError

    def index_shard(self, path: str) -> Any:
        """Open a shard as if for the first time."""
        raise NotImplementedError

    def maps(self, dataset: Any) -> list[mmap.mmap]:
        """Return the maps of the open shards."""
        raise NotImplementedError

    def remote_dataset(self, shards: list[dict[str, Any]], cache: str) -> Any:
        raise NotImplementedError


class New(Library):
    """The library of this checkout."""

    def dataset(self, spec: str, lru_size: int, **options: Any) -> Any:
        import wids

        return wids.ShardListDataset(spec, lru_size=lru_size, transformations=[], **options)

    def open_shard(self, path: str) -> Any:
        from wids.dataset.shard_list import ShardListDataset

        return ShardListDataset([path])

    def index_shard(self, path: str) -> Any:
        from wids.shards.tars.shard import Shard

        return Shard(path)

    def maps(self, dataset: Any) -> list[mmap.mmap]:
        return [entry.shard._map for entry in dataset.reader._held.entries.values()]

    def remote_dataset(self, shards: list[dict[str, Any]], cache: str) -> Any:
        import wids

        return wids.ShardListDataset(shards, cache_dir=cache, transformations=[])

    def sampler(self, size: int, chunksize: int) -> Any:
        from wids import ChunkedSampler

        return ChunkedSampler(range(size), chunksize=chunksize)


class Old(Library):
    """wids 0.1.11, with ``localname`` as its users set it to read shards in place."""

    def dataset(self, spec: str, lru_size: int) -> Any:
        import wids

        with open(spec, encoding="utf-8") as file:
            shards = json.load(file)["shardlist"]
        return wids.ShardListDataset(
            shards, lru_size=lru_size, transformations=[], localname=str, dataset_name="x"
        )

    def batch(self, dataset: Any, indices: list[int]) -> Any:
        return [dataset[index] for index in indices]

    def open_shard(self, path: str) -> Any:
        from wids.wids import IndexedTarSamples

        return IndexedTarSamples(path=path)

    index_shard = open_shard

    def maps(self, dataset: Any) -> list[mmap.mmap]:
        lru = dataset.cache.lru
        return [lru[key].reader.mmapped_file for key in lru.keys()]  # noqa: SIM118 - no dict

    def remote_dataset(self, shards: list[dict[str, Any]], cache: str) -> Any:
        import wids

        return wids.ShardListDataset(
            shards, cache_dir=cache, transformations=[], dataset_name="x", keep=True
        )

    def sampler(self, size: int, chunksize: int) -> Any:
        from wids import ChunkedSampler

        return ChunkedSampler(range(size), chunksize=chunksize, shufflefirst=True)


class Bagz(Library):
    """The same samples in one bagz file, a record each."""

    def dataset(self, spec: str, lru_size: int) -> Any:  # noqa: ARG002 - one file
        import bagz

        return bagz.Reader(spec.replace(".json", ".bagz"))

    def batch(self, dataset: Any, indices: list[int]) -> Any:
        return dataset.read_indices(indices)


class Lmdb(Library):
    """The same samples in one LMDB, a value each, read in one transaction."""

    def dataset(self, spec: str, lru_size: int) -> Any:  # noqa: ARG002 - one file
        import lmdb

        environment = lmdb.open(spec.replace(".json", ".lmdb"), readonly=True, lock=False)
        transaction = environment.begin()

        class Values:
            keep = environment

            def __getitem__(self, index: int) -> bytes:
                return transaction.get(b"%d" % index)

            def __getitems__(self, indices: list[int]) -> list[bytes]:
                return [transaction.get(b"%d" % index) for index in indices]

        return Values()


LIBRARIES: dict[str, type[Library]] = {
    "new": New,
    "old": Old,
    "bagz": Bagz,
    "lmdb": Lmdb,
    **dict.fromkeys(("pillow", "webdataset", "files"), Library),
}
library = LIBRARIES[sys.argv[1]]()


@lru_cache
def opened(spec: str, lru_size: int, **options: Any) -> Any:
    return library.dataset(spec, lru_size, **options)


def single(spec: str, indices: list[int], lru_size: int = 100) -> float:
    """``dataset[i]``, with every shard open as far as the pool allows."""
    dataset = opened(spec, lru_size)
    start = cpu_clock()
    for index in indices:
        dataset[index]
    return cpu_clock() - start


def batched(spec: str, batches: list[list[int]], lru_size: int = 100, **options: Any) -> float:
    """Whole batches."""
    dataset = opened(spec, lru_size, **options)
    start = cpu_clock()
    for batch in batches:
        library.batch(dataset, batch)
    return cpu_clock() - start


def first_index(path: str) -> float:
    """Open a shard that nobody has seen."""
    start = cpu_clock()
    library.index_shard(path)
    return cpu_clock() - start


def reopen(path: str) -> float:
    """Open a shard that was indexed before; the first time makes the index."""
    library.open_shard(path)
    start = cpu_clock()
    library.open_shard(path)
    return cpu_clock() - start


def cold(spec: str, files: list[str], batches: list[list[int]]) -> float:
    """Batches whose bytes are not in the page cache, from shards that are open."""
    dataset = opened(spec, 100)
    library.batch(dataset, batches[0])
    for data in library.maps(dataset):
        data.madvise(mmap.MADV_DONTNEED)  # mapped pages would stay in the page cache
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    start = clock()
    for batch in batches[1:]:
        library.batch(dataset, batch)
    return clock() - start


def sample_order(size: int, chunksize: int, count: int) -> float:
    """The first ``count`` indices of a sampler."""
    sampler = library.sampler(size, chunksize)  # type: ignore[attr-defined]
    start = cpu_clock()
    for _ in zip(range(count), sampler, strict=False):
        pass
    return cpu_clock() - start


def whole_order(size: int, chunksize: int) -> float:
    """All indices of a sampler."""
    from collections import deque

    sampler = library.sampler(size, chunksize)  # type: ignore[attr-defined]
    start = cpu_clock()
    deque(sampler, 0)
    return cpu_clock() - start


def find_key(spec: str, keys: list[str]) -> float:
    """A key, on average, after the first one."""
    dataset = opened(spec, 100)
    dataset.find_key(keys[0])
    start = cpu_clock()
    for key in keys:
        dataset.find_key(key)
    return (cpu_clock() - start) / len(keys)


def table(spec: str, columns: dict[str, str]) -> float:
    """A table of small fields, of a million samples."""
    dataset = opened(spec, 100)
    start = cpu_clock()
    num_rows = len(dataset.table(columns))
    return (cpu_clock() - start) / num_rows * 1e6


def join(specs: list[str], count: int) -> float:
    """A join of a million keys that nobody has joined before."""
    from pathlib import Path

    left, right = (opened(spec, 100) for spec in specs)
    for path in Path(left.reader.cache_folder).glob("indexes/*.join"):
        path.unlink()
    start = cpu_clock()
    left.join(right)
    return (cpu_clock() - start) / count * 1e6


def loader_epoch(spec: str, chunksize: int) -> float:
    """An epoch of a DataLoader with two workers, batches of 64, samples handed over as they are."""
    from torch.utils.data import DataLoader

    from wids import ChunkedSampler

    dataset = opened(spec, 100)
    sampler = ChunkedSampler(dataset, chunksize=chunksize)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=64, sampler=sampler, num_workers=2, collate_fn=list
    )
    start = clock()
    for _ in loader:
        pass
    return clock() - start


def decode(paths: list[str], repeats: int, at_least: list[int] | None = None) -> float:
    """Pictures one after the other, from bytes in memory."""
    import pictures

    contents = [Path(path).read_bytes() for path in paths]
    wanted = None if at_least is None else (at_least[0], at_least[1])
    decode_one = pictures.DECODERS[sys.argv[1]](wanted)
    start = clock()
    for _ in range(repeats):
        for content in contents:
            decode_one(content)
    return clock() - start


def picture_epoch(spec: str, workers: int) -> float:
    """An epoch of pictures in batches of 64 tensors of bytes."""
    import pictures

    loader = pictures.LOADERS[sys.argv[1]](spec, workers)
    start = clock()
    for _ in pictures.batches(loader):
        pass
    return clock() - start


def remote_epoch(
    shards: list[dict[str, Any]], cache: str, step_s: float, is_ahead: bool = False
) -> float:
    """A cold epoch over remote shards, by a DataLoader with one worker and steps of training."""
    from torch.utils.data import DataLoader

    from wids import ChunkedSampler

    dataset = library.remote_dataset(shards, cache)
    sampler: Any = ChunkedSampler(dataset, chunksize=shards[0]["nsamples"])
    if is_ahead:
        from wids import Prefetcher

        sampler = Prefetcher(sampler, dataset)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=32, sampler=sampler, num_workers=1, collate_fn=list
    )
    start = clock()
    for _ in loader:
        time.sleep(step_s)
    return clock() - start


def remote_sample(spec: str, cache: str, index: int) -> float:
    """One sample of a remote shard, by range, from a dataset that is open."""
    import wids

    dataset = wids.ShardListDataset(spec, cache_dir=cache, transformations=[], access="range")
    dataset[0]  # connects, and has the dataset index
    start = clock()
    dataset[index]
    return clock() - start


def plain_range(url: str, start: int, stop: int) -> float:
    """One GET of a range, over a connection that is open."""
    import urllib3

    pool = urllib3.PoolManager()
    pool.request("GET", url, headers={"Range": "bytes=0-0"})
    begin = clock()
    pool.request("GET", url, headers={"Range": f"bytes={start}-{stop - 1}"})
    return clock() - begin


def load_spec(spec: str) -> float:
    """From a JSON file to ``len(dataset)``."""
    start = clock()
    len(library.dataset(spec, 10))
    return clock() - start


def import_library() -> float:
    """``import wids`` in a fresh interpreter, beyond what Python itself takes."""
    import subprocess

    def run(code: str) -> float:
        start = clock()
        subprocess.run([sys.executable, "-c", code], check=True)
        return clock() - start

    return max(run("import wids") - run("pass"), 0.0)


def memory(spec: str, indices: list[int]) -> int:
    """Private bytes for one more open shard: each index is in a shard of its own."""
    dataset = opened(spec, 1000)
    dataset[indices[0]]
    before = private_nbytes()
    for index in indices[1:]:
        dataset[index]
    return (private_nbytes() - before) // (len(indices) - 1)


def private_nbytes() -> int:
    """Pages that this process alone has (USS), after free memory went back."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))


WORKS: dict[str, Callable[..., float]] = {
    work.__name__: work
    for work in (
        *(single, batched, first_index, reopen, cold, sample_order, whole_order),
        *(loader_epoch, load_spec, import_library, memory, decode, picture_epoch),
        *(find_key, table, join),
        *(remote_epoch, remote_sample, plain_range),
    )
}


def main() -> None:
    # The old library prints; the answers go out by a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(WORKS[request.pop("work")](**request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
