"""The benchmark of large specs works, at toy size."""

from __future__ import annotations

import large_specs
import pytest


@pytest.mark.parametrize("options", [[], ["--http"]])
def test_the_benchmark_measures(options: list[str]) -> None:
    """Every number of its row is there."""
    (result,) = large_specs.main(["--shards", "12000", "--processes", "2", *options])
    assert result["json_nbytes"] > 1 << 20
    assert result["open_s"] > 0
    assert result["first"]["spec_nbytes"] < 60 * 12000
    assert ("requests" in result) == ("--http" in options)


def test_a_list_of_specs_is_measured() -> None:
    """The row of a mix has the first open and a later one."""
    (result,) = large_specs.main(["--shards", "200", "--mix", "3"])
    assert (result["num_specs"], result["num_shards"]) == (3, 200)
    assert result["open_s"] > 0
    assert result["first"]["open_s"] > 0
