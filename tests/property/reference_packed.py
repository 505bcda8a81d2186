"""A second implementation of packed batches in specs/sampler-order.md, with plain lists.

Run as a program, it writes the golden vectors:

    python tests/property/reference_packed.py > specs/packed-batches.golden.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import reference_order
from reference_buckets import Batches, Epoch, dealt, in_any, rank, total
from reference_order import permutation


@dataclass(frozen=True)
class Job:
    """What packed batches depend on: the runs of an epoch, and the arguments of the sampler."""

    runs: list[list[int]]
    tokens: list[int]
    max_tokens: int
    max_items: int | None
    counts: list[int] | None
    limit: int
    window: int
    too_long: str
    drop_last: bool
    cost: str | list[int] | None
    shuffle: bool
    seed: int
    epoch: int

    def needs(self, index: int) -> tuple[int, int]:
        """Return the tokens and the other need of a sample; all if it exceeds one (ORDER-75)."""
        if self.exceeds(index):
            return self.max_tokens, self.limit
        return self.tokens[index], self.counts[index] if self.counts else 0

    def exceeds(self, index: int) -> bool:
        """Return whether a sample exceeds a budget by itself."""
        more = self.counts is not None and self.counts[index] > self.limit
        return more or self.tokens[index] > self.max_tokens


def best_fit(job: Job, run: list[int]) -> Batches:
    """Pack samples, and return the batches of their places (ORDER-71)."""

    def size(place: int) -> int:
        tokens, more = job.needs(run[place])
        return max(tokens * job.limit, more * job.max_tokens) if job.counts else tokens

    batches: Batches = []
    for place in sorted(range(len(run)), key=lambda place: (-size(place), place)):
        tokens, more = job.needs(run[place])
        fitting = []
        for number, batch in enumerate(batches):
            used = [job.needs(run[other]) for other in batch]
            left = job.max_tokens - sum(pair[0] for pair in used)
            has_room = sum(pair[1] for pair in used) + more <= job.limit or not job.counts
            if left and tokens <= left and has_room and len(batch) != job.max_items:
                fitting.append((left, number))
        if fitting:
            batches[min(fitting)[1]].append(place)
        else:
            batches.append([place])
    return sorted(sorted(batch) for batch in batches)


def first_window(job: Job, run: list[int]) -> tuple[int, Batches]:
    """Return the length of the first window of a run, and its batches (ORDER-70)."""
    most, length = job.window, 0
    sums = [0, 0]
    for index in run:
        sums = [a + b for a, b in zip(sums, job.needs(index), strict=True)]
        if sums[0] > most * 1023 * job.max_tokens // 1024:
            break
        if job.counts and sums[1] > most * 1023 * job.limit // 1024:
            break
        if job.max_items and length == most * job.max_items:
            break
        length += 1
    length = min(max(length, most), len(run))
    batches = best_fit(job, run[:length])
    while len(batches) > most:
        length = length * most // len(batches)
        batches = best_fit(job, run[:length])
    while length < len(run) and len(batches) < most:
        longest = [len(batch) for batch in batches].index(max(map(len, batches)))
        batch = batches[longest]
        half = (len(batch) + 1) // 2
        batches[longest] = batch[:half]
        batches.append(batch[half:])
    return length, sorted(batches)


def windows(job: Job, run: list[int]) -> list[Batches]:
    """Return the batches of the windows of a run, before they are shuffled."""
    left = [index for index in run if job.too_long != "skip" or not job.exceeds(index)]
    found = []
    while left:
        length, places = first_window(job, left)
        batches = [[left[place] for place in batch] for batch in places]
        if job.cost is not None:
            batches.sort(key=lambda batch: -cost(job, batch))
        found.append(batches)
        left = left[length:]
    return found


def cost(job: Job, batch: list[int]) -> int:
    """Return the cost of a batch (ORDER-74)."""
    if isinstance(job.cost, list):
        return sum(job.cost[index] for index in batch)
    return sum(job.tokens[index] ** (2 if job.cost == "squares" else 1) for index in batch)


def shuffled(job: Job, of_runs: list[list[Batches]], run: int, number: int) -> Batches:
    """Return the batches of a window in their final order (ORDER-72, ORDER-74)."""
    batches = of_runs[run][number]
    if not job.shuffle:
        return batches
    common = 0
    if job.cost is not None:
        common = len(batches)
        if number >= len(of_runs[run]) - 2:
            ends = [total(found) for found in of_runs]
            common = max(min(common, *(end - number * job.window for end in ends)), 0)
    order = permutation(common, job.seed, [job.epoch, 2, 0, number])
    rest = permutation(len(batches) - common, job.seed, [job.epoch, 2, run, number])
    return [batches[at] for at in [*order, *(common + at for at in rest)]]


def own_batches(job: Job) -> list[Batches]:
    """Return the batches that each run has by itself."""
    of_runs = [windows(job, run) for run in job.runs]
    return [
        [batch for number in range(len(of_run)) for batch in shuffled(job, of_runs, run, number)]
        for run, of_run in enumerate(of_runs)
    ]


def cut_runs(case: reference_order.Case, job: Job) -> list[list[int]]:
    """Return the runs of an epoch for packed batches, which end by tokens (ORDER-81)."""
    case = replace(case, ending="uneven")
    if case.redeal:
        return reference_order.runs(case)
    left_out = [job.too_long == "skip" and job.exceeds(index) for index in range(len(job.tokens))]
    tokens = [
        0 if left_out[index] else min(job.tokens[index], job.max_tokens)
        for index in range(case.start, case.stop)
    ]
    c, total_tokens = case.num_runs, sum(tokens)
    edges = [0]
    for run in range(1, c):
        x = edges[-1]
        while sum(tokens[:x]) * c < total_tokens * run:
            x += 1
        edges.append(x)
    edges.append(len(tokens))
    return [
        reference_order.in_order(case, run, case.start + edges[run], case.start + edges[run + 1])
        for run in range(c)
    ]


def epoch(job: Job) -> Epoch:
    """Return the batches of all runs, which end together (ORDER-73)."""
    own = own_batches(job)
    return replace(made := dealt(own, job.drop_last), num_left_out=total(job.runs) - in_any(made))


def golden() -> dict[str, Any]:
    """Return the vectors: batches of all ranks, in small epochs."""
    lengths, seed = [19, 13, 0, 14, 31, 12], 3
    count = sum(lengths)
    tokens = [(37 * i * i + i // 3) % 41 + 1 for i in range(count)]
    images = [i * i % 5 for i in range(count)]
    cases: list[tuple[int, int, int, dict[str, Any]]] = [
        (1, 1, 0, {}),
        (1, 1, 1, {"shuffle": False}),
        (2, 2, 1, {}),
        (4, 2, 0, {"drop_last": True}),
        (3, 3, 2, {"counts": images, "limit": 6, "window": 4}),
        (2, 1, 0, {"max_items": 3, "window": 5}),
        (3, 3, 0, {"cost": "squares", "window": 4}),
        (3, 1, 5, {"cost": images, "drop_last": True, "window": 3}),
        (2, 2, 0, {"max_tokens": 38, "too_long": "skip", "window": 7}),
        (2, 2, 0, {"max_tokens": 38, "too_long": "alone", "window": 7, "cost": "sum"}),
    ]
    vectors = []
    for c, num_replicas, number, others in cases:
        order = reference_order.Case(
            lengths, 0, count, 5, num_runs=c, ending="uneven", seed=seed, epoch=number
        )
        order = replace(order, shuffle=others.get("shuffle", True))
        arguments: dict[str, Any] = {
            "max_tokens": 60,
            "max_items": None,
            "counts": None,
            "limit": 1,
            "window": 8,
            "too_long": "error",
            "drop_last": False,
            "cost": None,
            **{name: value for name, value in others.items() if name != "shuffle"},
        }
        shared = {"shuffle": order.shuffle, "seed": seed, "epoch": number}
        job = Job([], tokens, **arguments, **shared)
        made = epoch(replace(job, runs=cut_runs(order, job)))
        vectors.append(
            {
                "order": asdict(order),
                "tokens": tokens,
                **arguments,
                "num_replicas": num_replicas,
                "ranks": [rank(made, number, num_replicas) for number in range(num_replicas)],
                "num_repeated": made.num_repeated,
                "num_left_out": made.num_left_out,
            }
        )
    return {"epochs": vectors}


if __name__ == "__main__":
    # One line per vector, so that a diff is readable.
    lines = ",\n".join(json.dumps(vector) for vector in golden()["epochs"])
    sys.stdout.write('{\n"epochs": [\n' + lines + "\n]\n}\n")
