"""The comparison of docs/performance.md is what its script computes, and the script works."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import bucket_batches
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def test_table_of_the_page_is_computed() -> None:
    """Batches, missed and repeated samples of the page are those of the script."""
    lengths = bucket_batches.durations(20_000)
    rows = {
        "`BucketBatchSampler`": {},
        "`BucketBatchSampler(aligned=True)`": {"aligned": True},
        "`BucketBatchSampler(drop_last=True)`": {"drop_last": True},
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, options in rows.items():
        found = bucket_batches.epoch(
            lambda rank, options=options: bucket_batches.wids_sampler(lengths, rank, **options),
            lengths,
        )
        batches = ", ".join(map(str, found.num_batches))
        cells = [batches, found.missed, found.repeated, found.steps_that_differ]
        assert f"| {name} | {' | '.join(map(str, cells))} |" in page
        assert found.is_exact


@pytest.mark.long
def test_every_sampler_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the loop has unequal ranks; ten million samples are a matter of seconds."""
    rows = bucket_batches.main(["--toy"])

    loop = rows.pop("DistributedSampler, loop")
    assert all(len(set(figures.num_batches)) == 1 for figures in rows.values())
    assert loop.missed > 0
    aligned = rows["wids, aligned"]
    assert aligned.steps_that_differ == aligned.missed == 0
    assert ("lhotse" in rows) == bool(importlib.util.find_spec("lhotse"))
    printed = capsys.readouterr().out
    times = [float(text) for text in re.findall(r"(\d+\.\d+) s", printed)]
    assert len(times) == 6
    assert max(times) < 3, "of a million samples, on a busy machine"
