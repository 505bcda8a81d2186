"""Conditions on columns: what they select, and what is no condition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import optional, raises

from wids.tables.columns import column_of, layers_of
from wids.tables.conditions import Comparison, label_of, mask, parsed


def test_conditions_are_comparisons_joined_by_and() -> None:
    """Columns are names or paths, values numbers, texts or truth values."""
    assert parsed(".json/height >= 256 and name != 'a b' and .cls==3") == (
        Comparison(".json/height", ">=", 256),
        Comparison("name", "!=", "a b"),
        Comparison(".cls", "==", 3),
    )
    assert parsed('ok==true and t > "\\u00e9 and"')[1] == Comparison("t", ">", "é and")


@pytest.mark.parametrize(
    "text",
    [
        "", "height", "height >= ", "a > 1 or b > 2", "a > [1]", "a > b", "a > 1 and", "f(x)",
        f'[{{"column": "a", "low": 1{"0" * 400}}}]',
    ],
)  # fmt: skip
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
    assert mask(table, parsed("h < 99999999999999999999")).tolist() == [True, False, True]
    lists = arrow.table({"l": [[1]]})
    for condition in ("l < '[2]'", "l == 1"):
        with raises(ValueError, "where: l: expected a value to compare list<item: int64> with"):
            mask(lists, parsed(condition))
        assert not parsed(condition)[0].accepts([1])


def test_a_list_is_the_form_of_a_page() -> None:
    """A value is named by its label, and numbers by a range, of which each end may be open."""
    assert parsed('[{"column": ".cls", "value": 3}, {"column": "h", "low": 1}]') == (
        Comparison(".cls", "is", "3"),
        Comparison("h", "in", (1.0, float("inf"))),
    )
    assert parsed("[]") == ()


NOWHERE = (
    '[{"column": "t", "low": 1}]', '[{"column": "ok", "value": "1"}]',
    '[{"column": "l", "low": 1}]', "none == 'x'", """h == '"2"'""", """l == '"[1]"'""",
)  # fmt: skip


@pytest.mark.parametrize(
    "condition",
    [
        "h >= 2", "h < 99999999999999999999", 'nul == "a\\u0000"', "nul > 'a'",
        "h != 1", "h < 3 and h > 1", "t == 'b'", "t <= 'b'", "ok == true",
        '[{"column": "h", "low": 2, "high": 3}]', '[{"column": "h", "value": "2"}]',
        '[{"column": "t", "value": null}]', '[{"column": "ok", "value": "false"}]',
        '[{"column": "t", "low": 1}]', '[{"column": "ok", "value": true}]',
        "bin == 'ab1'", "bin > 'ab'", '[{"column": "bin", "value": "ab1"}]',
        """o == '{"x":1}'""", """o != '{"x":1}'""", """o == '{"s":"\\ud800"}'""",
        """[{"column": "o", "value": "{\\"x\\":1}"}]""", '[{"column": "o", "value": {"x": 1}}]',
        "m == 1", "m != 1.0", '[{"column": "m", "value": "1"}]',
        '[{"column": "m", "value": "1.0"}]', '[{"column": "m", "value": 2.5}]',
        '[{"column": "ok", "value": "1"}]', "ok != false",
        "l == '[1]'", "l != '[1,2.5]'", "l == '[1.0,2.5]'",
        '[{"column": "l", "value": "[1]"}]', '[{"column": "l", "value": [1, 2.5]}]',
        '[{"column": "l", "value": null}]', '[{"column": "l", "low": 1}]',
        """w == '["a"]'""", """[{"column": "w", "value": "[\\"a\\",\\"b\\"]"}]""", "none == 'x'",
    ],
)  # fmt: skip
def test_values_and_columns_meet_the_same_conditions(condition: str) -> None:
    """A sample that a scan reads is selected where a row of a table would be."""
    arrow = optional("pyarrow")
    rows: dict[str, list[Any]] = {
        "h": [1, None, 3, 2],
        "t": ["a", "b", None, "c"],
        "ok": [True, False, None, True],
        "nul": ["a\0", "a", None, "b"],
        "bin": [b"ab1", None, b"\xff", b"ab"],
        "o": [{"x": 1}, {"y": [1.0]}, None, {"s": "\ud800"}],
        "m": [1, 2.5, None, 1.0],
        "l": [[1], [1, 2.5], None, []],
        "w": [["a"], ["a", "b"], None, []],
        "none": [None] * 4,
    }
    columns = {
        name: column_of(name, layers_of(values, _unexpected), 4, "raise", str)
        for name, values in rows.items()
    }
    comparisons = parsed(condition)
    accepted = [
        all(each.accepts(rows[each.column][row]) for each in comparisons) for row in range(4)
    ]
    assert mask(arrow.table(columns), comparisons).tolist() == accepted
    assert any(accepted) == (condition not in NOWHERE)


def test_columns_of_other_types() -> None:
    """Tables that others made have dictionaries, decimals and small types; dates are refused."""
    arrow = optional("pyarrow")
    table = arrow.table(
        {
            "kind": arrow.array(["a", "b", None]).dictionary_encode(),
            "price": arrow.array([1, 2, None], arrow.decimal128(5, 2)),
            "half": arrow.array(np.array([1, 2, np.nan], np.float16)),
            "day": arrow.array([1, 2, None], arrow.date32()),
        }
    )
    for condition in ("kind == 'b'", "price > 1.5", "half == 2", '[{"column": "half", "low": 2}]'):
        assert mask(table, parsed(condition)).tolist() == [False, True, False]
    with raises(ValueError, "where: day: expected a value to compare date32[day] with"):
        mask(table, parsed("day > 1"))


def _unexpected(at: int, error: Exception) -> None:
    raise AssertionError(at) from error


def test_a_number_is_no_text() -> None:
    """A comparison with a value of another kind accepts nothing."""
    (with_number,), (with_text,), (with_bool,) = map(parsed, ("x < 5", "x != 'a'", "x == true"))
    assert [with_number.accepts(value) for value in (4, "4", None, [4])] == [True] + [False] * 3
    assert [with_text.accepts(value) for value in ("b", 4, None)] == [True, False, False]
    assert [with_bool.accepts(value) for value in (True, False, 1)] == [True, False, False]
    assert not with_number.accepts(value=False)


def test_a_class_that_does_not_exist_is_an_error() -> None:
    """The error says which classes there are; a column of a table may have other texts."""
    classes = ["cat", "dog", "bird"]
    assert parsed(".cls == 'dog'", classes)[0].number == 1
    with raises(ValueError, "where: .cls", "cat, dog, bird", "found 'zebra'"):
        parsed(".cls == 'zebra'", classes)
    with raises(ValueError, "such as bird, found 'birds'"):
        parsed(".cls != 'birds'", classes)
    assert parsed("label == 'zebra' and .cls == '7' and .txt == 'zebra'", classes)


def test_equal_values_have_one_label() -> None:
    """5 and 5.0 are one button of the page, also in lists; 5.5, true and texts are others."""
    assert label_of(5.0) == label_of(5) == "5"
    assert label_of([5.0, [2.5]]) == label_of([5, [2.5]])
    assert label_of(-0.0) == label_of(0)
    assert len({label_of(value) for value in (5, 5.5, True, "5.0", 1e300, float("nan"))}) == 6
