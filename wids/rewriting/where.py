"""A condition on columns, as text → the indices of the samples that meet it.

``height >= 256 and .cls == 3``: comparisons of columns with numbers or texts, joined by ``and``. No
other language, so that nothing has to be executed.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

_FUNCTIONS: Final = {
    "==": "equal", "!=": "not_equal", "<=": "less_equal", ">=": "greater_equal",
    "<": "less", ">": "greater",
}  # fmt: skip
"""The functions of ``pyarrow.compute`` by their signs."""

_COMPARISON: Final = re.compile(
    r"""\s*(?P<column>[.\w][^\s<>=!]*)\s*(?P<operator>[<>]=?|[=!]=)\s*
    (?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"']+)\s*""",
    re.VERBOSE,
)


class Comparison(NamedTuple):
    """One comparison of a column with a value."""

    column: str
    operator: str
    value: Any


def parsed(text: str) -> list[Comparison]:
    """Return the comparisons of a condition.

    Raises:
        ValueError: It is not a condition.
    """
    comparisons, at = [], 0
    while True:
        match = _COMPARISON.match(text, at)
        if match is None:
            raise _not_a_condition(text, text[at:])
        comparisons.append(
            Comparison(match["column"], match["operator"], _value(text, match["value"]))
        )
        at = match.end()
        if at == len(text):
            return comparisons
        joint = re.compile(r"and\s").match(text, at)
        if joint is None:
            raise _not_a_condition(text, text[at:])
        at = joint.end()


def _value(text: str, written: str) -> Any:
    if written.startswith("'"):
        return written[1:-1]
    try:
        value = json.loads(written)
    except ValueError:
        raise _not_a_condition(text, written) from None
    if isinstance(value, list | dict) or value is None:
        raise _not_a_condition(text, written)
    return value


def _not_a_condition(text: str, rest: str) -> ValueError:
    return ValueError(
        "where: expected comparisons joined by `and`, such as .json/height >= 256 and "
        f".txt != 'a cat', found {rest!r:.80} in {text!r:.200}"
    )


def mask(table: Any, comparisons: list[Comparison]) -> npt.NDArray[np.bool_]:
    """Return which rows of a table meet all comparisons; a missing value meets none.

    Args:
        table: A ``pyarrow.Table`` that has the columns.
        comparisons: The comparisons.

    Raises:
        ValueError: A column cannot be compared with the value.
    """
    from pyarrow import ArrowInvalid, ArrowNotImplementedError, compute

    result = np.ones(len(table), bool)
    for column, sign, value in comparisons:
        try:
            met = compute.call_function(_FUNCTIONS[sign], [table[column], value])
        # The last two for numbers that fit no type of Arrow.
        except (ArrowInvalid, ArrowNotImplementedError, TypeError, OverflowError):
            raise ValueError(
                f"where: {column}: expected a value to compare {table.schema.field(column).type} "
                f"with, found {value!r}"
            ) from None
        result &= met.fill_null(fill_value=False).to_numpy()
    return result
