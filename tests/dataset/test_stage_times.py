"""What the numbers of a loop say about it."""

from __future__ import annotations

import pytest

from wids.dataset.stage_times import StageTimes, stage_times
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


def test_time_between_batches_of_the_loop_is_its_own() -> None:
    """The process that trains counts it too, and it is no time of the data."""
    counted = {**{f"{name}_s": 2.0 for name in SECONDS}, **dict.fromkeys(COUNTS, 0.0)}
    times = stage_times(counted, own_between_s=1.5, loop_s=4.0, wait_s=2.0, num_batches=1)
    assert times.seconds == {**dict.fromkeys(SECONDS, 2.0), "between": 0.5}
