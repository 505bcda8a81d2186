"""How long an epoch takes as a map-style dataset and as a stream, side by side.

    python benchmarks/streams.py [--nbytes 100 100000] [--rounds 3]

The same dataset, sampler and batches of 64, with 0, 1 and 2 workers; ``bytes`` are not collated, so
that reading and transfer show. The rounds of both ways take turns; the table has the least time
of each, in microseconds for each sample, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any

from torch.utils.data import DataLoader

import wids

BATCH_SIZE = 64


def write(folder: str, nbytes: int) -> str:
    """Write a dataset of at most 400 MB; return its spec."""
    num_samples = max(2000, min(40_000, 400_000_000 // nbytes))
    with wids.ShardWriter(f"{folder}/{nbytes}-%06d.tar", maxcount=num_samples // 10) as writer:
        for number in range(num_samples):
            writer.write({"__key__": f"{number:08d}", ".bin": os.urandom(nbytes)})
    return f"{folder}/{nbytes}.json"


def loader(dataset: Any, num_workers: int, *, streams: bool) -> DataLoader[Any]:
    """Return the loader of one of the two ways."""
    sampler = wids.ChunkedSampler(dataset)
    options: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "num_workers": num_workers,
        "collate_fn": list,
    }
    if streams:
        return DataLoader(wids.stream(dataset, sampler, batch_size=BATCH_SIZE), **options)
    return DataLoader(dataset, sampler=sampler, **options)


def epoch_s(batches: DataLoader[Any]) -> float:
    """Return how long an epoch takes, without the start of workers."""
    iterator = iter(batches)
    num_samples = len(next(iterator))
    start_s = time.perf_counter()
    num_samples += sum(len(batch) for batch in iterator)
    return (time.perf_counter() - start_s) / num_samples


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nbytes", type=int, nargs="+", default=[100, 100_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| bytes | workers | map-style, µs | stream, µs | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for nbytes in options.nbytes:
            with wids.ShardListDataset(
                write(folder, nbytes), transformations=[], raw="bytes"
            ) as dataset:
                for num_workers in range(3):
                    times: dict[bool, list[float]] = {False: [], True: []}
                    for _ in range(options.rounds):
                        for streams, taken in times.items():
                            taken.append(epoch_s(loader(dataset, num_workers, streams=streams)))
                    plain, streamed = (min(taken) * 1e6 for taken in times.values())
                    print(
                        f"| {nbytes} | {num_workers} | {plain:.1f} | {streamed:.1f} | "
                        f"{streamed / plain:.2f} |"
                    )


if __name__ == "__main__":
    main()
