"""Add the fields that are joined to the samples of a shard to its index.

The result says which fields the samples have, how long they are and which checksums they have,
where these are known, for notebooks and pages. It does not say where in a file they are, since they
are in several.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wids.shards.tars.index import ShardIndex
from wids.storage.array_types import IntArray
from wids.tables.join_parts import UNKNOWN, Members


def joined_index(index: ShardIndex, members: Members) -> ShardIndex:
    """Return an index of the same samples, each with its own fields and then those joined to it."""
    names = {name: number for number, name in enumerate(index.fields)}
    ids = np.array([names.setdefault(name, len(names)) for name in members.names], np.int64)
    starts = index.member_starts.astype(np.int64)
    samples = np.concatenate([np.repeat(np.arange(len(index)), np.diff(starts)), members.samples])
    order = np.argsort(samples, kind="stable")
    sizes = np.concatenate([index.sizes.astype(np.int64), members.sizes])[order]
    field_ids = np.concatenate([index.field_ids.astype(np.int64), ids[members.field_ids]])[order]
    crcs = np.concatenate([payload_crcs(index), members.crcs])[order]
    nowhere = np.zeros(len(order), np.uint8)
    return replace(
        index,
        member_starts=np.searchsorted(samples[order], np.arange(len(index) + 1)),
        sizes=sizes,
        field_ids=field_ids,
        blocks=nowhere,
        head_blocks=nowhere,
        head_crcs=np.empty(0, np.uint32),
        payload_crcs=crcs if (crcs != UNKNOWN).any() else np.empty(0, np.uint32),
        fields=tuple(names),
    )


def payload_crcs(index: ShardIndex) -> IntArray:
    """Return the checksums of the members of an index, as `Members` has them."""
    if len(index.payload_crcs):
        return index.payload_crcs.astype(np.int64)
    return np.full(len(index.sizes), UNKNOWN)
