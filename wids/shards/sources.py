"""Group the indices of a view by the dataset names of their shards, for samplers that mix them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wids.shards.positions import Positions, counts_per_shard, is_ascending
from wids.storage.array_types import IntArray


def ranges_by_name(
    positions: Positions, edges: IntArray, names: Sequence[str], name_of: IntArray
) -> dict[str, IntArray]:
    """Return the ranges of indices whose samples are in the shards of each name.

    Args:
        positions: The positions of a view.
        edges: Where shards begin, and the end of the last one; shape ``(num_shards + 1,)``.
        names: The names.
        name_of: The number of the name of each shard.

    Returns:
        Start and stop of ranges, ascending, shape ``(num_ranges, 2)``, by name in the order of the
        shards. If positions ascend, there is a range for each shard, empty ones included; otherwise
        one for each time that the view enters another shard.
    """
    if is_ascending(positions):
        numbers = np.arange(len(name_of))
        stops = np.cumsum(counts_per_shard(positions, edges), dtype=np.int64)
        starts = np.append(0, stops[:-1])
    else:
        shards = np.searchsorted(edges[1:], np.asarray(positions), side="right")
        starts = np.flatnonzero(np.diff(shards, prepend=-1))
        numbers, stops = shards[starts], np.append(starts[1:], len(shards))
    id_of_range = name_of[numbers]
    ranges = np.stack([starts, stops], axis=1).astype(np.int64)
    return {name: ranges[id_of_range == place] for place, name in enumerate(names)}
