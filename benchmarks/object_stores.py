"""Measure the processor time of parts of objects, beside obstore called directly.

    python benchmarks/object_stores.py [NUM_PARTS]

nginx on loopback is the store: signed requests are plain GETs there. A line has the time of one
part of 128 kB (this process alone, all its threads), at random places of an object of 130 MB: from
obstore itself, from `wids` in the main thread and in 16 threads, as a forked process reads it, over
HTTP, and with s3fs. The last line is a whole object.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from objects import KEYS, object_server

from wids.storage.fetch import Fetcher
from wids.storage.transport import store_settings

NBYTES = 130_000_000
PART = 128 << 10
URL = "s3://bucket/a.tar"


def main() -> None:
    """Run and print all of it."""
    num_parts = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as folder:
        bucket = Path(folder) / "www" / "bucket"
        bucket.mkdir(parents=True)
        (bucket / "a.tar").write_bytes(os.urandom(NBYTES))
        Path(folder).chmod(0o755)  # the server has a user of its own
        with object_server(Path(folder), more="keepalive_requests 1000000;") as address:
            _measure(address, num_parts)


def _measure(address: str, num_parts: int) -> None:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        "bucket",
        endpoint=address,
        access_key_id="k",
        secret_access_key="s",  # noqa: S106 - no secret
        client_options={"allow_http": True},
    )
    options = {**KEYS, "endpoint_url": address}
    wids = Fetcher(options).range_reader(URL, NBYTES)
    http = Fetcher().range_reader(f"{address}/bucket/a.tar", NBYTES)
    s3fs = Fetcher({**options, "driver": "fsspec"}).range_reader(URL, NBYTES)
    signed = Fetcher(options).range_reader(URL, NBYTES)
    row("obstore", lambda at: obstore.get_range(store, "a.tar", start=at, length=PART), num_parts)
    row("wids, s3", lambda at: wids(at, at + PART), num_parts)
    row("wids, s3, 16 threads", lambda at: wids(at, at + PART), num_parts, 16)
    row("wids, http", lambda at: http(at, at + PART), num_parts)
    here, store_settings._runtime_pid = store_settings._runtime_pid, 0
    row("wids, s3, as after a fork", lambda at: signed(at, at + PART), num_parts)
    store_settings._runtime_pid = here
    row("wids, s3 by s3fs", lambda at: s3fs(at, at + PART), num_parts // 8)
    started_s, used_s = time.perf_counter(), time.process_time()
    with tempfile.TemporaryFile() as file:
        Fetcher(options).save(URL, file)
    seconds, used = time.perf_counter() - started_s, time.process_time() - used_s
    print(f"{'whole object of 130 MB':28}{used * 1e3:9.0f} ms of the processor{seconds:8.2f} s")


def row(name: str, read: Callable[[int], object], num_parts: int, num_threads: int = 1) -> None:
    """Measure and print one way to read parts; the best of three rounds."""
    starts = [random.Random(7).randrange(NBYTES - PART) for _ in range(num_parts)]
    best: tuple[float, float] = (1e9, 1e9)
    for _ in range(3):
        read(starts[0])
        with ThreadPoolExecutor(num_threads) as pool:
            started_s, used_s = time.perf_counter(), time.process_time()
            for _ in pool.map(read, starts) if num_threads > 1 else map(read, starts):
                pass
            seconds, used = time.perf_counter() - started_s, time.process_time() - used_s
        best = min(best, (used / num_parts * 1e3, seconds / num_parts * 1e3))
    print(f"{name:28}{best[0]:9.3f} ms of the processor{best[1]:9.3f} ms")


if __name__ == "__main__":
    main()
