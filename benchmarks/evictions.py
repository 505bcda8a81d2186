"""Making space in a cache folder of many copies: the processor's time of a listing and after it.

    python benchmarks/evictions.py [--copies 10000 100000 1000000] [--calls 200]

The folder is full, and its files have a length and no bytes. The first call lists the folder,
evicts down to 95 % of the limit and stores the total (CACHE-45); most others use the total alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from wids.storage.cache import cache_names, eviction

NBYTES = 100


def name_of(number: int) -> str:
    """Return the name of a copy, as the cache writes it."""
    return f"{number:032x}-{number}.tar"


def fill(shards: Path, num_copies: int) -> None:
    """Write copies, each used before the next one."""
    shards.mkdir(parents=True)
    start_ns = time.time_ns() - num_copies * 1_000_000 - 10**12
    for number in range(num_copies):
        path = shards / name_of(number)
        with path.open("xb") as file:
            os.ftruncate(file.fileno(), NBYTES)
        os.utime(path, ns=(start_ns + number * 1_000_000, 0))


def fetch(folder: Path, shards: Path, number: int, limit_nbytes: int) -> float:
    """Make space for a copy and write it; return the seconds of the processor for the space."""
    temporary = shards / f".{name_of(number)}.{'0' * 16}.tmp"
    with temporary.open("xb") as file:
        start_s = time.process_time()
        excess = eviction.make_space(str(folder), file, NBYTES, limit_nbytes, lambda: None)
        taken_s = time.process_time() - start_s
    temporary.rename(shards / name_of(number))
    if excess:
        raise RuntimeError(f"{excess} bytes too many")
    return taken_s


def measured(folder: Path, num_copies: int, num_calls: int) -> dict[str, Any]:
    """Measure a folder of a number of copies."""
    shards = Path(cache_names.shards_folder(str(folder)))
    fill(shards, num_copies)
    listing_s, *recorded_s = (
        fetch(folder, shards, num_copies + number, num_copies * NBYTES)
        for number in range(num_calls + 1)
    )
    num_evicted = sum(not (shards / name_of(number)).exists() for number in range(num_copies))
    return {
        "num_copies": num_copies,
        "listing_ms": listing_s * 1e3,
        "recorded_ms": statistics.median(recorded_s) * 1e3,
        "most_ms": max(recorded_s) * 1e3,
        "num_evicted": num_evicted,
    }


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Print a line for each number of copies, and return what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--copies", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--calls", type=int, default=200, help="copies that are fetched")
    parser.add_argument("--folder", help="where to work (default: that of temporary files)")
    options = parser.parse_args(arguments)
    results = []
    for num_copies in options.copies:
        with tempfile.TemporaryDirectory(dir=options.folder) as place:
            result = measured(Path(place), num_copies, options.calls)
        print(
            f"{num_copies:>9,} copies: {result['recorded_ms']:.2f} ms of the processor by the "
            f"total (at most {result['most_ms']:.2f}), {result['listing_ms']:,.0f} ms with a "
            f"listing; {result['num_evicted']} evicted",
            flush=True,
        )
        results.append(result)
    return results


if __name__ == "__main__":
    main()
