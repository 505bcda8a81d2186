"""Threads can be measured beside workers; which are faster depends on the machine."""

from __future__ import annotations

import pytest
import threads


@pytest.mark.usefixtures("forked")
def test_threads_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Each kind of samples has a row for each way, with and without steps of training."""
    found = threads.main(["--rounds", "1", "--samples", "80", "--step-ms", "1"])
    assert len(found) == 24
    assert min(found.values()) > 0
    assert capsys.readouterr().out.count("samples/s") == 24
