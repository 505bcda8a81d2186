"""Where the time of an epoch goes: reading, decoding, collating, transfer between processes.

    python benchmarks/epoch_time.py [--kinds small pictures bytes] [--rounds 3]

The first table has processor time for each sample, in microseconds. *Transfer* is what a DataLoader
with one worker spends, in both processes, on the same batch again and again, without collating it.
The second table has an epoch, with workers, as a stream, and with threads: processor time of all
processes for each sample, and in brackets the time by the clock, which says little on a machine
that does other work. Ways take turns; the least time counts. Batches have 64 samples.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader

import wids

BATCH_SIZE: Final = 64
KINDS: Final = ("small", "pictures", "bytes")


def fields(kind: str, number: int, generator: np.random.Generator) -> dict[str, Any]:
    """Return the fields of a sample."""
    if kind == "small":
        return {".txt": f"the caption of sample {number}", ".cls": number % 1000}
    if kind == "bytes":
        return {".bin": os.urandom(100_000)}
    # Smooth with some noise, as photographs are: 20 to 30 kB.
    coarse = Image.fromarray(generator.integers(0, 256, (24, 24, 3), np.uint8))
    pixels = np.asarray(coarse.resize((256, 256), Image.Resampling.BICUBIC), np.int16)
    noisy = (pixels + generator.integers(-12, 13, pixels.shape)).clip(0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noisy).save(stream, "JPEG", quality=85)
    return {".jpg": stream.getvalue(), ".cls": number % 1000}


def write(folder: str, kind: str, num_samples: int) -> str:
    """Write a dataset; return its spec."""
    generator = np.random.default_rng(0)
    maxcount = -(-num_samples // 8)
    with wids.ShardWriter(f"{folder}/{kind}-%06d.tar", maxcount=maxcount) as writer:
        for number in range(num_samples):
            writer.write({"__key__": f"{number:08d}", **fields(kind, number, generator)})
    return f"{folder}/{kind}.json"


def opened(spec: str, kind: str) -> wids.ShardListDataset:
    """Return the dataset as training reads it."""
    if kind == "bytes":
        return wids.ShardListDataset(spec, transformations=[], raw="bytes")
    return wids.ShardListDataset(spec, transformations="torch")


def collator(kind: str) -> Callable[[list[Any]], Any]:
    """Return what makes a batch of samples; bytes are left as they are."""
    return list if kind == "bytes" else wids.collate


def batches_of(dataset: Any) -> list[list[int]]:
    """Return the indices of each batch of an epoch."""
    indices = iter(wids.ChunkedSampler(dataset))
    return list(iter(lambda: list(islice(indices, BATCH_SIZE)), []))


class Repeated:
    """A dataset that has the same samples in each batch, so that nothing is read or decoded."""

    def __init__(self, samples: list[Any], length: int) -> None:
        self.samples, self.length = samples, length

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return self.samples[: len(indices)]

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


def processor_s(work: Callable[[], object]) -> float:
    """Return the processor time of some work, in this process and in those that end with it."""

    def spent() -> float:
        users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(sum(resource.getrusage(user)[:2]) for user in users)

    start_s = spent()
    work()
    return spent() - start_s


def consume(batches: Iterable[Any]) -> None:
    """Read an epoch."""
    deque(batches, maxlen=0)


def stages(spec: str, kind: str) -> dict[str, float]:
    """Return the processor time of each stage, in seconds for each sample."""
    with opened(spec, kind) as dataset, wids.ShardListDataset(spec, transformations=[]) as raw:
        batches, collate = batches_of(dataset), collator(kind)
        consume(map(raw.__getitems__, batches[:20]))  # what is opened once
        consume(map(dataset.__getitems__, batches[:20]))
        read = processor_s(lambda: consume(map(raw.__getitems__, batches)))
        both = processor_s(lambda: consume(map(dataset.__getitems__, batches)))
        samples = dataset.__getitems__(batches[0])
        num_batches = max(200, len(batches))
        collated = processor_s(lambda: consume(collate(samples) for _ in range(num_batches)))

        def sent(length: int) -> float:
            loader: DataLoader[Any] = DataLoader(
                Repeated(samples, length),  # type: ignore[arg-type]
                batch_size=BATCH_SIZE,
                num_workers=1,
                collate_fn=collate,
            )
            return processor_s(lambda: consume(loader))

        started = sent(BATCH_SIZE)
        transfer = sent(num_batches * BATCH_SIZE) - started - collated
    return {
        "read": read / len(dataset),
        "decode": (both - read) / len(dataset),
        "collate": collated / num_batches / BATCH_SIZE,
        "transfer": transfer / num_batches / BATCH_SIZE,
    }


def threaded(dataset: Any, collate: Callable[[list[Any]], Any], num_threads: int) -> Iterator[Any]:
    """Yield the batches of an epoch in order, read by threads of this process."""
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        for indices in batches_of(dataset):
            waiting.append(pool.submit(lambda i: collate(dataset.__getitems__(i)), indices))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def epoch(dataset: Any, kind: str, way: str) -> Iterator[Any]:
    """Return the batches of an epoch, once the first has been read."""
    name, _, number = way.partition(" ")
    if name == "threads":
        batches = threaded(dataset, collator(kind), int(number))
    else:
        data: Any = dataset
        sampler: Any = wids.ChunkedSampler(dataset)
        if name == "stream":
            data, sampler = wids.stream(dataset, sampler, batch_size=BATCH_SIZE), None
        batches = iter(
            DataLoader(
                data,
                batch_size=BATCH_SIZE,
                sampler=sampler,
                num_workers=int(number),
                collate_fn=collator(kind),
            )
        )
    next(batches)
    return batches


WAYS: Final = tuple(
    f"{name} {number}"
    for name, numbers in (("workers", (0, 1, 2)), ("stream", (0, 1, 2)), ("threads", (1, 2)))
    for number in numbers
)


def epochs(spec: str, kind: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Return for each way the processor time and the time by the clock of a sample, in seconds."""
    found: dict[str, tuple[float, float]] = {}
    with opened(spec, kind) as dataset:
        for _ in range(rounds):
            for way in WAYS:
                clock_s: list[float] = []

                def work(way: str = way, clock_s: list[float] = clock_s) -> None:
                    batches = epoch(dataset, kind, way)
                    start_s = time.perf_counter()
                    consume(batches)
                    clock_s.append(time.perf_counter() - start_s)

                taken = processor_s(work) / len(dataset), clock_s[0] / len(dataset)
                found[way] = min(found.get(way, taken), taken)
    return found


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--num-samples", type=int, default=0, help="0 for a size that fits")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, {'with' if has_lock else 'without'} its global lock")
    sizes = {"small": 40_000, "pictures": 4_000, "bytes": 4_000}
    with tempfile.TemporaryDirectory() as folder:
        specs = {
            kind: write(folder, kind, options.num_samples or sizes[kind]) for kind in options.kinds
        }
        print("\n| µs of processor | read | decode | collate | transfer |\n|---|---|---|---|---|")
        for kind, spec in specs.items():
            parts = [stages(spec, kind) for _ in range(options.rounds)]
            cells = [f"{min(part[name] for part in parts) * 1e6:.1f}" for name in parts[0]]
            print(f"| {kind} | {' | '.join(cells)} |", flush=True)
        print(f"\n| µs of processor (by the clock) | {' | '.join(WAYS)} |")
        print("|---" * (len(WAYS) + 1) + "|")
        for kind, spec in specs.items():
            taken = epochs(spec, kind, options.rounds)
            cells = [f"{busy * 1e6:.1f} ({clock * 1e6:.1f})" for busy, clock in taken.values()]
            print(f"| {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
