"""The memory of a process that plans new shards does not depend on how large the dataset is."""

from __future__ import annotations

from pathlib import Path

import large_rewrites
import pytest


@pytest.mark.long
def test_memory_does_not_grow_with_samples(tmp_path: Path) -> None:
    """With twice the samples a plan needs at most 30 MB more, in any order.

    A position and a length for each sample would be 32 MB, and all that is looked at 130 MB.
    """
    small, large = large_rewrites.main(["--samples", "2e6", "4e6", "--folder", str(tmp_path)])

    for order, (_, peak_nbytes) in large.items():
        assert peak_nbytes < small[order][1] + 30e6, order
        assert peak_nbytes < 300e6, order
