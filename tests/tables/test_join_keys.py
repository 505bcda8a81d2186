"""What belongs together, as a file in the cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from conftest import need

from wids.tables import join_keys
from wids.tables.join_keys import PositionMap


def test_a_map_with_a_flipped_bit_counts_as_missing(tmp_path: Path) -> None:
    """Each bit of the file is covered (JOIN-6): no sample ever has the fields of another."""
    path, digest = tmp_path / "a.join", bytes(range(32))
    stored = PositionMap(3, np.array([2, -1, 0, 1], np.int32), (".txt", ".cls"))
    join_keys.save(str(path), digest, stored)
    found = join_keys.load(str(path), digest)
    assert found is not None
    assert (found.start, found.targets.tolist(), found.fields) == (3, [2, -1, 0, 1], stored.fields)
    good = path.read_bytes()
    for at in range(len(good)):
        for bit in range(8):
            path.write_bytes(good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :])
            assert join_keys.load(str(path), digest) is None, (at, bit)


def test_positions_that_a_map_does_not_have() -> None:
    """Before its first position and after its last one there is nothing, one by one and in bulk."""
    positions = PositionMap(3, np.array([7, -1, 5], np.int32), ())
    expected = {0: -1, 2: -1, 3: 7, 4: -1, 5: 5, 6: -1}
    assert {position: positions.one(position) for position in expected} == expected
    assert positions.at(np.array([*expected])).tolist() == [*expected.values()]


def test_a_map_of_another_user_counts_as_missing(tmp_path: Path) -> None:
    """In a shared folder, nobody decides what belongs to the samples of others (SEC-41)."""
    need(hasattr(os, "geteuid") and os.geteuid() == 0, "root, to plant files of another user")
    path, digest = tmp_path / "a.join", bytes(32)
    join_keys.save(str(path), digest, PositionMap(0, np.array([1, 0], np.int32), ()))
    assert join_keys.load(str(path), digest) is not None
    os.chown(path, 65534, 65534)
    assert join_keys.load(str(path), digest) is None
