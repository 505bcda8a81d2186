"""Clips can be measured beside PyAV; how fast they are depends on the machine."""

from __future__ import annotations

import clips
import pytest
from conftest import need, optional
from recordings import FFMPEG


@pytest.mark.long
def test_clips_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """This library and PyAV return the same frames of each kind of film, and both are measured."""
    need(FFMPEG, "ffmpeg")
    optional("av")
    differing = clips.main(["--rounds", "2", "--films", "1", "--seconds", "2.6"])
    assert len(differing) == len(clips.KINDS)
    assert [found["PyAV"] for found in differing.values()] == [0] * len(clips.KINDS)
    printed = capsys.readouterr().out
    assert printed.count("PyAV") == len(clips.KINDS)
