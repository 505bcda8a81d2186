"""Times of the ranks of a job are summed."""

from __future__ import annotations

import json
from pathlib import Path

import jobs
import pytest
from conftest import sample_members, write_tar

SCRIPT = Path(__file__).with_name("time_ranks.py")


@pytest.mark.long
def test_ranks_are_summed(tmp_path: Path) -> None:
    """`over_ranks` returns the same sum on each rank; `times` is about one rank."""
    shards = [
        write_tar(tmp_path / f"{n}.tar", sample_members(20 * n, 20 * n + 20)) for n in range(2)
    ]
    printed = jobs.run(jobs.forked(2, SCRIPT, *shards))
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    assert found["ranks"] == 2
    assert found["batches"] == [5, 5, 10]
    assert found["samples"] == [20, 40]
    assert 0 < found["decode_s"][0] < found["decode_s"][1]
    assert "the loops of 2 ranks waited" in found["text"]
