"""Find the damaged fields of a sample by the checksums in its index, and describe them as text.

Nothing is read here: only bytes in memory are compared, with checksums in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wids.errors import printable
from wids.shards.tars.index import ShardIndex
from wids.storage.checksums import fastest_crc32


def damaged_fields(index: ShardIndex, local_index: int, sample: Mapping[str, Any]) -> list[str]:
    """Return the fields of a sample whose bytes do not have the checksum in the index.

    Args:
        index: The index of the shard; without checksums of members, no damage is found.
        local_index: The position of the sample in the shard.
        sample: Its fields, undecoded; those that it lacks are not compared.
    """
    if not len(index.payload_crcs):
        return []
    crc32 = fastest_crc32()
    return [
        field
        for field, member in index.members(local_index).items()
        if field in sample and index.payload_crcs[member] != crc32(sample[field])
    ]


def damage_text(fields: list[str]) -> str:
    """Return a sentence that names the damaged fields of a sample; ``""`` if there are none."""
    if not fields:
        return ""
    return printable(
        f"the bytes of {' and '.join(fields)} are not those that the index describes: they were "
        "damaged after they were indexed, or the shard was written again and its index was not; "
        "`wids verify` compares all samples"
    )
