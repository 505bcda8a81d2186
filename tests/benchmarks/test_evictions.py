"""The benchmark of evictions works, at toy size."""

from __future__ import annotations

import evictions


def test_the_benchmark_measures() -> None:
    """Each copy that is fetched into the full folder evicts one, also by the record."""
    (result,) = evictions.main(["--copies", "400", "--calls", "5"])
    assert result["num_evicted"] == 6
    assert result["recorded_ms"] > 0
