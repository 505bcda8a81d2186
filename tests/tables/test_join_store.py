"""What belongs together, as a file in the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wids.tables import join_store
from wids.tables.join_store import PositionMap


def test_a_map_with_a_flipped_bit_counts_as_missing(tmp_path: Path) -> None:
    """Each bit of the file is covered (JOIN-6): no sample ever has the fields of another."""
    path, digest = tmp_path / "a.join", bytes(range(32))
    stored = PositionMap(3, np.array([2, -1, 0, 1], np.int32), (".txt", ".cls"))
    join_store.save(str(path), digest, stored)
    found = join_store.load(str(path), digest)
    assert found is not None
    assert (found.start, found.targets.tolist(), found.fields) == (3, [2, -1, 0, 1], stored.fields)
    good = path.read_bytes()
    for at in range(len(good)):
        for bit in range(8):
            path.write_bytes(good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :])
            assert join_store.load(str(path), digest) is None, (at, bit)
