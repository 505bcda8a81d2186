"""One sample passes through little code."""

from __future__ import annotations

import calls
import pytest


def test_calls_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A warm local sample passes five modules, one by range 25 (153 calls)."""
    rows = calls.main(["--list"])
    local, ranged = rows["local, warm"], rows["by range, warm"]
    assert len(local.modules) <= 10
    assert local.depth <= 8
    assert len(ranged.modules) <= 25
    assert ranged.depth <= 18
    assert local.num_calls < ranged.num_calls <= 165 < rows["by range, cold"].num_calls
    assert "dataset.access" in capsys.readouterr().out
