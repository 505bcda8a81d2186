"""How columns are distributed, as text: numbers, few values, many texts, hostile ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import write_shards
from hypothesis import given, settings
from hypothesis import strategies as st

from wids import ShardListDataset
from wids.cli.main import main
from wids.look.page.tally import columns_text, distributions_text
from wids.look.text import text_width


def shown(values: Any, width: int = 100) -> str:
    return distributions_text(pa.table({"x": values, "__key__": ["k"] * len(values)}), width)


def test_numbers_have_quantiles_and_a_histogram() -> None:
    """Quantiles are values that occur; the histogram is scaled to its highest bin."""
    text = shown([*range(1000), 5000])
    assert text.splitlines()[0] == "x: int64, 1,001 rows"
    assert "least 0, 5% 50, 25% 250, median 500, 75% 750, 95% 950, most 5,000; mean 504" in text
    bins = re.search(r"0 \|(.{40})\| 5,000$", text)
    assert bins is not None
    assert bins[1] == "█" * 8 + " " * 31 + "▁"


def test_few_values_have_counts() -> None:
    """With shares that are 0% and 100% only if that is exact, and the nulls."""
    lines = shown(pa.array([7] * 9_999 + [3, None])).splitlines()
    assert lines[0] == "x: int64, 10,001 rows, 1 null"
    assert [line.split()[:3] for line in lines[1:]] == [
        ["value", "rows", "share"],
        ["3", "1", "0.1%"],
        ["7", "9,999", "99.9%"],
    ]
    assert shown(["a"] * 3).splitlines()[2].split()[:3] == ["a", "3", "100.0%"]
    assert shown([True, False, True]).splitlines()[2].split()[:2] == ["False", "1"]


def test_long_texts_show_both_ends() -> None:
    """Values that begin alike are lines of their own, which differ."""
    start = "once upon a time there was, in a small house by the sea, "
    lines = shown([start + "a fox", start + "a hen", start + "a hen"]).splitlines()
    assert lines[2].split("  ")[1] == "once upon a time there was,…e sea, a hen"
    assert lines[3].split("  ")[1] == "once upon a time there was,…e sea, a fox"


def test_texts_and_lists_have_lengths() -> None:
    """The most frequent texts, how many there are, and how long they are."""
    text = shown(["often"] * 50 + [f"text {n:03d}" for n in range(50)])
    assert "51 different values; most frequent:\n" in text
    assert re.search(r"often +50 +50.0%", text)
    assert "length: least 5," in text
    assert "items: least 0, 5% 0, 25% 1, median 2" in shown([[1] * (n % 5) for n in range(50)])


def test_floats_that_are_not_finite_are_counted_apart() -> None:
    """They have no place in a histogram."""
    text = shown([float("inf"), float("nan"), float("-inf"), *np.arange(20.5)])
    assert "3 not finite\n" in text
    assert "least 0, 5% 1" in text
    assert "1 not finite" not in shown([float("nan"), 1.0])  # few values are counted
    assert re.search(r"nan +1 ", shown([float("nan"), 1.0]))


HOSTILE = st.one_of(
    st.lists(st.floats(), min_size=1, max_size=40),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=300)),
    st.lists(st.binary(max_size=30), max_size=40),
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=20),
    st.lists(st.none(), max_size=3),
)


@settings(deadline=None, max_examples=25)
@given(HOSTILE, st.integers(20, 90))
def test_any_values_are_shown_on_printable_lines(values: list[Any], width: int) -> None:
    """SEC-52: nothing that a terminal obeys, no line wider than the window, no crash."""
    columns = pa.table({"name\x1b[2J": pa.array(values)})
    for text in (distributions_text(columns, width), columns_text(columns, width)):
        lines = text.split("\n")
        assert all(line.isprintable() for line in lines)
        assert max(map(text_width, lines)) <= width


@pytest.mark.parametrize("is_stale", [False, True])
def test_the_summary_of_a_notebook_shows_the_saved_table(tmp_path: Path, is_stale: bool) -> None:
    """Or why it does not; of a view only its rows; without a table nothing."""
    spec = write_shards(tmp_path, [8, 5])
    with ShardListDataset(spec) as dataset:
        assert "int64" not in dataset._repr_html_()
    main(["table", str(spec), "-c", "<b>=.cls", "-o", str(tmp_path / "t.parquet"), "-j", "1"])
    if is_stale:
        spec.write_text(spec.read_text().replace('"nsamples": 5', '"nsamples": 5, "sha256": "0"'))
    with ShardListDataset(spec) as dataset:
        html = dataset._repr_html_()
        if is_stale:
            assert "the shards have changed" in html
        else:
            assert "&lt;b&gt;: int64, 13 rows" in html
            assert "&lt;b&gt;: int64, 3 rows" in dataset[:3]._repr_html_()
