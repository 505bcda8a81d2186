"""Find errors in a dataset as a whole, and remarks on it, from its pack.

Reads no shard.
"""

from __future__ import annotations

from collections.abc import Sequence

from wids.publish.field_remarks import field_remarks
from wids.publish.problems import Problem
from wids.publish.repeated_keys import repeated_keys
from wids.shards.indexes.pack import LocalPack
from wids.shards.specs.model import ShardSpec


def dataset_problems(pack: LocalPack, shards: Sequence[ShardSpec], name: str = "") -> list[Problem]:
    """Return an error for keys that occur in several shards, and remarks on fields.

    Args:
        pack: The indexes of the shards.
        shards: The shards that were packed, in order.
        name: Name of the dataset.
    """
    return [*repeated_keys(pack, shards), *field_remarks(pack, shards, name)]
