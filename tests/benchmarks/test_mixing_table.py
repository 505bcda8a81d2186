"""The comparison of samplers that mix can be measured, and the page shows what was measured."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import mixing
import pytest
from samplers import Data

from wids import ChunkedSampler, MixedSampler

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def test_page_shows_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of this library and of torch's sampler are printed as they stand on the page."""
    rows = mixing.main(["--only", "wids.MixedSampler", "torch WeightedRandomSampler"])

    assert [row["library"] for row in rows] == list(mixing.LIBRARIES)[:2]
    printed = capsys.readouterr().out.splitlines()
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert printed[1] in page
    own, torch = rows
    assert float(own["batch"]) < 2 < float(torch["batch"])
    assert own["resumed"] == "500 of 500"


@pytest.mark.long
def test_mixing_is_about_as_fast_as_chunks() -> None:
    """Ten million mixed indices take at most 1.5 times the time of unmixed ones."""
    data = Data(10_000_000, 2000)

    def seconds(sampler: Any) -> float:
        start = time.process_time()
        deque(sampler, 0)
        return time.process_time() - start

    # The fastest of several turns, since a busy machine slows some of them.
    rounds = [
        (seconds(MixedSampler(data, [0.7, 0.2, 0.1])), seconds(ChunkedSampler(data)))
        for _ in range(10)
    ]
    mixed, chunked = (min(times) for times in zip(*rounds, strict=True))
    assert mixed <= 1.5 * chunked
