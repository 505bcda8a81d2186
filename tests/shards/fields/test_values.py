"""Lists of arrays in webdataset's tensor format."""

from __future__ import annotations

import numpy as np
from conftest import raises

from wids.shards.fields import values


def test_tenbin_is_checked() -> None:
    """Lengths, shapes and types are checked before they are used."""
    good = values.dumps([np.arange(6.0).reshape(2, 3)])
    assert len(good) == 2 * (16 + 64)
    for offset, value, reason in (
        (0, b"X", "expected a chunk at byte 0"),
        (8, b"\xff" * 8, "found the length -1"),
        (8, b"\xff" * 7 + b"\x7f", "found the length 9223372036854775807"),
        (16, b"f3", "found 'f3'"),
        (32, b"\x03", "expected 3 dimensions"),
        (40, b"\xff" * 8, "expected 2 dimensions, found [-1, 3]"),
        (40, b"\x00" * 7 + b"\x40", "expected 110680464442257309696 bytes"),
        (80, b"?", "expected a chunk at byte 80"),
    ):
        bad = good[:offset] + value + good[offset + len(value) :]
        with raises(ValueError, reason):
            values.loads(bad)
    for length in range(1, 144):  # after that, only padding is missing
        with raises(ValueError, "expected"):
            values.loads(good[:length])
    assert values.loads(b"") == []
