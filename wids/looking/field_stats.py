"""Indexes of shards → which fields samples have, and how large: without reading a sample.

This room knows indexes only; whoever asks decides which shards may be opened for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from wids.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.tars.index import ShardIndex

_TEXT_EXTENSIONS = ("txt", "text", "transcript", "cls", "json", "id", "index")
_MAX_PICTURE_NBYTES = 4_000_000
_MAX_TEXT_NBYTES = 16_000
_MAX_PICTURES, _MAX_TEXTS = 2, 3


@dataclass(frozen=True)
class FieldStats:
    """A field, in some shards.

    Attributes:
        field: Its name, with the leading dot.
        share: The part of the samples that have it, from 0 to 1.
        median_nbytes: Its typical length in bytes.
        max_nbytes: Its greatest length in bytes.
    """

    field: str
    share: float
    median_nbytes: int
    max_nbytes: int


def compute_field_stats(indexes: Iterable[ShardIndex]) -> list[FieldStats]:
    """Give the fields of some shards, the most frequent first."""
    sizes: dict[str, list[np.ndarray]] = {}
    num_samples = 0
    for index in indexes:
        num_samples += len(index)
        ids, lengths = np.asarray(index.field_ids), np.asarray(index.sizes)
        for number, field in enumerate(index.fields):
            sizes.setdefault(field, []).append(lengths[ids == number])
    found = []
    for field, parts in sizes.items():
        lengths = np.concatenate(parts)
        if len(lengths):
            share = len(lengths) / num_samples
            found.append(FieldStats(field, share, int(np.median(lengths)), int(lengths.max())))
    return sorted(found, key=lambda stats: -stats.share)


def preview_fields(stats: Iterable[FieldStats]) -> list[str]:
    """Choose fields that show what a sample is: small pictures and texts, the frequent first."""
    pictures: list[str] = []
    texts: list[str] = []
    for about in stats:
        if is_small(about.field, about.median_nbytes):
            is_picture = extension(about.field) in IMAGE_EXTENSIONS
            (pictures if is_picture else texts).append(about.field)
    return [*pictures[:_MAX_PICTURES], *texts[:_MAX_TEXTS]]


def is_small(field: str, nbytes: int) -> bool:
    """Tell whether a field of this length is read to show what a sample is."""
    kind = extension(field)
    if kind in IMAGE_EXTENSIONS:
        return nbytes <= _MAX_PICTURE_NBYTES
    return kind in _TEXT_EXTENSIONS and nbytes <= _MAX_TEXT_NBYTES


def field_sizes(index: ShardIndex, local_index: int) -> dict[str, int]:
    """Give the fields of one sample with their lengths in bytes."""
    start, stop = map(int, index.member_starts[local_index : local_index + 2])
    return {
        index.fields[index.field_ids[member]]: int(index.sizes[member])
        for member in range(start, stop)
    }


def samples_with_field(index: ShardIndex, field: str, start: int = 0) -> Iterator[int]:
    """Give the samples of a shard that have a field, from one on."""
    if field not in index.fields:
        return
    number = index.fields.index(field)
    at = np.flatnonzero(np.asarray(index.field_ids) == number)
    samples = np.searchsorted(np.asarray(index.member_starts), at, side="right") - 1
    yield from sorted(set(samples[samples >= start].tolist()))
