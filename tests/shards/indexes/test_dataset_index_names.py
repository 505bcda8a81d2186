"""Names in a dataset index are found by their number."""

from __future__ import annotations

import pytest

from wids.shards.indexes.dataset_index import DatasetIndexNames


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000, 70_000])
def test_every_name_has_its_number(count: int) -> None:
    """Names of any number are those that were joined, empty ones too."""
    wanted = [b"" if number % 5 == 3 else b"train-%07d.tar" % number for number in range(count)]
    names = DatasetIndexNames(b"\0".join(wanted))
    assert len(names) == count
    step = 1 if count <= 1000 else 97
    assert [names[number] for number in range(0, count, step)] == wanted[::step]
