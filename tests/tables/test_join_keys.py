"""What belongs together."""

from __future__ import annotations

import numpy as np

from wids.tables.join_keys import PositionMap


def test_positions_that_a_map_does_not_have() -> None:
    """Before its first position and after its last one there is nothing, one by one and in bulk."""
    positions = PositionMap(3, np.array([7, -1, 5], np.int32))
    expected = {0: -1, 2: -1, 3: 7, 4: -1, 5: 5, 6: -1}
    assert {position: positions.one(position) for position in expected} == expected
    assert positions.at(np.array([*expected])).tolist() == [*expected.values()]
