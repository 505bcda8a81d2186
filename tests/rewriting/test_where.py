"""Conditions on columns: what they select, and what is no condition."""

from __future__ import annotations

import pytest
from conftest import optional, raises

from wids.rewriting.where import Comparison, mask, parsed


def test_conditions_are_comparisons_joined_by_and() -> None:
    """Columns are names or paths, values numbers, texts or truth values."""
    assert parsed(".json/height >= 256 and name != 'a b' and .cls==3") == [
        Comparison(".json/height", ">=", 256),
        Comparison("name", "!=", "a b"),
        Comparison(".cls", "==", 3),
    ]
    assert parsed('ok==true and t > "\\u00e9 and"')[1] == Comparison("t", ">", "é and")


@pytest.mark.parametrize(
    "text", ["", "height", "height >= ", "a > 1 or b > 2", "a > [1]", "a > b", "a > 1 and", "f(x)"]
)
def test_everything_else_is_refused(text: str) -> None:
    """Nothing is guessed, and nothing executed."""
    with raises(ValueError, "where: expected comparisons joined by `and`"):
        parsed(text)


def test_missing_values_meet_nothing() -> None:
    """A sample without the field is not selected, whatever the comparison."""
    arrow = optional("pyarrow")
    table = arrow.table({"h": [1, None, 300], "t": ["a", "b", None]})
    assert mask(table, parsed("h != 5")).tolist() == [True, False, True]
    assert mask(table, parsed("h > 0 and t < 'z'")).tolist() == [True, False, False]
    with raises(ValueError, "where: h: expected a value to compare int64 with, found 'x'"):
        mask(table, parsed("h == 'x'"))
    with raises(ValueError, "where: h: expected a value to compare int64 with, found 9999999999"):
        mask(table, parsed("h > 99999999999999999999"))
