"""Batches of boxes: rows and offsets in two tensors for each field, beside lists of tensors.

    python benchmarks/ragged.py [--rounds 7] [--batches 40]

A sample has five fields of 0 to 12 rows, as targets of detectors have: boxes, labels, points,
scores and masks of 28 by 28 pixels. Two workers send batches of 64 to a loop that reads one number
of each field. Both kinds take turns in this process. A ratio is the time of lists by that of
`wids.collate(ragged=…)`: the median of all turns, with the least and the most.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

import wids

SHAPES = {"boxes": (4,), "labels": (), "points": (17, 3), "scores": (), "masks": (28, 28)}
Collate = Callable[[list[Any]], Any]


class Targets:
    """Samples whose fields are made when they are asked for."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        count = index * 7919 % 13
        return {name: torch.ones(count, *shape) for name, shape in SHAPES.items()}


def lists(samples: list[dict[str, torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
    """Return what loops get today: a list of tensors for each field."""
    return {name: [sample[name] for sample in samples] for name in SHAPES}


def epoch_s(collate: Collate, num_batches: int) -> float:
    """Return the seconds from the second batch to the last."""
    loader = DataLoader(
        Targets(64 * num_batches),  # type: ignore[arg-type]
        64,
        num_workers=2,
        collate_fn=collate,
    )
    batches = iter(loader)
    next(batches)
    started_s = time.perf_counter()
    for batch in batches:
        for rows in batch.values():
            (rows["values"] if isinstance(rows, dict) else rows[1]).sum()
    return time.perf_counter() - started_s


def main(arguments: list[str] | None = None) -> float:
    """Measure, print, and return the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    ragged = partial(wids.collate, ragged=[*SHAPES])
    turns = [
        [epoch_s(collate, options.batches) for collate in (lists, ragged)]
        for _ in range(options.rounds)
    ]
    ratios = sorted(by_lists / by_ragged for by_lists, by_ragged in turns)
    batch_ms = [
        1e3 * statistics.median(seconds) / (options.batches - 1)
        for seconds in zip(*turns, strict=True)
    ]
    print(f"lists of tensors {batch_ms[0]:.1f} ms a batch, ragged {batch_ms[1]:.1f} ms")
    print(f"{statistics.median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return statistics.median(ratios)


if __name__ == "__main__":
    main()
