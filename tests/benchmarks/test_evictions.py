"""The benchmark of evictions works, at toy size."""

from __future__ import annotations

import evictions


def test_the_benchmark_measures() -> None:
    """The first of six copies that come into a full folder evicts 20 more than itself."""
    (result,) = evictions.main(["--copies", "400", "--calls", "5"])
    assert result["num_evicted"] == 21
    assert result["recorded_ms"] > 0
