"""Threads or workers: an epoch read by workers of a loader, or by threads of the process.

    python benchmarks/threads.py [--rounds 5] [--samples 1000] [--step-ms 30]

Threads call ``dataset.__getitems__`` and ``wids.collate``, as docs/slow.md shows, in the process
or in its one worker. The main thread waits for batches, or runs a step of a small network between
them, on one thread of torch. The ways take turns. A cell is the number of samples a second, and the
ratio of seconds of 2 workers to those of the way: median (least to most). The last column has the
processor's microseconds for a sample, of all processes.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reporting.data import picture
from torch.utils.data import DataLoader, IterableDataset

import wids

BATCH_SIZE = 32
CROP = 224
TOKENS = 2048


def crop(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a picture at a random place."""
    height, width = sample[".jpg"].shape[1:]
    top, left = random.randint(0, height - CROP), random.randint(0, width - CROP)
    return {**sample, ".jpg": sample[".jpg"][:, top : top + CROP, left : left + CROP]}


def write(folder: Path, count: int) -> None:
    """Write shards of pictures, and shards of tokens."""
    generator = np.random.default_rng(0)
    with wids.ShardWriter(folder / "pictures-%06d.tar", maxcount=500) as writer:
        for number in range(count):
            writer.write({"__key__": f"{number}", ".jpg": picture(number % 50), ".cls": number})
    with wids.ShardWriter(folder / "tokens-%06d.tar", maxcount=5000) as writer:
        for number in range(10 * count):
            tokens = generator.integers(0, 50_000, TOKENS, np.int32)
            writer.write({"__key__": f"{number}", ".npy": tokens})


def datasets(folder: Path) -> dict[str, wids.ShardListDataset]:
    """Return what is read."""
    pictures = wids.ShardListDataset(folder / "pictures.json", transformations="torch")
    return {
        "decoded pictures": pictures,
        "random crops": pictures.map(crop),
        "tokens": wids.ShardListDataset(folder / "tokens.json", transformations="torch"),
    }


def by_workers(dataset: Any, num_workers: int) -> Iterator[Any]:
    sampler = wids.ChunkedSampler(dataset, seed=0)
    options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": wids.collate}
    yield from DataLoader(dataset, BATCH_SIZE, sampler=sampler, **options)


def by_threads(dataset: Any, num_threads: int) -> Iterator[Any]:
    def read(indices: list[int]) -> Any:
        return wids.collate(dataset.__getitems__(indices))

    indices = iter(wids.ChunkedSampler(dataset, seed=0))
    with ThreadPoolExecutor(num_threads) as pool:
        waiting: deque[Any] = deque()
        while batch := list(islice(indices, BATCH_SIZE)):
            waiting.append(pool.submit(read, batch))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Threads(IterableDataset[Any]):
    """Batches that threads of a worker read."""

    def __init__(self, dataset: Any, num_threads: int) -> None:
        self.dataset = dataset
        self.num_threads = num_threads

    def __iter__(self) -> Iterator[Any]:
        return by_threads(self.dataset, self.num_threads)


def by_threads_of_a_worker(dataset: Any, num_threads: int) -> Iterator[Any]:
    yield from DataLoader(Threads(dataset, num_threads), batch_size=None, num_workers=1)


WAYS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "2 workers": lambda dataset: by_workers(dataset, 2),
    "2 threads": lambda dataset: by_threads(dataset, 2),
    "4 threads": lambda dataset: by_threads(dataset, 4),
    "1 worker of 4 threads": lambda dataset: by_threads_of_a_worker(dataset, 4),
}


def step_of(milliseconds: float) -> Callable[[], None]:
    """Return a step of training that takes about so long alone."""
    network = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    values = torch.randn(64, 512)

    def once() -> None:
        network(values).square().mean().backward()

    once()
    start_s = time.perf_counter()
    for _ in range(20):
        once()
    count = max(1, round(milliseconds / 1e3 / ((time.perf_counter() - start_s) / 20)))
    return lambda: [once() for _ in range(count)][-1]


def processor_s() -> float:
    return sum(os.times()[:4])


def measured(batches: Iterator[Any], step: Callable[[], None] | None) -> tuple[float, float]:
    """Return the seconds for a sample after the first batch, and the processor's for all."""
    before_s = processor_s()
    num_first = len(next(batches)["__index__"])
    start_s, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch["__index__"])
        if step:
            step()
    seconds = time.perf_counter() - start_s
    gc.collect()  # workers count once they have ended
    return seconds / count, (processor_s() - before_s) / (num_first + count)


def main(arguments: list[str] | None = None) -> dict[tuple[str, bool, str], float]:
    """Print a table; return the samples a second of each row, with and without steps, and way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--step-ms", type=float, default=30.0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    step = step_of(options.step_ms)
    speeds = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.samples)
        for name, dataset in datasets(Path(folder)).items():
            for is_training in (False, True):
                times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
                for _ in range(options.rounds):
                    for way, read in WAYS.items():
                        times[way].append(measured(read(dataset), step if is_training else None))
                for way, found in times.items():
                    seconds = statistics.median(each for each, _ in found)
                    used_s = statistics.median(each for _, each in found)
                    pairs = zip(times["2 workers"], found, strict=True)
                    ratios = sorted(base[0] / own[0] for base, own in pairs)
                    speeds[name, is_training, way] = 1 / seconds
                    what = "a step" if is_training else "waits"
                    ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                    print(
                        f"{name:18}{what:8}{way:22}{1 / seconds:>8.0f} samples/s  "
                        f"{ratio:22}{used_s * 1e6:>7.0f} µs",
                        flush=True,
                    )
    return speeds


if __name__ == "__main__":
    main()
