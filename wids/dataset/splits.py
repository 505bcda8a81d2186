"""Compute which samples belong to each part of a dataset, from fractions or counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from wids.order.arguments import at_least
from wids.order.chunks import permutation
from wids.storage.array_types import IntArray

By = Literal["sample", "shard"]

_SPLIT: Final = 0x5917
"""Keeps the draws of a split apart from those of samplers with the same seed."""


def split_indices(
    lengths: Sequence[int],
    parts: Sequence[float],
    seed: int,
    by: By | Sequence[Any] | npt.NDArray[Any],
) -> list[IntArray]:
    """Return the ascending indices of each part; together, each index once.

    Args:
        lengths: Number of samples in each shard, shape ``(num_shards,)``.
        parts: The share of each part, as fractions that add up to 1, or as counts of samples that
            add up to their number.
        seed: Different seeds give unrelated splits.
        by: ``"sample"`` draws samples; ``"shard"`` draws whole shards, so that counts are met as
            nearly as shards allow. A label for each sample draws from each label alone, so that all
            parts have the same shares of the labels, up to rounding.

    Raises:
        ValueError: The parts do not add up, or an argument is invalid.
    """
    at_least(0, seed, "seed")
    if not isinstance(by, str):
        return _by_label(by, sum(lengths), parts, seed)
    if by not in get_args(By):
        raise ValueError(f'by: expected "sample", "shard" or labels, found {by!r}')
    counts = part_counts(parts, sum(lengths))
    if by == "shard":
        return _by_shard(np.asarray(lengths, np.int64), counts, seed)
    # The permutation of the samplers, which no version of numpy changes.
    order = permutation(sum(lengths), seed, _SPLIT)
    edges = np.cumsum(counts)[:-1]
    return [np.sort(part) for part in np.split(order, edges)]


def _by_label(
    labels: Sequence[Any] | npt.NDArray[Any], total: int, parts: Sequence[float], seed: int
) -> list[IntArray]:
    """Return the indices of parts that have the same shares of each label."""
    found = np.asarray(labels)
    if found.shape != (total,):
        raise ValueError(
            f"by: expected {total:,} labels, one for each sample, found shape {found.shape}"
        )
    order = permutation(total, seed, _SPLIT)
    # By label, and within each label in the drawn order.
    order = order[np.argsort(np.unique(found, return_inverse=True)[1][order], kind="stable")]
    counts = part_counts(parts, total)
    # Evenly spaced places for each part, so that a stretch of one label has each part's share.
    places = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in counts])
    owners = np.repeat(np.arange(len(counts)), counts)[np.argsort(places, kind="stable")]
    return [np.sort(order[owners == part]) for part in range(len(counts))]


def part_counts(parts: Sequence[float], total: int) -> list[int]:
    """Return the number of samples of each part.

    Raises:
        ValueError: The parts are neither fractions that add up to 1, nor counts that add up to
            ``total``.
    """
    given: list[Any] = list(parts) if isinstance(parts, Iterable) else []
    is_number = [
        isinstance(part, int | float | np.number) and not isinstance(part, bool) and part >= 0
        for part in given
    ]
    if not given or not all(is_number):
        raise ValueError(f"parts: expected fractions or counts, found {parts!r:.80}")
    if all(isinstance(part, int | np.integer) for part in given) and sum(given) == total:
        return [int(part) for part in given]
    if not math.isclose(math.fsum(given), 1, abs_tol=1e-6):
        raise ValueError(
            f"parts: expected fractions that add up to 1, or counts that add up to the {total} "
            f"samples, found {parts!r:.80}, which add up to {math.fsum(given):g}"
        )
    # Rounded sums and not rounded parts: these would not add up.
    edges = [round(math.fsum(given[:stop]) * total) for stop in range(len(given))] + [total]
    return [stop - start for start, stop in pairwise(edges)]


def _by_shard(lengths: IntArray, counts: list[int], seed: int) -> list[IntArray]:
    """Return the indices of parts of whole shards."""
    starts = np.cumsum(lengths) - lengths
    missing = np.asarray(counts, np.float64)
    chosen: list[list[int]] = [[] for _ in counts]
    for number in permutation(len(lengths), seed, _SPLIT).tolist():
        # The part that lacks most of its share, so that all of them grow at the same rate.
        part = int(np.argmax(missing / np.maximum(counts, 1)))
        chosen[part].append(number)
        missing[part] -= lengths[number]
    empty = [count for count, numbers in zip(counts, chosen, strict=True) if count and not numbers]
    if empty:
        raise ValueError(
            f'by="shard": expected at least a shard for each part, found {len(lengths)} shards for '
            f'{len(counts)} parts; use by="sample", or sort the indices of the view'
        )
    return [
        np.concatenate(
            [np.empty(0, np.int64)]
            + [np.arange(starts[n], starts[n] + lengths[n]) for n in sorted(numbers)]
        )
        for numbers in chosen
    ]
