"""One client of a network at work, in a process of its own: a request → what it measured.

    python network_worker.py < REQUEST

The request is a JSON object ``{"work": …, …}``, and so is the answer, on standard output. It
imports nothing else of this project but the checkout of wids that is on the path: the clients that
it is compared with are `obstore`, urllib3 and boto3, where they are installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

clock = time.perf_counter
BATCH_SIZE = 64
KEYS = {"key": "benchmark", "secret": "benchmark"}

Values = dict[str, float]


# wids.


def opened(spec: str, cache: str, endpoint: str | None = None, **options: Any) -> Any:
    """Open a dataset as a user does, whose samples stay bytes."""
    import wids

    if endpoint is not None:
        options["storage_options"] = {**KEYS, "endpoint_url": endpoint}
    return wids.ShardListDataset(
        spec, cache_dir=cache, transformations=[], raw="bytes", progress=False, **options
    )


def import_whole() -> None:
    """Import what is used here, which takes more than a second and is not measured."""
    import wids

    __import__("torch.utils.data")
    for name in ("ShardListDataset", "ChunkedSampler", "DistributedChunkedSampler", "Prefetcher"):
        getattr(wids, name)


def fetched(spec: str, cache: str, endpoint: str | None = None) -> Values:
    """Fetch all shards, compare their digests, index them, and read all samples."""
    from wids.cli.main import main

    options = []
    if endpoint is not None:
        about = {**KEYS, "endpoint_url": endpoint}
        options += [f"--storage-option={name}={value}" for name, value in about.items()]
    import_whole()
    start = clock()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if main(["prefetch", spec, "--cache-dir", cache, *options]):
            raise RuntimeError("wids prefetch failed")
    fetched_s = clock() - start
    with opened(spec, cache, endpoint) as dataset:
        nbytes = sum(len(sample[".bin"]) for sample in dataset)
    return {"s": clock() - start, "fetch_s": fetched_s, "payload_nbytes": nbytes}


def epoch(
    spec: str,
    cache: str,
    endpoint: str | None = None,
    is_ahead: bool = True,
    num_workers: int = 1,
    rank: int = 0,
    num_replicas: int = 1,
    work_s: float = 0.0,
) -> Values:
    """Read an epoch by a DataLoader, with a `Prefetcher` without options, or with none.

    After each batch there is work for ``work_s`` seconds, which uses no processor.
    """
    from torch.utils.data import DataLoader

    import wids

    import_whole()
    start = clock()
    dataset = opened(spec, cache, endpoint)
    sampler: Any = (
        wids.DistributedChunkedSampler(dataset, num_replicas=num_replicas, rank=rank)
        if num_replicas > 1
        else wids.ChunkedSampler(dataset)
    )
    if is_ahead:
        sampler = wids.Prefetcher(sampler, dataset)
    loader: Any = DataLoader(
        dataset, BATCH_SIZE, sampler=sampler, num_workers=num_workers, collate_fn=_lengths
    )
    longest_s = 0.0
    with peak_memory() as peak:
        batches = iter(loader)
        count = len(next(batches))
        first_s, asked_s = clock() - start, clock()
        for batch in batches:
            longest_s = max(longest_s, clock() - asked_s)
            count += len(batch)
            time.sleep(work_s)
            asked_s = clock()
    return {
        "s": clock() - start,
        "first_s": first_s,
        "longest_s": longest_s,
        "samples": count,
        "memory_nbytes": peak[0],
    }


def _lengths(samples: list[dict[str, Any]]) -> list[int]:
    """Return what little training needs here: the bytes do not go through pipes."""
    return [len(sample[".bin"]) for sample in samples]


def node(num_processes: int, **about: Any) -> Values:
    """Read one epoch by several processes of a node, with one cache, at the same time."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def work(rank: int) -> None:
        answers.put(epoch(rank=rank, num_replicas=num_processes, **about))

    import_whole()
    start = clock()
    processes = [context.Process(target=work, args=(rank,)) for rank in range(num_processes)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=300) for _ in processes]
    seconds = clock() - start
    for process in processes:
        process.join()
    return {
        "s": seconds,
        "first_s": max(values["first_s"] for values in found),
        "longest_s": max(values["longest_s"] for values in found),
        "memory_nbytes": max(values["memory_nbytes"] for values in found),
    }


def batches(
    spec: str, cache: str, batches: list[list[int]], access: str = "range", **about: Any
) -> Values:
    """Read random batches; the first one connects, and does not count."""
    with opened(spec, cache, access=access, **about) as dataset:
        return _timed(dataset.__getitems__, batches, ".bin")


def first_batch(spec: str, cache: str, batch: list[int]) -> Values:
    """Read one random batch of a dataset that is opened for it."""
    import_whole()
    start = clock()
    with opened(spec, cache) as dataset:
        samples = dataset.__getitems__(batch)
        seconds = clock() - start
        assert len(samples) == len(batch)
        time.sleep(1)  # for what goes on in the background
    return {"s": seconds}


# Other clients: the same bytes, with nothing checked, indexed or kept.


def obstore_batches(ranges: list[list[tuple[str, int, int]]], url: str, is_s3: bool) -> Values:
    """Read ranges by obstore's asynchronous methods, all of a batch at once."""
    import obstore

    stores = _stores(url, is_s3)

    async def read(batch: list[tuple[str, int, int]]) -> list[Any]:
        return await asyncio.gather(
            *(
                obstore.get_range_async(stores, path, start=start, end=stop)
                for path, start, stop in batch
            )
        )

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return _timed(lambda batch: loop.run_until_complete(read(batch)), ranges)


def obstore_fetched(paths: list[str], url: str, folder: str, is_s3: bool) -> Values:
    """Download whole files, each as one stream into a file."""
    import obstore

    store = _stores(url, is_s3)
    Path(folder).mkdir(parents=True)

    def fetch(path: str) -> None:
        with Path(folder, path).open("wb") as file:
            file.writelines(obstore.get(store, path).stream(min_chunk_size=4 << 20))

    start = clock()
    with ThreadPoolExecutor(len(paths)) as threads:
        list(threads.map(fetch, paths))
    return {"s": clock() - start}


def _stores(url: str, is_s3: bool) -> Any:
    from obstore.store import HTTPStore, S3Store

    if not is_s3:
        return HTTPStore(url, client_options={"allow_http": True})
    parts = urlsplit(url)
    return S3Store(
        parts.path.strip("/"),
        endpoint=f"{parts.scheme}://{parts.netloc}",
        access_key_id=KEYS["key"],
        secret_access_key=KEYS["secret"],
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def urllib3_batches(ranges: list[list[tuple[str, int, int]]], url: str) -> Values:
    """Read ranges by 64 threads."""
    import urllib3

    pool = urllib3.PoolManager(maxsize=64)
    with ThreadPoolExecutor(64) as threads:

        def read(part: tuple[str, int, int]) -> bytes:
            path, start, stop = part
            headers = {"Range": f"bytes={start}-{stop - 1}"}
            return pool.request("GET", f"{url}/{path}", headers=headers).data

        return _timed(lambda batch: list(threads.map(read, batch)), ranges)


def boto3_fetched(paths: list[str], url: str, folder: str) -> Values:
    """Download whole files by boto3's transfers, with their own settings."""
    import boto3

    parts = urlsplit(url)
    client = boto3.client(
        "s3",
        endpoint_url=f"{parts.scheme}://{parts.netloc}",
        aws_access_key_id=KEYS["key"],
        aws_secret_access_key=KEYS["secret"],
        region_name="us-east-1",
    )
    Path(folder).mkdir(parents=True)
    start = clock()
    with ThreadPoolExecutor(len(paths)) as threads:
        bucket = parts.path.strip("/")
        list(threads.map(lambda p: client.download_file(bucket, p, f"{folder}/{p}"), paths))
    return {"s": clock() - start}


# Clocks.


def _timed(
    read: Callable[[Any], list[Any]], batches: list[Any], field: str | None = None
) -> Values:
    """Return the seconds of batches, and those of the processor for a sample."""
    _check(read(batches[0]), field)
    seconds = []
    used_s = time.process_time()
    for batch in batches[1:]:
        start = clock()
        found = read(batch)
        seconds.append(clock() - start)
    used_s = time.process_time() - used_s
    _check(found, field)
    count = sum(map(len, batches[1:]))
    return {
        "s": statistics.median(seconds),
        "p95_s": sorted(seconds)[int(0.95 * len(seconds))],
        "longest_s": max(seconds),
        "cpu_s": used_s / count,
    }


def _check(found: list[Any], field: str | None) -> None:
    lengths = {len(sample[field] if field else sample) for sample in found}
    if len(lengths) != 1 and field:
        raise AssertionError(f"samples of {lengths} bytes")


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Note the most memory of its own, not of mapped files, that this process gains in a block."""
    peak = [0]
    before = _own_nbytes()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            peak[0] = max(peak[0], _own_nbytes() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()


def _own_nbytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


WORKS: dict[str, Callable[..., Values]] = {
    work.__name__: work
    for work in (
        *(fetched, epoch, node, batches, first_batch),
        *(obstore_batches, obstore_fetched, urllib3_batches, boto3_fetched),
    )
}


def main() -> None:
    # Libraries print; the answer goes out by a channel of its own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    work = request.pop("work")
    print(json.dumps(WORKS[work](**request)), file=answers, flush=True)
    if work.startswith("obstore"):
        os._exit(0)  # its threads abort an interpreter that ends while they finish


if __name__ == "__main__":
    main()
