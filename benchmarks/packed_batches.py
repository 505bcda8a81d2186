"""Packed batches: how full they are, how long packing takes, and how equal the steps of ranks are.

    python benchmarks/packed_batches.py [--toy]

The first table packs sequences of log-normal length (median 400, sigma 1) into batches of 8,192
tokens: what share of the budget is used, and how long it takes a sample. Greedy closes a batch when
the next sequence does not fit. grain's best-fit packing has as many open bins as a window has
batches, and its time includes the copying of tokens into bins. axolotl's multipack is compared by
its algorithm, first-fit decreasing over groups of 100,000 sequences that are known before; its own
code is compiled by numba, so that no time is shown.

The second table is the largest cost of a step over the mean cost of all ranks, for the sum of
squares of the lengths in a batch, which attention costs: without `cost`, and with it.

The third table is of datasets whose documents differ in length by shard: the batches of all ranks
over those that their tokens need, samples that repeat and the most often that one is read, the
share of long documents in the first and second half of an epoch, and the shards that ranks read.

The fourth table is of scale, each row in a fresh process: the first batch of ten million samples,
`len()`, what a state takes to resume, and the memory of a hundred million lengths in a file.

All times are seconds of one core (CPU time).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
import warnings
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

clock = time.process_time  # seconds of one core, whatever else the machine does
MAX_TOKENS = 8192
WINDOW = 512


def lengths_of(count: int, sigma: float = 1.0, seed: int = 0) -> Any:
    """Return numbers of tokens of sequences."""
    drawn = np.random.default_rng(seed).normal(0, sigma, count)
    return (400 * np.exp(drawn)).round().clip(1, MAX_TOKENS).astype(np.int32)


class Data:
    """A dataset of so many samples in shards of one length."""

    def __init__(self, num_samples: int, length: int = 10_000) -> None:
        self.lengths = [length] * (num_samples // length) + [num_samples % length]

    def __len__(self) -> int:
        return sum(self.lengths)


def sampler_of(lengths: Any, rank: int = 0, num_replicas: int = 1, **options: Any) -> Any:
    """Return the packed batches of a rank."""
    from wids import DistributedChunkedSampler, PackedBatchSampler

    inside = DistributedChunkedSampler(
        Data(len(lengths)), num_replicas=num_replicas, rank=rank, even=False
    )
    return PackedBatchSampler(inside, lengths, MAX_TOKENS, **options)


# How full batches are


def greedy(lengths: Any) -> int:
    """Return the number of batches if sequences are taken as they come."""
    num_batches, left = 0, 0
    for length in lengths.tolist():
        if length > left:
            num_batches, left = num_batches + 1, MAX_TOKENS
        left -= length
    return num_batches


def first_fit_decreasing(lengths: Any, group: int = 100_000) -> int:
    """Return the number of batches of axolotl's algorithm."""
    total = 0
    for start in range(0, len(lengths), group):
        left = np.full(len(lengths[start : start + group]), MAX_TOKENS)
        count = 0
        for length in np.sort(lengths[start : start + group])[::-1].tolist():
            at = int(np.argmax(left[: count + 1] >= length))
            left[at] -= length
            count = max(count, at + 1)
        total += count
    return total


def of_grain(lengths: Any) -> int:
    """Return the number of batches of grain's best-fit packing."""
    import grain
    from grain.experimental import BestFitPackIterDataset  # type: ignore[import-untyped]

    tokens = np.zeros(MAX_TOKENS, np.int32)
    sequences = grain.MapDataset.source(lengths.tolist())
    sequences = sequences.map(lambda length: {"tokens": tokens[:length]})
    packed = BestFitPackIterDataset(
        sequences.to_iter_dataset(),
        length_struct={"tokens": MAX_TOKENS},
        num_packing_bins=WINDOW,
    )
    return sum(1 for _ in packed)


def fills(count: int) -> dict[str, tuple[float, float | None]]:
    """Return the share of the budget that is used, and the time of a sample, in seconds."""
    lengths = lengths_of(count)
    order = list(sampler_of(lengths).sampler)

    def windows(size: int) -> int:
        return sum(1 for _ in sampler_of(lengths, window=size))

    kinds: dict[str, Any] = {
        "greedy, in order": lambda: greedy(lengths[order]),
        "PackedBatchSampler, window=128": lambda: windows(128),
        "PackedBatchSampler, window=512": lambda: windows(512),
        "PackedBatchSampler, window=2048": lambda: windows(2048),
        "multipack's algorithm": lambda: first_fit_decreasing(lengths[order]),
    }
    rows = {}
    for name, count_batches in kinds.items():
        start = clock()
        num_batches = count_batches()
        seconds = None if "multipack" in name else (clock() - start) / count
        rows[name] = (float(lengths.sum()) / num_batches / MAX_TOKENS, seconds)
    if importlib.util.find_spec("grain"):
        few = lengths[order][: min(count, 50_000)]
        start = clock()
        num_batches = of_grain(few)
        used = float(few.sum()) / num_batches / MAX_TOKENS
        rows["grain, best-fit"] = (used, (clock() - start) / len(few))
    else:
        print("grain is not installed")
    return rows


# How equal steps are


def ratios(num_replicas: int, sigma: float, window: int, cost: str | None) -> tuple[float, ...]:
    """Return mean, 99th percentile and worst of the largest cost of a step over the mean."""
    # Two and a half windows a rank, so that the end of the epoch counts too.
    mean_length = 400 * np.exp(sigma**2 / 2)
    lengths = lengths_of(int(num_replicas * window * 2.5 * MAX_TOKENS / mean_length), sigma)
    sampler = sampler_of(lengths, 0, num_replicas, window=window, cost=cost)
    rounds = sampler._rounds(sampler._place_of(0))  # knows the windows of all ranks
    costs = [
        [
            float((lengths[batch].astype(np.float64) ** 2).sum())
            for block in rounds.own_batches(rank, 0)
            for batch in block
        ]
        for rank in range(num_replicas)
    ]
    steps = min(map(len, costs))
    table = np.array([of_rank[:steps] for of_rank in costs])
    ratio = table.max(0) / table.mean(0)
    return float(ratio.mean()), float(np.quantile(ratio, 0.99)), float(ratio.max())


# Datasets whose documents differ in length by shard


def log_normal(count: int, mean: float, seed: int = 0) -> Any:
    """Return lengths of a mean, up to 4,096."""
    drawn = np.random.default_rng(seed).lognormal(np.log(mean) - 0.5, 1, count)
    return np.clip(drawn, 1, 4096).astype(np.int64)


def skewed(count: int) -> dict[str, tuple[Any, int, int, dict[str, Any]]]:
    """Return lengths, number of ranks and of runs, and options, by the name of the row."""
    means = (60, 120, 200, 350, 500, 800, 1200, 2000)
    sources = np.concatenate([log_normal(count // 8, mean) for mean in means])
    iid = log_normal(count, 500)
    few = count // 10
    images = np.random.default_rng(1).integers(0, 9, len(sources))
    return {
        "8 sources, 4 ranks": (sources, 4, 4, {}),
        "8 sources, 16 ranks": (sources, 16, 16, {}),
        "8 sources, cost": (sources, 4, 4, {"cost": "squares"}),
        "8 sources, drop_last": (sources, 4, 4, {"drop_last": True}),
        "sorted, 4 ranks": (np.sort(iid), 4, 4, {}),
        "sorted, 64 runs": (np.sort(iid), 4, 64, {}),
        "iid, 64 ranks": (iid, 64, 64, {}),
        "500 samples, 64 ranks": (iid[:500], 64, 64, {}),
        "51 % of the budget": (np.full(few, 2089), 4, 4, {}),
        "34 % of the budget": (np.full(few, 1393), 4, 4, {}),
        "4 samples at most": (log_normal(few, 200), 4, 4, {"max_items": 4}),
        "two budgets": (sources, 4, 4, {"budgets": {"images": (images, 32)}}),
    }


def epoch_of(lengths: Any, num_ranks: int, num_runs: int, options: dict[str, Any]) -> list[float]:
    """Return what the table has of an epoch."""
    from wids import DistributedChunkedSampler, PackedBatchSampler

    ranks = []
    for rank in range(num_ranks):
        inside = DistributedChunkedSampler(
            Data(len(lengths), 1000),
            num_replicas=num_ranks,
            rank=rank,
            num_canonical=num_runs,
            even=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of batches that are far from full
            ranks.append(list(PackedBatchSampler(inside, lengths, 4096, **options)))
    half = len(ranks[0]) // 2
    is_long = lengths > np.median(lengths)
    halves = [
        np.concatenate([np.array(b) for batches in ranks for b in batches[part]] or [[]])
        for part in (slice(half), slice(half, None))
    ]
    first, second = (half_.astype(np.int64) for half_ in halves)
    counts = np.bincount(np.concatenate((first, second)), minlength=len(lengths))
    shards = sum(len({i // 1000 for b in batches for i in b}) for batches in ranks)
    num_batches = sum(map(len, ranks))
    needed = np.minimum(lengths, 4096).sum() / 4096
    return [
        num_batches / needed,
        float(np.maximum(counts - 1, 0).sum()),
        float(counts.max()),
        float(is_long[first].mean()),
        float(is_long[second].mean()),
        shards / -(-len(lengths) // 1000),
    ]


# Scale


def scale(num_samples: int) -> dict[str, float]:
    """Measure the first batch, the count of an epoch, and a resumption in its middle."""
    lengths = lengths_of(num_samples)
    next(iter(sampler_of(lengths[:1000])))  # imports, first calls
    start = clock()
    sampler = sampler_of(lengths)
    next(iter(sampler))
    first_s = clock() - start
    start = clock()
    num_batches = len(sampler)
    len_s = clock() - start
    for _ in islice(iter(sampler), num_batches // 2):
        pass
    state = json.loads(json.dumps(sampler.state_dict()))
    resumed = sampler_of(lengths)
    resumed._fingerprint()  # hashes the lengths, once in the life of a sampler
    start = clock()
    resumed.load_state_dict(state)
    next(iter(resumed))
    return {"first_s": first_s, "len_s": len_s, "resume_s": clock() - start}


def memory(num_samples: int) -> dict[str, float]:
    """Measure a sampler of lengths in a file: the peak of the process, in MB."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lengths.npy"
        file = np.lib.format.open_memmap(path, "w+", np.int32, (num_samples,))
        part = lengths_of(min(num_samples, 1_000_000))
        for at in range(0, num_samples, len(part)):
            file[at : at + len(part)] = part[: num_samples - at]
        del file, part
        program = [sys.executable, str(Path(__file__).resolve()), "--mapped", str(path)]
        answer = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    found: dict[str, float] = json.loads(answer.splitlines()[-1])
    return found


def mapped(path: str) -> dict[str, float]:
    """Measure this process with the lengths of a file: a first batch, and a state."""
    next(iter(sampler_of(lengths_of(1000))))  # imports, first calls
    start = clock()
    sampler = sampler_of(np.load(path, mmap_mode="r"), 0, 64)
    next(iter(sampler))
    first_s = clock() - start
    sampler.state_dict()  # hashes the lengths, once in the life of a sampler
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first_s": first_s, "state_s": clock() - start - first_s, "peak_mb": peak_mb}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Print the tables; return their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--scale", type=int, help="measure scale in this process")
    parser.add_argument(
        "--mapped", help="measure memory in this process, with the lengths of a file"
    )
    options = parser.parse_args(arguments)
    if options.scale or options.mapped:
        print(json.dumps(scale(options.scale) if options.scale else mapped(options.mapped)))
        return {}
    rows: dict[str, Any] = {"fill": fills(30_000 if options.toy else 500_000)}
    print("budget of 8,192 tokens           used  a sample")
    for name, (used, seconds) in rows["fill"].items():
        took = "" if seconds is None else f"{seconds * 1e6:6.2f} us"
        print(f"{name:31} {used:6.2%} {took}")
    print("\nlargest cost of a step / mean    without cost          with cost")
    print("ranks  sigma  window     mean    p99  worst    mean    p99  worst")
    for num_replicas in (2, 4) if options.toy else (8, 64):
        for sigma in (0.5, 1.0):
            for window in (16,) if options.toy else (128, 512):
                both = [ratios(num_replicas, sigma, window, cost) for cost in (None, "squares")]
                rows[f"{num_replicas} {sigma} {window}"] = both
                numbers = "  ".join(" ".join(f"{n:6.3f}" for n in each) for each in both)
                print(f"{num_replicas:5}  {sigma:5}  {window:6}   {numbers}", flush=True)
    print("\n                          x needed  repeated  most  long, 1st  2nd half  x shards")
    for name, case in skewed(8_000 if options.toy else 200_000).items():
        row = rows[name] = epoch_of(*case)
        print(f"{name:25} {row[0]:8.3f}  {row[1]:8.0f}  {row[2]:4.0f}  ", end="")
        print(f"{row[3]:9.2f}  {row[4]:8.2f}  {row[5]:8.2f}", flush=True)
    count = 200_000 if options.toy else 10_000_000
    command = [sys.executable, str(Path(__file__).resolve()), "--scale", str(count)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows["scale"] = json.loads(answer.splitlines()[-1])
    print(
        f"\n{count:,} samples, 1 rank:", ", ".join(f"{k} {v:.3f}" for k, v in rows["scale"].items())
    )
    rows["memory"] = memory(count * 10)
    print(
        f"{count * 10:,} lengths in a file, 64 ranks:",
        ", ".join(f"{k} {v:.3f}" for k, v in rows["memory"].items()),
    )
    return rows


if __name__ == "__main__":
    main()
