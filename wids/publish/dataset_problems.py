"""Find errors in a dataset as a whole, and remarks on it, from its pack.

Reads no shard.
"""

from __future__ import annotations

from collections.abc import Sequence

from wids.publish.field_remarks import field_remarks
from wids.publish.problems import Problem
from wids.publish.repeated_keys import find_repeated_keys
from wids.shards.indexes.pack import LocalPack
from wids.shards.specs.model import ShardSpec
from wids.storage.transport import urls


def dataset_problems(
    pack: LocalPack | None, shards: Sequence[ShardSpec], name: str = ""
) -> list[Problem]:
    """Return an error for keys that occur in several shards, and remarks on fields.

    Args:
        pack: The indexes of the shards; None for no problems.
        shards: The shards that were packed, in order.
        name: Name of the dataset.
    """
    if pack is None:
        return []
    return [*repeated_keys(pack, shards), *field_remarks(pack, shards, name)]


def repeated_keys(pack: LocalPack | None, shards: Sequence[ShardSpec]) -> list[Problem]:
    """Return what is wrong with the keys of several shards, as a list of at most one problem."""
    found = None if pack is None else find_repeated_keys(pack, shards)
    if found is None:
        return []
    _, _, second = found.named[0]
    return [Problem(urls.redact(second.url), str(found))]
