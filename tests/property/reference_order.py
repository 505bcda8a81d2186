"""A second implementation of specs/sampler-order.md, with plain lists and no cleverness.

Run as a program, it writes the golden vectors:

    python tests/property/reference_order.py > specs/sampler-order.golden.json

It shares nothing with the library except numpy's two generators.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """What an order depends on, under the names of the specification."""

    lengths: list[int]
    start: int
    stop: int
    chunksize: int | None
    shuffle: bool = True
    shufflefirst: bool = True
    num_runs: int = 1
    redeal: bool = False
    ending: str = "pad"
    seed: int = 0
    epoch: int = 0


def permutation(length: int, seed: int, key: list[int]) -> list[int]:
    """Return the permutation of a seed and key (ORDER-6)."""
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    words = [int(word) for word in np.random.PCG64(sequence).random_raw(length)]
    low = 2 ** max(length - 1, 0).bit_length()
    return [word % low for word in sorted(word // low * low + i for i, word in enumerate(words))]


def chunks(case: Case, start: int, stop: int) -> list[range]:
    """Return the chunks of a part of the dataset (ORDER-4)."""
    found: list[tuple[range, bool]] = []
    end = 0
    for length in case.lengths:
        begin, end = end, end + length
        part = range(max(begin, start), min(end, stop))
        if not part:
            continue
        k = 1 if case.chunksize is None else -(-len(part) // case.chunksize)
        for i in range(k):
            piece = part[len(part) * i // k : len(part) * (i + 1) // k]
            if k == 1 and case.chunksize and found and found[-1][1]:
                joined = range(found[-1][0].start, piece.stop)
                if len(joined) <= case.chunksize:
                    found[-1] = (joined, True)
                    continue
            found.append((piece, k == 1))
    return [chunk for chunk, _ in found]


def in_order(case: Case, run: int, start: int, stop: int) -> list[int]:
    """Return a part of the dataset in the order of one run (ORDER-5, ORDER-7)."""
    ascending = list(enumerate(chunks(case, start, stop)))
    if case.shuffle and (case.shufflefirst or case.epoch):
        places = permutation(len(ascending), case.seed, [case.epoch, 0, run, 0])
        ascending = [ascending[place] for place in places]
    indices = []
    for number, chunk in ascending:
        places = list(range(len(chunk)))
        if case.shuffle:
            places = permutation(len(chunk), case.seed, [case.epoch, 1, run, number])
        indices += [chunk[place] for place in places]
    return indices


def runs(case: Case) -> list[list[int]]:
    """Return all runs of an epoch (ORDER-1, ORDER-3)."""
    n, c = case.stop - case.start, case.num_runs
    bounds = [(n * run // c, n * (run + 1) // c) for run in range(c)]
    if case.redeal:
        whole = in_order(case, 0, case.start, case.stop)
        own = [whole[a:b] for a, b in bounds]
    else:
        own = [
            in_order(case, run, case.start + a, case.start + b) for run, (a, b) in enumerate(bounds)
        ]
    if case.ending == "uneven" or n == 0:
        return own
    if case.ending == "drop":
        return [run[: n // c] for run in own]
    length = -(-n // c)
    filled = [number for number in range(c) if own[number]]
    padded = []
    for number, run in enumerate(own):
        nearest = min(filled, key=lambda other: (abs(other - number), other < number))
        padded.append(run if len(run) == length else [*run, own[nearest][0]])
    return padded


def rank(case: Case, number: int, num_replicas: int) -> list[int]:
    """Return the indices of a rank (ORDER-2)."""
    width = case.num_runs // num_replicas
    mine = runs(case)[number * width : (number + 1) * width]
    longest = max(map(len, mine))
    return [run[turn] for turn in range(longest) for run in mine if turn < len(run)]


def golden() -> dict[str, Any]:
    """Return the vectors: permutations, ranks in full, and the digest of a long order."""
    keys = [(0, 0, []), (1, 0, [0]), (5, 0, [0, 0, 0, 0]), (10, 42, [1, 2, 3, 4])]
    keys += [(16, 2**52 + 1, [2**32 - 1, 1]), (17, 7, [0, 1, 0, 3]), (33, 1, [5, 0, 2, 0])]
    shards = [9, 3, 0, 4, 11, 2]
    small = [
        (Case(shards, 0, 29, 5), 1),
        (Case(shards, 0, 29, 5, epoch=1), 1),
        (Case(shards, 0, 29, 5, seed=1), 1),
        (Case(shards, 0, 29, None, epoch=2), 1),
        (Case(shards, 4, 25, 5, shuffle=False), 1),
        (Case(shards, 0, 29, 5, shufflefirst=False), 1),
        (Case(shards, 0, 29, 5, num_runs=2), 2),
        (Case(shards, 0, 29, 5, num_runs=3, ending="drop", epoch=4), 3),
        (Case(shards, 3, 28, 6, num_runs=4, ending="uneven", redeal=True), 4),
        (Case(shards, 0, 29, 4, num_runs=6, redeal=True, seed=2**52), 3),
        (Case(shards, 0, 29, 8, num_runs=4), 2),
        (Case(shards, 0, 29, 8, num_runs=4), 1),
        (Case([2, 1], 0, 3, 2000, num_runs=8), 4),
        (Case([0, 0], 0, 0, 5, num_runs=2), 2),
    ]
    long = (Case([1000 + i % 7 for i in range(300)], 0, 300_897, 2000, num_runs=4, epoch=3), 2)
    return {
        "permutations": [
            {"length": length, "seed": seed, "key": key, "order": permutation(length, seed, key)}
            for length, seed, key in keys
        ],
        "orders": [
            {
                **asdict(case),
                "num_replicas": count,
                "ranks": [rank(case, number, count) for number in range(count)],
            }
            for case, count in small
        ],
        "digests": [
            {
                **asdict(case),
                "num_replicas": count,
                "sha256": [digest(rank(case, number, count)) for number in range(count)],
            }
            for case, count in [long]
        ],
    }


def digest(indices: list[int]) -> str:
    """Return the SHA-256 of indices as little-endian 64-bit integers."""
    return hashlib.sha256(np.array(indices, "<i8").tobytes()).hexdigest()


if __name__ == "__main__":
    # One line per vector, so that a diff is readable.
    kinds = [
        f'"{kind}": [\n' + ",\n".join(json.dumps(vector) for vector in vectors) + "\n]"
        for kind, vectors in golden().items()
    ]
    sys.stdout.write("{\n" + ",\n".join(kinds) + "\n}\n")
