"""The numbers of packed batches in docs/performance.md are what their script computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import packed_batches
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def test_costs_of_the_page_are_computed() -> None:
    """A row of the page has the ratios of the script, which reach what packing promises."""
    without, balanced = (packed_batches.ratios(8, 0.5, 128, cost) for cost in (None, "squares"))
    cells = [", ".join(f"{number:.2f}" for number in each) for each in (without, balanced)]
    assert f"| 8 | 0.5 | 128 | {cells[0]} | {cells[1]} |" in PAGE.read_text(encoding="utf-8")
    assert balanced[0] < 1.1
    assert without[0] > 1.8


@pytest.mark.long
def test_everything_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Batches are fuller than greedy ones, in microseconds a sample, on a busy machine too."""
    rows = packed_batches.main(["--toy"])

    fills = {name: used for name, (used, _) in rows["fill"].items()}
    assert fills.pop("greedy, in order") < 0.92
    assert min(fills.values()) > 0.99
    assert ("grain, best-fit" in fills) == bool(importlib.util.find_spec("grain"))
    assert rows["fill"]["PackedBatchSampler, window=512"][1] < 10e-6
    assert rows["scale"]["len_s"] < 200_000 * 20e-6
    assert rows["scale"]["resume_s"] < 1
    assert rows["memory"]["peak_mb"] < 1000
    assert "ranks  sigma  window" in capsys.readouterr().out
