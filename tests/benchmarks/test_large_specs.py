"""The benchmark of large specs works, at toy size."""

from __future__ import annotations

import large_specs
import pytest


@pytest.mark.parametrize("options", [[], ["--http"]])
def test_the_benchmark_measures(options: list[str]) -> None:
    """Every number of its table is there, and processes share the pages of a table."""
    (result,) = large_specs.main(["--shards", "12000", "--processes", "2", *options])
    assert result["json_nbytes"] > 1 << 20
    assert result["open_s"] > 0
    assert ("requests" in result) == bool(options)
