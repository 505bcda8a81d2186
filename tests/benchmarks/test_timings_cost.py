"""What `wids.timings` costs can be measured; how much it is depends on the machine."""

from __future__ import annotations

import pytest
import timings_cost


@pytest.mark.long
def test_the_cost_of_timings_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A row is printed for each kind of samples."""
    found = timings_cost.main(["--rounds", "2", "--samples", "64"])
    assert list(found) == ["small", "mapped", "undecoded", "pictures"]
    assert len(capsys.readouterr().out.splitlines()) == 5
