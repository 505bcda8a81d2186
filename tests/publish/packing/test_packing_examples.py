"""The examples in the docstrings of `wids.publish.packing` run as they stand."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["packed_folder", "pack_plan"])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module has examples, and they print what the docstring shows."""
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(f"wids.publish.packing.{name}"))
    assert result.attempted > 1
    assert result.failed == 0
