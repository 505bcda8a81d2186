"""Batches of one bucket each: how long they take, and what wids, lhotse and a loop do with samples.

    python benchmarks/bucket_batches.py [--toy]

The first table is of one epoch of 20,000 utterances of 0.5 to 30 seconds on two ranks, in batches
of up to 200 seconds, with five buckets: how many batches each rank has, which samples are missed or
repeated, in how many steps the longest samples of the two ranks are of different buckets, and how
long the first batch takes after a restart in the middle of the epoch. The second table is of ten
million samples: all batches as lists, and a restart in the middle, each in a fresh process. All
times are CPU seconds.

The loop is what programs have around torch's ``DistributedSampler``: collect indices by bucket,
yield a batch when there are enough, drop the rest. It has no state, and is run again to the middle.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

clock = time.process_time  # seconds of one core, whatever else the machine does
SECONDS = 200.0
EDGES = [2.5, 4.0, 6.0, 10.0, 30.0]
"""The longest utterance of each bucket."""

Batches = list[list[int]]


@dataclass(frozen=True)
class Figures:
    """One epoch of one sampler on two ranks."""

    num_batches: list[int]
    missed: int
    repeated: int
    steps_that_differ: int
    resume_s: float
    is_exact: bool


def durations(num_samples: int) -> Any:
    """Return the lengths of utterances in seconds."""
    rng = np.random.default_rng(0)
    return np.round(np.exp(rng.normal(1.5, 0.7, num_samples)).clip(0.5, 30), 2)


def wids_sampler(lengths: Any, rank: int, **options: Any) -> Any:
    """Return the batches of a rank."""
    from wids import BucketBatchSampler, DistributedChunkedSampler

    inside = DistributedChunkedSampler(range(len(lengths)), num_replicas=2, rank=rank, even=False)
    buckets = np.searchsorted(EDGES, lengths)
    return BucketBatchSampler(inside, buckets, lambda b: int(SECONDS / EDGES[b]), **options)


def lhotse_sampler(manifest: Path, rank: int, **options: Any) -> Any:
    """Return the batches of a rank, of cuts that are read from a file, as lhotse recommends."""
    from lhotse import CutSet
    from lhotse.dataset import DynamicBucketingSampler

    cuts = CutSet.from_jsonl_lazy(manifest)
    return DynamicBucketingSampler(
        cuts, max_duration=SECONDS, num_buckets=5, shuffle=True, world_size=2, rank=rank, **options
    )


def write_cuts(lengths: Any, folder: Path) -> Path:
    """Write the utterances as lhotse's cuts; return the path of the file."""
    from lhotse import CutSet
    from lhotse.testing.dummies import dummy_cut

    cuts = (dummy_cut(number, duration=float(length)) for number, length in enumerate(lengths))
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl")
    return folder / "cuts.jsonl"


class Loop:
    """Indices of torch's ``DistributedSampler``, collected by bucket; the rest is dropped."""

    def __init__(self, lengths: Any, rank: int) -> None:
        from torch.utils.data import DistributedSampler

        self.sampler: Any = DistributedSampler(range(len(lengths)), num_replicas=2, rank=rank)  # type: ignore[arg-type]
        self.buckets = np.searchsorted(EDGES, lengths).tolist()

    def __iter__(self) -> Iterator[list[int]]:
        waiting: dict[int, list[int]] = {}
        for index in self.sampler:
            bucket = self.buckets[index]
            batch = waiting.setdefault(bucket, [])
            batch.append(index)
            if len(batch) == int(SECONDS / EDGES[bucket]):
                yield waiting.pop(bucket)


def as_numbers(batch: Any) -> list[int]:
    """Return a batch of cuts as numbers of samples."""
    return [item if isinstance(item, int) else int(item.id.rpartition("-")[2]) for item in batch]


def epoch(make: Callable[[int], Any], lengths: Any) -> Figures:
    """Measure an epoch on two ranks, and a restart of the first in the middle."""
    ranks = [[as_numbers(batch) for batch in make(rank)] for rank in range(2)]
    seen = Counter(n for batches in ranks for batch in batches for n in batch)
    differ = 0
    for mine, others in zip(*ranks, strict=False):
        longest = [np.searchsorted(EDGES, max(lengths[n] for n in b)) for b in (mine, others)]
        differ += int(longest[0] != longest[1])
    before, after = make(0), make(0)
    middle = len(ranks[0]) // 2
    done = [as_numbers(batch) for batch in islice(iter(before), middle)]
    if hasattr(before, "state_dict"):
        state = before.state_dict()
        start = clock()
        after.load_state_dict(state)
        rest = iter(after)
    else:
        start = clock()
        rest = islice(iter(after), middle, None)
    found = [as_numbers(next(rest))]
    resume_s = clock() - start
    # Not `for batch in rest`: iter() of some samplers starts again.
    while (batch := next(rest, None)) is not None:
        found.append(as_numbers(batch))
    return Figures(
        [len(batches) for batches in ranks],
        len(lengths) - len(seen),
        sum(seen.values()) - len(seen),
        differ,
        resume_s,
        done + found == ranks[0],
    )


def compare(num_samples: int) -> dict[str, Figures]:
    """Measure all samplers; lhotse only where it is installed."""
    lengths = durations(num_samples)
    makers: dict[str, Callable[[int], Any]] = {
        "wids": lambda rank: wids_sampler(lengths, rank),
        "wids, aligned": lambda rank: wids_sampler(lengths, rank, aligned=True),
        "wids, drop_last": lambda rank: wids_sampler(lengths, rank, drop_last=True),
        "DistributedSampler, loop": lambda rank: Loop(lengths, rank),
    }
    with TemporaryDirectory() as folder:
        if importlib.util.find_spec("lhotse"):
            manifest = write_cuts(lengths, Path(folder))
            makers["lhotse"] = lambda rank: lhotse_sampler(manifest, rank)
            makers["lhotse, drop_last"] = lambda rank: lhotse_sampler(
                manifest, rank, drop_last=True
            )
        else:
            print("lhotse is not installed")
        return {name: epoch(make, lengths) for name, make in makers.items()}


def speed(num_samples: int, aligned: bool, num_replicas: int) -> dict[str, float]:
    """Measure all batches of an epoch on one rank, and a restart in the middle."""
    from wids import BucketBatchSampler, DistributedChunkedSampler

    class Data:
        lengths = [1000] * (num_samples // 1000)

        def __len__(self) -> int:
            return num_samples

    buckets = np.random.default_rng(0).integers(0, 8, num_samples).astype(np.uint8)

    def made(count: int = num_replicas) -> Any:
        inside = DistributedChunkedSampler(Data(), num_replicas=count, rank=0, even=False)
        return BucketBatchSampler(inside, buckets, lambda b: 16 * (b + 1), aligned=aligned)

    next(iter(made()))  # imports, first calls
    start = clock()
    sampler = made()
    num_batches = len(sampler)
    num_made = sum(map(len, sampler))
    made_s = clock() - start
    sampler.set_epoch(1)
    indices = iter(sampler)
    half = list(islice(indices, num_batches // 2))
    state, after = sampler.state_dict(), made()
    del half
    start = clock()
    after.load_state_dict(state)
    next(iter(after))
    return {"num_samples": num_made, "made_s": made_s, "resume_s": clock() - start}


def main(arguments: list[str] | None = None) -> dict[str, Figures]:
    """Print both tables; return the rows of the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--cell", help="measure speed in this process; a JSON list")
    options = parser.parse_args(arguments)
    if options.cell:
        print(json.dumps(speed(*json.loads(options.cell))))
        return {}
    rows = compare(2_000 if options.toy else 20_000)
    print(f"{'20,000 samples, 2 ranks':26} batches  missed  repeated  steps differ  resumed exact")
    for name, figures in rows.items():
        batches = " + ".join(map(str, figures.num_batches))
        print(
            f"{name:26} {batches:>11} {figures.missed:7} {figures.repeated:9} "
            f"{figures.steps_that_differ:13} {figures.resume_s * 1e3:8.1f} ms {figures.is_exact}"
        )
    num_samples = 1_000_000 if options.toy else 10_000_000
    print(f"\n{num_samples:,} samples           made  resumed in the middle")
    for aligned, num_replicas in ((False, 1), (False, 2), (True, 2)):
        command = [sys.executable, str(Path(__file__).resolve()), "--cell"]
        command += [json.dumps([num_samples, aligned, num_replicas])]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        cell = json.loads(answer.splitlines()[-1])
        name = f"rank 0 of {num_replicas}{', aligned' if aligned else ''}"
        print(f"{name:26} {cell['made_s']:6.2f} s {cell['resume_s']:6.2f} s", flush=True)
    return rows


if __name__ == "__main__":
    main()
