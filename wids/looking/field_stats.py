"""Indexes of shards → which fields the samples have, and how large the fields are.

No sample is read. This module knows nothing but indexes; the caller decides which shards to open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from wids.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.tars.index import ShardIndex

_TEXT_EXTENSIONS: Final = ("txt", "text", "transcript", "cls", "json", "id", "index")
_MAX_PICTURE_NBYTES: Final = 4_000_000
_MAX_TEXT_NBYTES: Final = 16_000
_MAX_PICTURES: Final = 2
_MAX_TEXTS: Final = 3


@dataclass(frozen=True)
class FieldStats:
    """How frequent and how large one field is in some shards.

    Attributes:
        field: The name of the field, with the leading dot.
        share: The share of samples that have the field, from 0 to 1.
        median_nbytes: The median length in bytes.
        max_nbytes: The greatest length in bytes.
    """

    field: str
    share: float
    median_nbytes: int
    max_nbytes: int


def compute_field_stats(indexes: Iterable[ShardIndex]) -> list[FieldStats]:
    """Return the fields of some shards, most frequent first."""
    sizes: dict[str, list[np.ndarray]] = {}
    num_samples = 0
    for index in indexes:
        num_samples += len(index)
        field_ids, lengths = np.asarray(index.field_ids), np.asarray(index.sizes)
        for field_id, field in enumerate(index.fields):
            sizes.setdefault(field, []).append(lengths[field_ids == field_id])
    stats = []
    for field, parts in sizes.items():
        lengths = np.concatenate(parts)
        if len(lengths):
            share = len(lengths) / num_samples
            stats.append(FieldStats(field, share, int(np.median(lengths)), int(lengths.max())))
    return sorted(stats, key=lambda field_stats: -field_stats.share)


def preview_fields(stats: Iterable[FieldStats]) -> list[str]:
    """Choose fields that show what a sample is: small pictures and texts, frequent ones first."""
    pictures: list[str] = []
    texts: list[str] = []
    for field_stats in stats:
        # The median and not the maximum: one large picture should not hide the field everywhere.
        # Each sample's own size is checked again before it is read.
        if is_small(field_stats.field, field_stats.median_nbytes):
            is_picture = extension(field_stats.field) in IMAGE_EXTENSIONS
            (pictures if is_picture else texts).append(field_stats.field)
    return [*pictures[:_MAX_PICTURES], *texts[:_MAX_TEXTS]]


def is_small(field: str, nbytes: int) -> bool:
    """Return whether a field of this length is small enough to be read for a preview."""
    kind = extension(field)
    if kind in IMAGE_EXTENSIONS:
        return nbytes <= _MAX_PICTURE_NBYTES
    return kind in _TEXT_EXTENSIONS and nbytes <= _MAX_TEXT_NBYTES


def field_sizes(index: ShardIndex, local_index: int) -> dict[str, int]:
    """Return the fields of one sample with their lengths in bytes."""
    start, stop = map(int, index.member_starts[local_index : local_index + 2])
    return {
        index.fields[index.field_ids[member]]: int(index.sizes[member])
        for member in range(start, stop)
    }


def samples_with_field(index: ShardIndex, field: str, start: int = 0) -> Iterator[int]:
    """Yield the samples of a shard that have a field, beginning at sample `start`."""
    if field not in index.fields:
        return
    field_id = index.fields.index(field)
    members = np.flatnonzero(np.asarray(index.field_ids) == field_id)
    samples = np.searchsorted(np.asarray(index.member_starts), members, side="right") - 1
    # A set, because an archive may hold the same field of a sample more than once.
    yield from sorted(set(samples[samples >= start].tolist()))
