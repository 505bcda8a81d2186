"""Sizes as people write them, and as messages show them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from conftest import raises

from wids.storage.sizes import nbytes_text, parse_nbytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("200GB", 200 * 10**9), ("1.5 TiB", 3 << 39), ("17", 17), (5, 5), (2e9, 2 * 10**9),
     ("10kb", 10_000), ("", None), (None, None), ("0B", 0)],
)  # fmt: skip
def test_sizes_are_parsed(text: Any, nbytes: int | None) -> None:
    """A size is a number, or a text with a decimal or binary unit."""
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["many", "-5", "5 XB", "GB", -1, 0.5, True, float("inf")])
def test_invalid_sizes(text: Any) -> None:
    """The error names the argument and shows its value."""
    with raises(ValueError, "cache_size", repr(text)):
        parse_nbytes(text)
    with raises(ValueError, "--limit"):
        parse_nbytes(text, "--limit")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (15, "15 B"), (999, "999 B"), (1000, "1.0 kB"), (1600, "1.6 kB"),
     (999_949, "999.9 kB"), (999_960, "1.0 MB"), (4_600_000, "4.6 MB"), (8 << 30, "8.6 GB"),
     (10**18, "1.0 EB"), (math.nan, "?")],
)  # fmt: skip
def test_sizes_are_shown(nbytes: float, text: str) -> None:
    """One decimal, and never a thousand of a unit."""
    assert nbytes_text(nbytes) == text
