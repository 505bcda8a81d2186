"""Remark on fields that only some samples have, and on mixed formats.

Reads the indexes one after another, and keeps a few numbers for each field. The contents of members
do not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

import numpy as np

from wids.publish.problems import Problem
from wids.shards.fields.codecs import IMAGE_EXTENSIONS
from wids.shards.fields.media import MEDIA_TYPES
from wids.shards.indexes.pack import LocalPack
from wids.shards.specs.model import ShardSpec
from wids.shards.tars.index import ShardIndex
from wids.storage.sizes import count_text, percent_text

_MAX_FIELDS: Final = 1000
"""Fields of a dataset that are counted; with more, keys have usually been split at a wrong dot."""
_MAX_NAMED: Final = 10
_MAX_ALTERNATIVES: Final = 32
"""Fields of one role that are compared with one another."""

Role = tuple[str, str]
"""What precedes the extension, and the kind of the extension."""


def field_remarks(pack: LocalPack, shards: Sequence[ShardSpec], name: str = "") -> list[Problem]:
    """Return remarks on the fields of each dataset.

    Args:
        pack: The indexes of the shards.
        shards: The shards that were packed, in order.
        name: Name of the dataset of shards without one.
    """
    fields: dict[str, _Fields] = {}
    for number, shard in enumerate(shards):
        found = pack.index(number, pack.tar_nbytes(number), shard.key_split or "first")
        if found is not None:
            fields.setdefault(shard.dataset or name, _Fields()).add(found)
        pack.release()
    return [
        Problem(dataset, text, "remark")
        for dataset, counted in fields.items()
        for text in counted.texts()
    ]


class _Fields:
    """Counts of the fields of one dataset."""

    def __init__(self) -> None:
        self._num_samples = 0
        self._counts: Counter[str] = Counter()
        self._together: set[frozenset[str]] = set()
        self._has_more = False

    def add(self, shard_index: ShardIndex) -> None:
        """Count the fields of a shard."""
        self._num_samples += len(shard_index)
        fields = shard_index.fields
        counts = np.bincount(shard_index.field_ids, minlength=len(fields)).tolist()
        roles: dict[Role, list[int]] = {}
        for number, (field, count) in enumerate(zip(fields, counts, strict=True)):
            if field not in self._counts and len(self._counts) >= _MAX_FIELDS:
                self._has_more = True
                return
            self._counts[field] += count
            roles.setdefault(_role(field), []).append(number)
        for numbers in roles.values():
            if len(numbers) > 1:
                self._add_pairs(shard_index, numbers[:_MAX_ALTERNATIVES])

    def _add_pairs(self, shard_index: ShardIndex, numbers: list[int]) -> None:
        """Note which of these fields a sample has together."""
        bits = np.zeros(len(shard_index.fields), np.uint32)
        bits[numbers] = 1 << np.arange(len(numbers), dtype=np.uint32)
        starts = shard_index.member_starts[:-1].astype(np.int64)
        # Each sample has at least one member, so that no range is empty.
        of_samples = np.bitwise_or.reduceat(bits[shard_index.field_ids], starts)
        for found in np.unique(of_samples).tolist():
            names = [shard_index.fields[n] for bit, n in enumerate(numbers) if found >> bit & 1]
            self._together.update(map(frozenset, combinations(names, 2)))

    def texts(self) -> list[str]:
        """Return the remarks."""
        if self._has_more:
            named = ", ".join(list(self._counts)[:3])
            text = f"more than {_MAX_FIELDS:,} different fields, such as {named}"
            return [f'{text}: if keys have dots, split names at the last dot, key_split="last"']
        mixed, partial = [], []
        for group in self._alternatives():
            if len(group) > 1:
                first, *others = group
                most = f"{first} in {count_text(self._counts[first], 'sample')}"
                others = [f"{field} in {self._counts[field]:,}" for field in others]
                mixed.append(f"formats are mixed: {', '.join([most, *others])}")
            count = sum(self._counts[field] for field in group)
            if count < self._num_samples:
                share = percent_text(count, self._num_samples)
                some = f"only {count:,} of {count_text(self._num_samples, 'sample')} ({share})"
                partial.append(f"{some} {'has' if count == 1 else 'have'} {' or '.join(group)}")
        return [*_first(mixed), *_first(partial)]

    def _alternatives(self) -> list[list[str]]:
        """Return groups of fields of one role that never occur together, most frequent first."""
        groups: dict[Role, list[list[str]]] = {}
        for field, _ in self._counts.most_common():
            of_role = groups.setdefault(_role(field), [])
            for group in of_role:
                if not any(frozenset((field, other)) in self._together for other in group):
                    group.append(field)
                    break
            else:
                of_role.append([field])
        return [group for of_role in groups.values() for group in of_role]


def _role(field: str) -> Role:
    """Return the role of a field: ``.JPG`` and ``.png`` are alike, ``.mask.png`` is another."""
    stem, _, extension = field.removesuffix(".gz").rpartition(".")
    kind = extension.lower()
    if kind in IMAGE_EXTENSIONS:
        return stem, "image"
    return stem, MEDIA_TYPES.get(kind, kind).partition("/")[0]


def _first(texts: Iterable[str]) -> list[str]:
    """Return the first texts, and how many there are besides."""
    found = list(texts)
    num_more = len(found) - _MAX_NAMED
    more = [f"{num_more:,} more of this kind"] if num_more > 0 else []
    return found[:_MAX_NAMED] + more
