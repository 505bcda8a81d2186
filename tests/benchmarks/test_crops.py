"""Crops of audio can be measured beside soundfile; how fast they are depends on the machine."""

from __future__ import annotations

import crops
import pytest
from conftest import optional


@pytest.mark.alone
def test_crops_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """With quick checksums, or none, a crop takes at most 1.45 of soundfile's time (1.2 found)."""
    optional("soundfile")
    found = crops.main(["--rounds", "9", "--files", "40"])
    assert found["soundfile"] == 1.0
    assert max(found[name] for name in ("wids[fast]", 'verify="never"') if name in found) < 1.45
    assert capsys.readouterr().out.count("(") == 2 * len(found)
