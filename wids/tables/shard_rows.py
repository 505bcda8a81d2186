"""Find the rows of each shard that a view has, in the order of the shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from wids.shards.position_sets import PositionSet
from wids.shards.positions import Positions
from wids.storage.array_types import IntArray

Rows: TypeAlias = "range | IntArray"
"""Samples of a shard: consecutive ones, or ascending positions in the shard."""


def in_ascending_order(positions: Positions) -> range | IntArray:
    """Return each position once, in ascending order."""
    if isinstance(positions, range):
        return positions if positions.step > 0 else positions[::-1]
    return np.asarray(positions) if isinstance(positions, PositionSet) else np.unique(positions)


def rows_of_shards(ascending: range | IntArray, edges: IntArray) -> Iterator[tuple[int, Rows]]:
    """Yield the shards that have some of the positions, each with its rows."""
    if isinstance(ascending, range) and ascending.step == 1:
        firsts = np.clip(edges, ascending.start, max(ascending.start, ascending.stop))
        for number in np.flatnonzero(np.diff(firsts)).tolist():
            start = int(edges[number])
            yield number, range(int(firsts[number]) - start, int(firsts[number + 1]) - start)
        return
    positions = np.asarray(ascending, np.int64)
    cuts = np.searchsorted(positions, edges)
    for number in np.flatnonzero(np.diff(cuts)).tolist():
        rows = positions[cuts[number] : cuts[number + 1]] - edges[number]
        first, last = int(rows[0]), int(rows[-1])
        yield number, range(first, last + 1) if last - first == len(rows) - 1 else rows
