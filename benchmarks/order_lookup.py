"""How long it takes to ask for the order of an epoch, at a million and a hundred million samples.

    python benchmarks/order_lookup.py [--toy] [--rounds 3]

Shards of ten thousand samples, chunks of 2000, 64 ranks. `make` is ``sampler.indices(epoch)`` with
its first index, in an epoch that was not asked for before; `random` and `next` are one look-up, at
random places and one after another; `first steps_of` and `steps_of` likewise. Batches of buckets
are walked: they have a tenth of the samples.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import numpy as np
from samplers import Data

import wids

clock = time.perf_counter
RANKS = {"num_replicas": 64, "rank": 40}


@dataclass(frozen=True)
class Figures:
    """What one sampler needed; seconds, and bytes of the pickled sequence."""

    make_s: float
    random_s: float
    next_s: float
    first_steps_of_s: float
    steps_of_s: float
    pickled_nbytes: int


class Shards:
    """As much of a dataset as samplers look at that mix nothing."""

    def __init__(self, data: Data) -> None:
        self.lengths = data.lengths

    def __len__(self) -> int:
        return sum(self.lengths)


def batches(data: Data) -> wids.BucketBatchSampler:
    """Return batches of eight buckets."""
    sampler = wids.DistributedChunkedSampler(Shards(data), **RANKS)
    return wids.BucketBatchSampler(sampler, np.arange(len(data)) % 8, 32)


KINDS: dict[str, Callable[[Data], Any]] = {
    "chunks": lambda data: wids.DistributedChunkedSampler(Shards(data), **RANKS),
    "redeal": lambda data: wids.DistributedChunkedSampler(Shards(data), **RANKS, redeal=True),
    "shards": lambda data: wids.ShardListSampler(Shards(data)),
    "1024 runs": lambda data: wids.DistributedChunkedSampler(
        Shards(data), **RANKS, num_canonical=1024
    ),
    "mixed": lambda data: wids.MixedSampler(data, [0.7, 0.2, 0.1], **RANKS),
}


def figures(sampler: Any, epoch: int, count: int) -> Figures:
    """Measure the look-ups of a sampler in an epoch."""
    draw, num_samples = Random(epoch), sampler.dataset_length
    start = clock()
    order = sampler.indices(epoch)
    order[len(order) // 2]
    made = clock()
    for _ in range(count):
        order[draw.randrange(len(order))]
    random = clock()
    for place in range(min(10 * count, len(order))):
        order[place]
    read = clock()
    sampler.steps_of(draw.randrange(num_samples), epoch + 1000)
    asked = clock()
    for _ in range(count):
        sampler.steps_of(draw.randrange(num_samples), epoch + 1000)
    again = clock()
    return Figures(
        made - start,
        (random - made) / count,
        (read - random) / min(10 * count, len(order)),
        asked - read,
        (again - asked) / count,
        len(pickle.dumps(order)),
    )


def main(arguments: list[str] | None = None) -> dict[tuple[str, int], Figures]:
    """Print the table, medians of rounds in which all take turns; return its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    sizes = [40_000, 200_000] if options.toy else [1_000_000, 100_000_000]
    made: dict[tuple[str, int], tuple[Any, int]] = {}
    for size in sizes:
        data = Data(size, size // 10_000)
        made |= {(name, size): (make(data), 100) for name, make in KINDS.items()}
        small = Data(size // 10, max(3, size // 100_000))
        made["batches", size // 10] = batches(small), 2
    found: dict[tuple[str, int], list[Figures]] = {row: [] for row in made}
    for epoch in range(options.rounds):
        for row, (sampler, count) in made.items():
            found[row].append(figures(sampler, epoch, count))
    names = ("make", "random", "next", "first steps_of", "steps_of")
    print(f"{'':20}" + "".join(f"{name:>16}" for name in names) + "         pickled")
    medians = {}
    for (name, size), measured in found.items():
        rows = [asdict(each) for each in measured]
        middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        medians[name, size] = Figures(**middle)
        *times, nbytes = middle.values()
        cells = "".join(f"{1000 * seconds:13.3f} ms" for seconds in times)
        print(f"{name:10}{size:10.0e}{cells}{nbytes / 1000:13.1f} kB", flush=True)
    return medians


if __name__ == "__main__":
    main()
