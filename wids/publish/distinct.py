"""Find the first of each group of equal items, of which there may be millions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from wids.storage.array_types import IntArray


def first_places(items: Sequence[Hashable]) -> IntArray:
    """Return where items occur for the first time, ascending; takes 16 bytes for each item."""
    hashes = np.fromiter(map(hash, items), np.int64, len(items))
    in_order = np.sort(hashes)
    several = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    candidates = np.flatnonzero(np.isin(hashes, several)) if len(several) else several
    # Items of one hash may differ, so the items themselves decide.
    first: dict[Hashable, int] = {}
    later = [at for at in candidates.tolist() if first.setdefault(items[at], at) != at]
    return np.delete(np.arange(len(hashes)), later)
