"""The memory of a process that writes a dataset index does not depend on its size."""

from __future__ import annotations

from pathlib import Path

import large_dataset_indexes
import pytest


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--repeated"]])
def test_memory_does_not_grow_with_samples(options: list[str], tmp_path: Path) -> None:
    """With twice the samples `create` and `append` need at most 30 MB more.

    Tables in memory would need 60 MB more for each million of samples.
    """
    small, large = large_dataset_indexes.main(
        ["--samples", "3e6", "6e6", "--folder", str(tmp_path), *options]
    )

    for step, taken in large.items():
        assert taken.peak_nbytes < small[step].peak_nbytes + 30e6, step
        assert taken.peak_nbytes < 300e6, step
