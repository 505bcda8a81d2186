"""A second implementation of batches from buckets, with plain lists and no cleverness.

Run as a program, it writes the golden vectors:

    python tests/property/reference_buckets.py > specs/bucket-batches.golden.json

It starts from the runs of the reference order, and shares nothing with the library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import reference_order

Batches = list[list[int]]


@dataclass(frozen=True)
class Job:
    """What the batches of an epoch depend on.

    An index is in a run once, or twice if the sampler repeats it.
    """

    runs: list[list[int]]
    buckets: list[int]
    sizes: dict[int, int]
    aligned: bool = False
    drop_last: bool = False

    def of_bucket(self, run: int, bucket: int) -> list[int]:
        """Return the positions in a run that have indices of a bucket."""
        return [at for at, index in enumerate(self.runs[run]) if self.buckets[index] == bucket]


@dataclass(frozen=True)
class Epoch:
    """The batches of every run of an epoch, and what was counted."""

    runs: list[Batches]
    num_repeated: int
    num_left_out: int


def epoch(job: Job) -> Epoch:
    """Return the batches of an epoch."""
    return aligned(job) if job.aligned else separate(job)


def rank(made: Epoch, number: int, num_replicas: int) -> Batches:
    """Return the batches of a rank (ORDER-42)."""
    width = len(made.runs) // num_replicas
    mine = made.runs[number * width : (number + 1) * width]
    return [batch for batches in zip(*mine, strict=True) for batch in batches]


def nearest(here: int, candidates: Sequence[int]) -> int:
    """Return the nearest candidate, and of two equally near the later."""
    return min(candidates, key=lambda other: (abs(other - here), other < here))


def cut(items: list[int], size: int) -> Batches:
    """Return batches of a size; the last one may be partial."""
    return [items[at : at + size] for at in range(0, len(items), size)]


def total(lists: Sequence[Sequence[Any]]) -> int:
    """Return how much is in all lists together."""
    return sum(map(len, lists))


def separate(job: Job) -> Epoch:
    """Return the batches of each run by itself (ORDER-40, ORDER-41)."""
    full: list[Batches] = []
    partial: list[Batches] = []
    for number, run in enumerate(job.runs):
        positions: list[Batches] = [[], []]
        for bucket, size in sorted(job.sizes.items()):
            for batch in cut(job.of_bucket(number, bucket), size):
                positions[len(batch) < size].append(batch)
        positions[0].sort(key=lambda batch: batch[-1])
        full.append([[run[at] for at in batch] for batch in positions[0]])
        partial.append([[run[at] for at in batch] for batch in positions[1]])
    own = full if job.drop_last else [a + b for a, b in zip(full, partial, strict=True)]
    return replace(made := dealt(own, job.drop_last), num_left_out=total(job.runs) - in_any(made))


def sequences(own: list[Batches], drop_last: bool) -> list[Batches]:
    """Return what each run has, without what it repeats, and with what is left out (ORDER-41)."""
    c, count = len(own), total(own)
    num_rounds = count // c if drop_last else -(-count // c)
    made = [batches[:num_rounds] for batches in own]
    beyond = [batch for batches in own for batch in batches[num_rounds:]]
    for batches in made:
        while beyond and len(batches) < num_rounds:
            batches.append(beyond.pop(0))
    made[-1] += beyond
    return made


def dealt(own: list[Batches], drop_last: bool) -> Epoch:
    """Return rounds of the batches that runs have made (ORDER-41)."""
    c, count = len(own), total(own)
    num_rounds = count // c if drop_last else -(-count // c)
    every = [batch for batches in own for batch in batches]
    made = [batches[:num_rounds] for batches in sequences(own, drop_last)]
    num_repeated = 0
    for batches in made:
        while len(batches) < num_rounds:
            batches.append(every[num_repeated % len(every)])
            num_repeated += 1
    repeated = [every[number % len(every)] for number in range(num_repeated)]
    return Epoch(made, total(repeated), 0)


def in_any(made: Epoch) -> int:
    """Return how many indices are in the batches of an epoch, without those that are repeated."""
    return sum(map(total, made.runs)) - made.num_repeated


def aligned(job: Job) -> Epoch:
    """Return batches that have the same bucket in all runs (ORDER-43, ORDER-44)."""
    c = len(job.runs)
    together = [
        job.buckets[run[at]] for at in range(max(map(len, job.runs))) for run in job.runs
        if at < len(run)
    ]  # fmt: skip
    rounds = []
    seen = dict.fromkeys(job.sizes, 0)
    for bucket in together:
        seen[bucket] += 1
        if seen[bucket] % (c * job.sizes[bucket]) == 0:
            rounds.append(bucket)
    if not job.drop_last:
        rounds += [b for b, s in sorted(job.sizes.items()) if seen[b] % (c * s)]
    shares = {bucket: shares_of(job, bucket, seen[bucket]) for bucket in job.sizes}
    made: list[Batches] = [[] for _ in job.runs]
    num_repeated = 0
    taken = dict.fromkeys(job.sizes, 0)
    for bucket in rounds:
        size, at = job.sizes[bucket], taken[bucket]
        batches = [share[at : at + size] for share in shares[bucket]]
        filled = [number for number, batch in enumerate(batches) if batch]
        for number, batch in enumerate(batches):
            made[number].append(batch or batches[nearest(number, filled)])
            num_repeated += 0 if batch else len(made[number][-1])
        taken[bucket] += size
    in_batches = sum(map(total, made)) - num_repeated
    return Epoch(made, num_repeated, len(together) - in_batches)


def shares_of(job: Job, bucket: int, n: int) -> Batches:
    """Return the indices of a bucket that each run has in an aligned epoch (ORDER-44)."""
    c, size = len(job.runs), job.sizes[bucket]
    k = n // (c * size)
    m = n - k * c * size
    own = [[run[at] for at in job.of_bucket(i, bucket)] for i, run in enumerate(job.runs)]
    quotas = [
        k * size + (0 if job.drop_last else m * (run + 1) // c - m * run // c) for run in range(c)
    ]
    lent = [indices[quota:] for indices, quota in zip(own, quotas, strict=True)]
    shares = [indices[:quota] for indices, quota in zip(own, quotas, strict=True)]
    for run in range(c):
        while len(shares[run]) < quotas[run]:
            lender = nearest(run, [number for number in range(c) if lent[number]])
            shares[run].append(lent[lender].pop(0))
    return shares


def golden() -> dict[str, Any]:
    """Return the vectors: batches of all ranks, in small epochs."""
    lengths, seed = [9, 3, 0, 4, 11, 2], 3
    buckets = [(7 * i * i + i // 5) % 4 * 2 for i in range(29)]
    sizes = {0: 2, 2: 3, 4: 1, 6: 4}
    vectors = []
    for c, num_replicas, epoch_number in ((1, 1, 0), (2, 2, 1), (4, 2, 0), (6, 3, 2)):
        for is_aligned in (False, True):
            for drop_last in (False, True):
                case = reference_order.Case(
                    lengths, 0, 29, 5, num_runs=c, ending="uneven", seed=seed, epoch=epoch_number
                )
                job = Job(reference_order.runs(case), buckets, sizes, is_aligned, drop_last)
                made = epoch(job)
                vectors.append(
                    {
                        "order": asdict(case),
                        "buckets": buckets,
                        "batch_sizes": [[bucket, size] for bucket, size in sizes.items()],
                        "aligned": is_aligned,
                        "drop_last": drop_last,
                        "num_replicas": num_replicas,
                        "ranks": [
                            rank(made, number, num_replicas) for number in range(num_replicas)
                        ],
                        "num_repeated": made.num_repeated,
                        "num_left_out": made.num_left_out,
                    }
                )
    return {"epochs": vectors}


if __name__ == "__main__":
    # One line per vector, so that a diff is readable.
    lines = ",\n".join(json.dumps(vector) for vector in golden()["epochs"])
    sys.stdout.write('{\n"epochs": [\n' + lines + "\n]\n}\n")
