"""The memory of a process that plans new shards does not depend on how large the dataset is."""

from __future__ import annotations

from pathlib import Path

import large_rewrites
import pytest


@pytest.mark.long
def test_memory_does_not_grow_with_samples(tmp_path: Path) -> None:
    """With three million samples more a plan needs at most 15 MB more, in any order (REWRITE-44).

    A position and a length for each sample would be 48 MB.
    """
    small, large = large_rewrites.main(["--samples", "2e6", "5e6", "--folder", str(tmp_path)])

    for order, (_, peak_nbytes) in large.items():
        assert peak_nbytes < small[order][1] + 15e6, order
        assert peak_nbytes < 300e6, order
