"""What the numbers of a loop say about it."""

from __future__ import annotations

import re
import sys
import zlib

import pytest
from conftest import optional
from pages import ROOT

from wids.dataset import timing
from wids.dataset.timing import ADVICE, StageTimes, stage_times
from wids.storage.files import fastest_crc32
from wids.storage.stages import COUNTS, SECONDS


@pytest.mark.parametrize(
    ("num_workers", "between_s", "expected"),
    [(2, 9.0, "hand-over"), (2, 0.5, "transform"), (0, 9.0, "transform")],
)
def test_workers_that_wait_although_the_loop_does(
    num_workers: int, between_s: float, expected: str
) -> None:
    """More time between their batches than in them is spent on handing batches over."""
    seconds = {**dict.fromkeys(SECONDS, 0.0), "transform": 1.0, "between": between_s}
    counts = dict.fromkeys(COUNTS, 0.0)
    times = StageTimes(seconds, counts, 10.0, 9.0, 5, num_workers, num_workers)
    assert times.bottleneck == expected


@pytest.mark.parametrize(
    ("check_s", "has_fast", "is_advised"),
    [(3.0, False, True), (3.0, True, False), (0.5, False, False)],
)
def test_checksums_that_cost_much_are_named(
    monkeypatch: pytest.MonkeyPatch, check_s: float, has_fast: bool, is_advised: bool
) -> None:
    """Where decoding audio takes most, and checksums a third of that, wids[fast] is advised."""
    chosen = fastest_crc32.__wrapped__() if has_fast else zlib.crc32
    if has_fast and chosen is zlib.crc32:
        pytest.skip("needs wids[fast]")
    monkeypatch.setattr(timing, "fastest_crc32", lambda: chosen)
    seconds = {**dict.fromkeys(SECONDS, 0.0), "decode": 9.0, "check": check_s}
    times = StageTimes(seconds, dict.fromkeys(COUNTS, 0.0), 10.0, 9.0, 5, 2, 2)
    assert times.bottleneck == "decode"
    assert times.advice.endswith(ADVICE["decode"].partition(" or ")[2])
    assert ("install wids[fast]: checksums are 25% of all stages" in times.advice) == is_advised


def test_time_between_batches_of_the_loop_is_its_own() -> None:
    """The process that trains counts it too, and it is no time of the data."""
    counted = {**{f"{name}_s": 2.0 for name in SECONDS}, **dict.fromkeys(COUNTS, 0.0)}
    times = stage_times(counted, own_between_s=1.5, loop_s=4.0, wait_s=2.0, num_batches=1)
    assert times.seconds == {**dict.fromkeys(SECONDS, 2.0), "between": 0.5}


def test_each_bottleneck_is_on_the_page_of_slow_loops() -> None:
    """The table of docs/slow.md has a row for each; ``loop`` is in the sentence above it."""
    page = (ROOT / "docs" / "slow.md").read_text(encoding="utf-8")
    part = page.partition("\n## What to change\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^\|[^|]*\| ([^|]*) \|", part, re.MULTILINE)
    names = [name for cell in shown for name in re.findall(r"`([^`]+)`", cell)]
    # `timings` in the head of the table; the counts that go with two of the bottlenecks.
    beside = {"timings", "wids bench", *COUNTS}
    assert sorted(set(names) - beside) == sorted(set(ADVICE) - {"loop"})
    assert "the bottleneck is `loop`" in part


@pytest.mark.parametrize(
    ("stage", "package", "extra"),
    [("decode", "simplejpeg", "wids[turbo]"), ("check", "zlib_ng", "wids[fast]")],
)
def test_what_is_installed_is_no_advice(
    stage: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extra is named where its package is missing, and the other advice always."""
    seconds = {**dict.fromkeys(SECONDS, 0.1), stage: 9.0}
    times = StageTimes(seconds, dict.fromkeys(COUNTS, 0), 9, 9, 2, 8, 2)
    assert times.bottleneck == stage
    optional(package)
    rest = times.advice
    assert extra not in rest
    monkeypatch.setitem(sys.modules, package, None)
    assert times.advice.startswith(f"install {extra}, ")
    assert times.advice.endswith(f" or {rest}")
