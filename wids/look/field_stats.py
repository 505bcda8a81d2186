"""Compute from indexes which fields the samples have, and how large the fields are.

No sample is read. The caller decides which shards to open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from wids.shards.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.shards.tars.index import ShardIndex

CAPTION_EXTENSIONS: Final = ("txt", "text", "transcript")
_TEXT_EXTENSIONS: Final = (*CAPTION_EXTENSIONS, "cls", "json", "id", "index")
_MAX_PICTURE_NBYTES: Final = 4_000_000
MAX_TEXT_NBYTES: Final = 16_000
"""Longer texts are neither shown on cards nor searched."""
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
        num_samples += np.count_nonzero(np.diff(index.member_starts))  # others were not read
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


def card_fields(sizes: Mapping[str, int], order: Sequence[str], picture: str = "") -> list[str]:
    """Choose fields that show what a sample is: one picture and a few texts, all of them small.

    Args:
        sizes: The lengths of the fields of the sample.
        order: All fields of the dataset, those to prefer first.
        picture: The picture to prefer to all others, if the sample has it.
    """
    small = [field for field, nbytes in sizes.items() if is_small(field, nbytes)]
    small = preferred(small, order, picture)
    pictures = [field for field in small if extension(field) in IMAGE_EXTENSIONS]
    texts = [field for field in small if field not in pictures]
    return [*pictures[:1], *texts[:_MAX_TEXTS]]


def preferred(fields: Iterable[str], order: Sequence[str], picture: str) -> list[str]:
    """Return fields in an order: first a picture, and last those that are not in the order."""
    ranks = {field: rank for rank, field in enumerate(order)}
    return sorted(fields, key=lambda field: (field != picture, ranks.get(field, len(ranks))))


def is_small(field: str, nbytes: int) -> bool:
    """Return whether a field of this length is small enough to be read for a preview."""
    kind = extension(field)
    if kind in IMAGE_EXTENSIONS:
        return nbytes <= _MAX_PICTURE_NBYTES
    return kind in _TEXT_EXTENSIONS and nbytes <= MAX_TEXT_NBYTES


def is_text(field: str) -> bool:
    """Return whether a field has text for people: a caption, a class, JSON."""
    return extension(field) in _TEXT_EXTENSIONS


def field_sizes(index: ShardIndex, local_index: int) -> dict[str, int]:
    """Return the fields of one sample with their lengths in bytes."""
    members = index.members(local_index)
    return {field: int(index.sizes[member]) for field, member in members.items()}
