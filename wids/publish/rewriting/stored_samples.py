"""Find the stored members of samples of a view in local shards, without copying them.

What is read is compared with the checksums of its index. Samples that are stored elsewhere, or that
a tar of this library would not have, are left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from wids.shards.positions import Positions, select_batch
from wids.shards.reader import ShardReader
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.member_names import to_bytes
from wids.shards.tars.raw_samples import changed_payload_error
from wids.shards.tars.readable_shard import ReadableShard
from wids.shards.tars.shard import Shard
from wids.storage.array_types import IntArray
from wids.storage.checksums import fastest_crc32


class View(Protocol):
    """What rewriting needs of a view: its samples, and where they are stored."""

    reader: Any

    @property
    def positions(self) -> Positions:
        """The positions of its samples in all shards."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Read several samples."""


@dataclass(frozen=True, eq=False)
class StoredMembers:
    """The members of some samples, in the order of a view.

    Attributes:
        keys: The keys of the samples.
        names: The names of their members.
        contents: Their bytes.
        sizes: Their lengths.
        crcs: Their checksums.
    """

    keys: list[bytes]
    names: list[bytes]
    contents: list[memoryview]
    sizes: IntArray
    crcs: list[int]


def stored_members(view: View, start: int, stop: int) -> StoredMembers | None:
    """Return the members of the samples ``start`` to ``stop`` of a view.

    Returns:
        None if some are not in local shards, have other keys than in a tar of this library, or no
        member is left of one.

    Raises:
        ShardFormatError: A member, or its header, is not the one that was indexed.
    """
    reader = view.reader
    if type(reader) is not ShardReader:  # such as that of a join
        return None
    return _read(reader, select_batch(view.positions, np.arange(start, stop)))


def _read(reader: ShardReader, positions: IntArray) -> StoredMembers | None:
    parts = []
    keys: list[bytes] = [b""] * len(positions)
    for number, places, local_indices in reader.groups(positions):
        read = partial(_of_shard, reader, local_indices)
        part = reader.read_from(number, reader.fetches_for_many, read)
        if part is None:
            return None
        for place, key in zip(places, part.keys, strict=True):
            keys[place] = key
        parts.append((np.repeat(places, part.counts), part))
    order = np.argsort(np.concatenate([place for place, _ in parts]), kind="stable")
    in_order = order.tolist()
    names, contents, crcs = (
        [found[at] for at in in_order]
        for found in (
            [name for _, part in parts for name in part.names],
            [content for _, part in parts for content in part.contents],
            [crc for _, part in parts for crc in part.crcs],
        )
    )
    return StoredMembers(keys, names, contents, np.array(list(map(len, contents))), crcs)


@dataclass(frozen=True, eq=False)
class _Part:
    """The members of some samples of a shard; ``counts`` has their number for each sample."""

    keys: list[bytes]
    counts: IntArray
    names: list[bytes]
    contents: list[memoryview]
    crcs: list[int]


def _of_shard(
    reader: ShardReader, local_indices: Sequence[int], shard: ReadableShard
) -> _Part | None:
    if not isinstance(shard, Shard):
        return None
    index, local = shard.index, np.array(local_indices)
    members, counts = _members_of(index, local, reader.fields)
    if not counts.all() or index.key_split != "first":
        return None
    contents = shard.views(members, local_indices)
    crcs = list(map(fastest_crc32(), contents))
    if reader.verifies_decoded and len(index.payload_crcs):
        for at in np.flatnonzero(index.payload_crcs[members] != np.array(crcs))[:1]:
            raise changed_payload_error(shard.path, index.member_name(int(members[at])))
    begins = index.key_starts[local].astype(np.int64) + index.text_start
    ends = index.key_starts[local + 1].astype(np.int64) + index.text_start - 1
    text = index.text
    keys = [text[start:stop] for start, stop in zip(begins.tolist(), ends.tolist(), strict=True)]
    fields = [to_bytes(field) for field in index.fields]
    owners = np.repeat(np.arange(len(local)), counts).tolist()
    numbers = index.field_ids[members].tolist()
    names = [keys[owner] + fields[number] for owner, number in zip(owners, numbers, strict=True)]
    return _Part(keys, counts, names, contents, crcs)


def _members_of(
    index: ShardIndex, local: IntArray, wanted: frozenset[str] | None
) -> tuple[IntArray, IntArray]:
    """Return the members of samples, sample by sample, and how many each has."""
    members, counts = index.members_in(local)
    if wanted is None:
        return members, counts
    is_wanted = np.array([field in wanted for field in index.fields])[index.field_ids[members]]
    ends, sums = np.cumsum(counts), np.concatenate(([0], np.cumsum(is_wanted)))
    return members[is_wanted], sums[ends] - sums[ends - counts]
