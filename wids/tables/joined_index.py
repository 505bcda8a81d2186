"""Make the index of joined samples from those of both sides.

The result says which fields the samples have, how long they are and which checksums they have,
where these are known, for notebooks and pages. It does not say where in a file they are, since they
are in several.

The members of samples are the columns of an array of shape ``(4, num_members)``: the sample, the
length in bytes, the number of the field in the joined index, and the CRC-32, or `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from wids.shards.tars.index import ShardIndex
from wids.storage.array_types import IntArray

UNKNOWN: Final = -1
"""Stands where a checksum is not known."""


def indexed_members(
    index: ShardIndex, local: IntArray, samples: IntArray, field_numbers: Iterable[int]
) -> IntArray:
    """Return the members that an index has for some samples.

    Args:
        index: The index.
        local: The samples in it.
        samples: The samples in the joined index that they belong to.
        field_numbers: The numbers of its fields in the joined index.
    """
    members, counts = index.members_in(local)
    numbers = np.array(list(field_numbers), np.int64)[index.field_ids[members]]
    crcs = (
        index.payload_crcs[members] if len(index.payload_crcs) else np.full(len(members), UNKNOWN)
    )
    return np.stack(
        [np.repeat(samples, counts), index.sizes[members], numbers, crcs], dtype=np.int64
    )


def joined_index(index: ShardIndex, members: IntArray, names: Iterable[str]) -> ShardIndex:
    """Return an index of the same samples with members of both sides, whose fields have names."""
    samples, sizes, field_ids, crcs = members[:, np.argsort(members[0], kind="stable")]
    nowhere = np.zeros(len(samples), np.uint8)
    return replace(
        index,
        member_starts=np.searchsorted(samples, np.arange(len(index) + 1)),
        sizes=sizes,
        field_ids=field_ids,
        blocks=nowhere,
        head_blocks=nowhere,
        head_crcs=np.empty(0, np.uint32),
        payload_crcs=crcs if (crcs != UNKNOWN).any() else np.empty(0, np.uint32),
        fields=tuple(names),
    )
