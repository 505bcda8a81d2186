"""Measure the processor time of parts of objects, beside obstore called directly.

    python benchmarks/object_stores.py [NUM_PARTS]

nginx on loopback is the store: signed requests are plain GETs there. A line has the time of one
part of 128 kB (this process alone, all its threads), at random places of an object of 130 MB, one
after another and in batches of 64: from obstore itself, as an object of S3, over HTTP, and with
s3fs. The last lines are a whole object, and a signature.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from objects import KEYS, object_server

from wids.storage.fetch import Fetcher
from wids.storage.ranges import RangeReader, read_all
from wids.storage.transport.signing import Keys, signed

NBYTES = 130_000_000
PART = 128 << 10
BATCH = 64
URL = "s3://bucket/a.tar"


def main() -> None:
    """Run and print all of it."""
    num_parts = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
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
    loop = asyncio.new_event_loop()

    async def gathered(starts: list[int]) -> None:
        parts = [
            obstore.get_range_async(store, "a.tar", start=start, length=PART) for start in starts
        ]
        await asyncio.gather(*parts)

    def batch(reader: RangeReader) -> Callable[[list[int]], object]:
        return lambda starts: read_all(
            [(reader, start, start + PART) for start in starts], lambda *_: None
        )

    def single(read: Callable[[int], object]) -> Callable[[list[int]], object]:
        return lambda starts: [read(start) for start in starts]

    by_obstore = single(lambda at: obstore.get_range(store, "a.tar", start=at, length=PART))
    ways: dict[str, Callable[[list[int]], object]] = {
        "obstore": by_obstore,
        "wids, s3": single(lambda at: wids(at, at + PART)),
        "wids, http": single(lambda at: http(at, at + PART)),
        "obstore, batches": lambda starts: loop.run_until_complete(gathered(starts)),
        "wids, s3, batches": batch(wids),
        "wids, http, batches": batch(http),
        "wids, s3 by s3fs": single(lambda at: s3fs(at, at + PART)),
    }
    for name, (cpu_s, wall_s) in _times(ways, num_parts).items():
        print(f"{name:28}{cpu_s * 1e3:9.3f} ms of the processor{wall_s * 1e3:9.3f} ms")
    loop.close()
    started_s, used_s = time.perf_counter(), time.process_time()
    with tempfile.TemporaryFile() as file:
        Fetcher(options).save(URL, file)
    seconds, used = time.perf_counter() - started_s, time.process_time() - used_s
    print(f"{'whole object of 130 MB':28}{used * 1e3:9.0f} ms of the processor{seconds:8.2f} s")
    keys, used_s = Keys("key", "secret", "token" * 200), time.process_time()
    for _ in range(num_parts):
        signed(f"{address}/bucket/a.tar", keys, "eu-west-1", 0.0, 3600)
    used = (time.process_time() - used_s) / num_parts
    print(f"{'a signature':28}{used * 1e3:9.3f} ms of the processor")


def _times(
    ways: dict[str, Callable[[list[int]], object]], num_parts: int
) -> dict[str, tuple[float, float]]:
    """Return the times of one part: of the processor and by the clock, the best of five rounds."""
    draw = random.Random(7)
    starts = [draw.randrange(NBYTES - PART) for _ in range(num_parts)]
    best: dict[str, tuple[float, float]] = {}
    for is_warm in (False, *[True] * 5):
        for name, read in ways.items():  # in turn: other programs slow all of them alike
            some = starts[: num_parts // 8] if "s3fs" in name else starts
            started_s, used_s = time.perf_counter(), time.process_time()
            for at in range(0, len(some) if is_warm else 1, BATCH):
                read(some[at : at + BATCH])
            used = (time.process_time() - used_s) / len(some)
            seconds = (time.perf_counter() - started_s) / len(some)
            if is_warm:
                before = best.get(name, (1e9, 1e9))
                best[name] = (min(before[0], used), min(before[1], seconds))
    return best


if __name__ == "__main__":
    main()
