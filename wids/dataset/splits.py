"""Compute which samples belong to each part of a dataset, from fractions or counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from wids.order.arguments import at_least
from wids.order.epoch_order import permutation, sorting_words
from wids.shards.positions import PositionArray
from wids.storage.arrays import IntArray, WordArray, check_labels

By = Literal["sample", "shard"]

_SPLIT: Final = 0x5917
"""Keeps the draws of a split apart from those of samplers with the same seed."""
_BLOCK_LENGTH: Final = 1 << 20


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
        TypeError: A Series of labels may be in another order.
    """
    at_least(0, seed, "seed")
    if not isinstance(by, str):
        return _by_label(by, sum(lengths), parts, seed)
    if by not in get_args(By):
        raise ValueError(
            f'by: expected "sample", "shard" or a label for each sample, found {by!r}; the labels '
            f"in a field are dataset.table([{by!r}])[{by!r}].to_numpy()"
        )
    counts = part_counts(parts, sum(lengths))
    if by == "shard":
        return _by_shard(np.asarray(lengths, np.int64), counts, seed)
    return _by_sample(counts, seed)


def _by_label(
    labels: Sequence[Any] | npt.NDArray[Any], total: int, parts: Sequence[float], seed: int
) -> list[IntArray]:
    """Return the indices of parts that have the same shares of each label."""
    label_of = np.asarray(labels)
    if label_of.dtype == object and any(label is None for label in label_of.ravel().tolist()):
        raise ValueError("by: expected a label for each sample, found None; fill in missing labels")
    if label_of.shape != (total,):
        raise ValueError(
            f"by: expected {total:,} labels, one for each sample, found shape {label_of.shape}"
        )
    check_labels(labels, "by")
    order = permutation(total, seed, _SPLIT)
    # By label, and within each label in the drawn order.
    order = order[np.argsort(np.unique(label_of, return_inverse=True)[1][order], kind="stable")]
    counts = part_counts(parts, total)
    # Evenly spaced places for each part, so that a stretch of one label has each part's share; each
    # part begins at another one, or parts of equal sizes would stand together.
    starts = (np.arange(len(counts)) + 0.5) / len(counts)
    places = np.concatenate(
        [
            (np.arange(count) + start) / max(count, 1)
            for count, start in zip(counts, starts, strict=True)
        ]
    )
    owners = np.repeat(np.arange(len(counts)), counts)[np.argsort(places, kind="stable")]
    return [np.sort(order[owners == part]) for part in range(len(counts))]


def part_counts(parts: Sequence[float], total: int) -> list[int]:
    """Return the number of samples of each part.

    Raises:
        ValueError: The parts are neither fractions that add up to 1, nor counts that add up to
            ``total``.
    """
    shares: list[Any] = list(parts) if isinstance(parts, Iterable) else []
    is_number = [
        isinstance(part, int | float | np.number) and not isinstance(part, bool) and part >= 0
        for part in shares
    ]
    if not shares or not all(is_number):
        raise ValueError(f"parts: expected fractions or counts, found {parts!r:.80}")
    if all(isinstance(part, int | np.integer) for part in shares) and sum(shares) == total:
        return [int(part) for part in shares]
    if not math.isclose(math.fsum(shares), 1, abs_tol=1e-6):
        raise ValueError(
            f"parts: expected fractions that add up to 1, or counts that add up to the {total} "
            f"samples, found {parts!r:.80}, which add up to {math.fsum(shares):g}"
        )
    # Rounded sums and not rounded parts: these would not add up.
    edges = [round(math.fsum(shares[:stop]) * total) for stop in range(len(shares))] + [total]
    return [stop - start for start, stop in pairwise(edges)]


def _by_sample(counts: list[int], seed: int) -> list[IntArray]:
    """Return the indices of parts of the permutation of the samplers, without the permutation.

    A part has the indices whose words lie between two words of known rank (ORDER-6). Words are
    computed again instead of kept: some nanoseconds each.
    """
    total = sum(counts)
    edges = np.cumsum(counts)[:-1]
    bounds = _words_of_ranks(total, edges[edges < total], seed)
    # Filled below, so that nothing of their size is there twice.
    members: list[IntArray] = [np.empty(count, np.int64) for count in counts]
    filled = [0] * len(counts)
    for start, words in _blocks_of_words(total, seed):
        parts = np.searchsorted(bounds, words, side="right")
        for number, array in enumerate(members):
            piece = np.flatnonzero(parts == number) + start
            array[filled[number] : filled[number] + len(piece)] = piece
            filled[number] += len(piece)
    return [_own(array) for array in members]


def _words_of_ranks(total: int, ranks: IntArray, seed: int) -> WordArray:
    """Return the words at some ranks among the sorted words of all samples."""
    words = np.empty(total, np.uint64)
    for start, block in _blocks_of_words(total, seed):
        words[start : start + len(block)] = block
    words.partition(ranks)
    return words[ranks]


def _blocks_of_words(total: int, seed: int) -> Iterator[tuple[int, WordArray]]:
    blocks = sorting_words(total, _BLOCK_LENGTH, seed, _SPLIT)
    return ((number * _BLOCK_LENGTH, words) for number, words in enumerate(blocks))


def _by_shard(lengths: IntArray, counts: list[int], seed: int) -> list[IntArray]:
    """Return the indices of parts of whole shards."""
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
    part_of_shard = np.empty(len(lengths), np.int64)
    for part, numbers in enumerate(chosen):
        part_of_shard[numbers] = part
    return [
        _own(np.flatnonzero(np.repeat(part_of_shard == part, lengths)))
        for part in range(len(counts))
    ]


def _own(array: IntArray) -> IntArray:
    array.flags.writeable = False  # so that views of the dataset share it
    return array.view(PositionArray)
