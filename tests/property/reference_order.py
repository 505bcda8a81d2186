"""A second implementation of specs/sampler-order.md, with plain lists and no cleverness.

Run as a program, it writes the golden vectors:

    python tests/property/reference_order.py > specs/sampler-order.golden.json

It shares nothing with the library except numpy's two generators.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil, floor
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


def own_runs(case: Case) -> list[list[int]]:
    """Return the indices of all runs of an epoch, before they end alike (ORDER-1)."""
    n, c = case.stop - case.start, case.num_runs
    bounds = [(n * run // c, n * (run + 1) // c) for run in range(c)]
    if case.redeal:
        whole = in_order(case, 0, case.start, case.stop)
        return [whole[a:b] for a, b in bounds]
    return [
        in_order(case, run, case.start + a, case.start + b) for run, (a, b) in enumerate(bounds)
    ]


def ended(own: list[list[int]], ending: str) -> list[list[int]]:
    """Return runs that end in one of three ways (ORDER-3)."""
    c, n = len(own), sum(map(len, own))
    if ending == "uneven" or n == 0:
        return own
    if ending == "drop":
        return [run[: n // c] for run in own]
    length = -(-n // c)
    filled = [number for number in range(c) if own[number]]
    padded = []
    for number, run in enumerate(own):
        nearest = min(filled, key=lambda other: (abs(other - number), other < number))
        padded.append(run if len(run) == length else [*run, own[nearest][0]])
    return padded


def runs(case: Case) -> list[list[int]]:
    """Return all runs of an epoch (ORDER-1, ORDER-3)."""
    return ended(own_runs(case), case.ending)


def of_rank(all_runs: list[list[int]], number: int, num_replicas: int) -> list[tuple[int, int]]:
    """Return what a rank has (ORDER-2): the run, and the place in it, of each index."""
    width = len(all_runs) // num_replicas
    mine = range(number * width, (number + 1) * width)
    longest = max(len(all_runs[run]) for run in mine)
    return [(run, turn) for turn in range(longest) for run in mine if turn < len(all_runs[run])]


def rest(case: Case, history: list[tuple[int, int, int]], num_runs: int) -> list[list[int]]:
    """Return the runs of what is left after parts: ranks, steps and runs of each (ORDER-50)."""
    own = own_runs(replace(case, num_runs=history[0][2]))
    for at, (num_replicas, steps, _) in enumerate(history):
        whole = ended(own, case.ending)
        read = {
            place
            for number in range(num_replicas)
            for place in of_rank(whole, number, num_replicas)[:steps]
        }
        left = [
            index
            for run, indices in enumerate(own)
            for turn, index in enumerate(indices)
            if (run, turn) not in read
        ]
        c = history[at + 1][2] if at + 1 < len(history) else num_runs
        own = [left[len(left) * run // c : len(left) * (run + 1) // c] for run in range(c)]
    return ended(own, case.ending)


def rank(case: Case, number: int, num_replicas: int) -> list[int]:
    """Return the indices of a rank (ORDER-2)."""
    whole = runs(case)
    return [whole[run][turn] for run, turn in of_rank(whole, number, num_replicas)]


@dataclass(frozen=True)
class Mix:
    """What a mixed order depends on; ``ranges`` has ``[start, stop]`` pairs for each source.

    ``weights`` may have ``[samples, weights]`` pairs; then all sources have a weight in some pair,
    and are in the order in which they come into the mix.
    """

    ranges: list[list[list[int]]]
    weights: Any
    num_samples: int
    chunksize: int
    shuffle: bool = True
    num_runs: int = 1
    seed: int = 0
    epoch: int = 0


def pattern(weights: list[int], length: int) -> list[int]:
    """Return the sources of the first draws (ORDER-21), with fractions and no table."""
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    if len(shares) == 1:
        return [0] * length
    d = 2 * len(shares) - 2
    counts, drawn = [0] * len(shares), []
    for t in range(length):
        allowed = [
            (floor((count + 1 - Fraction(1, d)) / share), source)
            for source, (count, share) in enumerate(zip(counts, shares, strict=True))
            if t >= ceil((count + Fraction(1, d)) / share) - 1
        ]
        source = min(allowed)[1]
        counts[source] += 1
        drawn.append(source)
    return drawn


@cache
def possible_starts(weights: tuple[int, ...]) -> list[int]:
    """Return the draws of the period at which a run may start (ORDER-22)."""
    period = sum(weights)
    drawn = pattern(list(weights), period)
    deviations = [
        [Fraction(drawn[:t].count(source)) - Fraction(t * weight, period) for t in range(period)]
        for source, weight in enumerate(weights)
    ]
    return [
        start
        for start in range(period)
        if all(abs(later - line[start]) < 1 for line in deviations for later in line)
    ]


def run_start(weights: list[int], run: int, num_runs: int) -> int:
    """Return the draw of the period at which a run starts (ORDER-22)."""
    wanted = sum(weights) * run // num_runs
    return min((start for start in possible_starts(tuple(weights)) if start >= wanted), default=0)


def phases(weights: Any) -> list[tuple[int, list[int]]]:
    """Return the phases of a schedule (ORDER-29)."""
    return weights if isinstance(weights[0], list | tuple) else [(0, weights)]


def turns(mix: Mix, run: int, count: int) -> list[int]:
    """Return the sources of the first draws of a run (ORDER-22, ORDER-29)."""
    found: list[int] = []
    for start, weights in phases(mix.weights):
        found = found[: ceil(Fraction(start, mix.num_runs))]
        there = [source for source, weight in enumerate(weights) if weight]
        shares = [weights[source] for source in there]
        first = run_start(shares, run, mix.num_runs)
        drawn = pattern(shares, first + count - len(found))[first:]
        found += [there[number] for number in drawn]
    return found


def source_draws(mix: Mix, source: int, run: int, count: int) -> list[int]:
    """Return the first draws of a run from a source (ORDER-24, ORDER-25)."""
    ranges = mix.ranges[source]
    indices = [index for start, stop in ranges for index in range(start, stop)]
    n, c = len(indices), mix.num_runs
    found: list[int] = []
    p = 0
    while len(found) < count:
        shares = [((p + 1) * n + r) // c - (p * n + r) // c for r in range(c)]
        start = sum(shares[:run])
        lengths = [stop - start for start, stop in ranges]
        case = Case(lengths, 0, n, mix.chunksize, mix.shuffle, seed=mix.seed, epoch=p)
        order = in_order(case, source * c + run, start, start + shares[run])
        found += [indices[place] for place in order]
        p += 1
    return found[:count]


def mixed_run(mix: Mix, run: int) -> list[int]:
    """Return a run of a mixed epoch (ORDER-20 to ORDER-23, ORDER-29)."""
    length = -(-mix.num_samples // mix.num_runs)
    first, last = mix.epoch * length, (mix.epoch + 1) * length
    drawn = turns(mix, run, last)
    streams = [
        iter(source_draws(mix, source, run, drawn.count(source)))
        for source in range(len(mix.ranges))
    ]
    return [next(streams[source]) for source in drawn][first:]


def mixed_rank(mix: Mix, number: int, num_replicas: int) -> list[int]:
    """Return the indices of a rank of a mixed epoch (ORDER-2)."""
    width = mix.num_runs // num_replicas
    mine = [mixed_run(mix, run) for run in range(number * width, (number + 1) * width)]
    return [index for round_ in zip(*mine, strict=True) for index in round_]


def golden() -> dict[str, Any]:
    """Return the vectors: permutations, ranks in full, and the digests of long orders."""
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
    patterns = [[1], [1, 1], [7, 3], [7, 2, 1], [1, 1, 1, 1, 1], [8, 1, 1, 1, 1], [5, 3, 3, 2]]
    apart = [[[0, 4], [9, 9], [12, 21]], [[4, 9], [9, 12]]]
    mixes = [
        (Mix([[[0, 6]]], [1], 6, 4), 1),
        (Mix(apart, [3, 1], 21, 5), 1),
        (Mix(apart, [3, 1], 21, 5, epoch=1), 1),
        (Mix(apart, [3, 1], 21, 5, epoch=2, seed=2**52), 1),
        (Mix(apart, [1, 4], 21, 5, shuffle=False), 1),
        (Mix(apart, [2, 5], 50, 3, num_runs=2, epoch=1), 2),
        (Mix([[[0, 7]], [[7, 9]], [[9, 20]]], [7, 2, 1], 20, 4, num_runs=3), 3),
        (Mix([[[0, 7]], [[7, 9]], [[9, 20]]], [3, 3, 1], 31, 4, num_runs=4, epoch=3), 2),
        (Mix([[[0, 7]], [[7, 9]], [[9, 20]]], [3, 3, 1], 31, 4, num_runs=4, epoch=3), 1),
        (Mix([[[0, 2]], [[2, 3]]], [1, 1], 8, 2000, num_runs=8, epoch=5), 4),
    ]
    ranges = [[[s * 100, s * 100 + 90 + s % 7] for s in range(k, 60, 3)] for k in range(3)]
    three = [[[0, 7]], [[7, 9]], [[9, 20]]]
    changing = [[0, [3, 1, 0]], [9, [0, 2, 1]], [30, [1, 1, 1]]]
    schedules = [
        *((Mix(three, changing, 20, 4, epoch=epoch), 1) for epoch in range(3)),
        (Mix(apart, [[0, [3, 1]], [21, [1, 4]]], 21, 5, epoch=1), 1),
        (Mix(three, changing, 31, 4, num_runs=4, seed=5), 2),
        (Mix(three, changing, 31, 4, num_runs=4, seed=5, epoch=1), 4),
        (Mix(three, [[0, [1, 0, 0]], [1, [0, 1, 0]], [2, [5, 2, 3]]], 9, 4, num_runs=3), 3),
    ]
    long_mix = (Mix(ranges, [13, 6, 1], 6000, 200, num_runs=4, epoch=2), 2)
    return {
        "patterns": [
            {
                "weights": weights,
                "pattern": pattern(weights, 2 * sum(weights)),
                "starts": possible_starts(tuple(weights)),
            }
            for weights in patterns
        ],
        "mixes": [
            {
                **asdict(mix),
                "num_replicas": count,
                "ranks": [mixed_rank(mix, number, count) for number in range(count)],
            }
            for mix, count in mixes
        ],
        "schedules": [
            {
                **asdict(mix),
                "num_replicas": count,
                "ranks": [mixed_rank(mix, number, count) for number in range(count)],
            }
            for mix, count in schedules
        ],
        "mix_digests": [
            {
                **asdict(mix),
                "num_replicas": count,
                "sha256": [digest(mixed_rank(mix, number, count)) for number in range(count)],
            }
            for mix, count in [long_mix]
        ],
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
