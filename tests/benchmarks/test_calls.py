"""One sample passes through little code."""

from __future__ import annotations

import calls
import pytest


def test_calls_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A warm local sample passes five modules, one by range 21 (114 calls)."""
    rows = calls.main(["--list"])
    local, ranged = rows["local, warm"], rows["by range, warm"]
    assert (len(local.modules), local.num_calls) == (5, 7)
    assert local.depth <= 7
    assert len(ranged.modules) <= 21
    assert ranged.depth <= 16
    assert ranged.num_calls <= 117 < rows["by range, cold"].num_calls
    assert "dataset.access" in capsys.readouterr().out
