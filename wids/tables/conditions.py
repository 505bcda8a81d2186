"""Turn conditions on columns, as people type them or a page sends them, into matching samples.

People type comparisons with numbers or texts, joined by ``and``: ``height >= 256 and .cls == 3``. A
page sends a JSON list of columns, each with a value or a range of numbers. There is no other
language, so nothing is ever executed. `Comparison` evaluates both forms, for one value or for a
column: bytes as text, objects and lists as their compact JSON, numbers whether they are stored as
integers or floats. Lists have no order. A scan and a table select the same samples, unless a column
has values of several types, or of one that the value cannot be compared with: ``--where`` refuses
these, and a scan compares value by value, where one of another type meets no comparison.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wids.shards.sample_access import IndexedDataset
from wids.shards.specs.model import class_name, is_of_classes
from wids.storage.sizes import first_of
from wids.tables.column_values import INDEX, KEY
from wids.tables.columns import json_text
from wids.tables.table import read_table
from wids.tables.table_file import load_table

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_LABEL: Final = 100
_MAX_NAMED: Final = 5
_START: Final = 60
_END: Final = 25

_SIGNS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}

_EQUALITY: Final = frozenset(("==", "!="))
"""The signs that compare lists, which have no order."""

_MALFORMED: Final = (AttributeError, KeyError, TypeError, ValueError, RecursionError, OverflowError)
"""Errors of lists that are no conditions; the last one of a bound that exceeds any float."""

_COLUMN: Final = re.compile(r"[.\w][^\s<>=!]*")
_DIGITS: Final = re.compile(r"0|[1-9][0-9]*")
_COMPARISON: Final = re.compile(
    rf"""\s*(?P<column>{_COLUMN.pattern})\s*(?P<operator>[<>]=?|[=!]=)\s*
    (?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"']+)\s*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Comparison:
    """What the value of a column must be.

    Attributes:
        column: The name of the column.
        sign: ``"=="``, ``"!="``, ``"<="``, ``">="``, ``"<"`` or ``">"``, which no missing value
            meets; ``"is"`` for the value with a label; ``"in"`` for numbers in a range.
        value: The value to compare with. For ``"is"`` the label as `label_of` returns it, None for
            samples without a value. For ``"in"`` the bounds, both included.
        number: The number of the class that the value names, for columns of numbers; or None.
    """

    column: str
    sign: str
    value: Any
    number: int | None = None

    def accepts(self, value: Any) -> bool:
        """Return whether a value meets the comparison."""
        if self.sign == "is":
            return self._has_label(value, self.value)
        if isinstance(value, list | tuple):
            is_comparable = self.sign in _EQUALITY and isinstance(self.value, str)
            is_equal = is_comparable and self._has_label(value, label_of(self.value))
            return is_comparable and is_equal == (self.sign == "==")
        value = json_text(value, str) if isinstance(value, Mapping) else value
        wanted = self.wanted(float if is_number(value) else type(value))
        return wanted is not None and bool(self.holds(value, wanted))

    def wanted(self, kind: type) -> Any:
        """Return what values of a type are compared with, floats for all numbers; None if nothing.

        Numbers of classes are compared with the number of the class that is named.
        """
        value = self.value
        if kind is float:
            is_comparable = self.sign == "in" or is_number(value)
            return self.number if self.number is not None else value if is_comparable else None
        if kind is bytes and isinstance(value, str):
            return value.encode("utf-8", "surrogatepass")
        return value if kind in (str, bool) and isinstance(value, kind) else None

    def holds(self, values: Any, wanted: Any) -> Any:
        """Return whether a value, or each of an array, compares so with what is `wanted`."""
        if self.sign == "in":
            low, high = wanted
            return (low <= values) & (values <= high)
        return _SIGNS[self.sign](values, wanted)

    def _has_label(self, value: Any, label: str | None) -> bool:
        """Return whether a value has a label, or is the number, or the list, that is stated.

        A table with 1 and 2.5 in a column, or in a list, has 1.0 there, and a sample has 1.
        """
        own = label_of(value)
        is_candidate = is_number(value) or isinstance(value, list | tuple)
        return own == label or (is_candidate and own == self._stated_label)

    @cached_property
    def _stated_label(self) -> str | None:
        """The label of the value that the text has as JSON; None if it is not JSON, or a text."""
        try:
            stated = json.loads(self.value or "null")
            return None if isinstance(stated, str) else label_of(stated)
        except (TypeError, ValueError, RecursionError):
            return None


def parsed(text: str, classes: Sequence[str] = ()) -> tuple[Comparison, ...]:
    """Return the comparisons of a condition, in either form.

    Args:
        text: The condition.
        classes: Names of classes by their numbers, which ``==`` and ``!=`` may compare with.

    Raises:
        ValueError: It is not a condition.
    """
    if text.startswith(("[", "{")):
        return _listed(text)
    comparisons, at = [], 0
    while True:
        match = _COMPARISON.match(text, at)
        if match is None:
            raise _not_a_condition(text, text[at:])
        column, sign, value = match["column"], match["operator"], _value(text, match["value"])
        is_name = sign in _EQUALITY and isinstance(value, str) and is_of_classes(column)
        number = classes.index(value) if is_name and value in classes else None
        # A column of a table may have other texts; fields of this name have numbers.
        if is_name and classes and number is None and column[:1] == "." and not value.isdigit():
            raise _no_class(column, value, classes)
        comparisons.append(Comparison(column, sign, value, number))
        at = match.end()
        if at == len(text):
            return tuple(comparisons)
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


def _listed(text: str) -> tuple[Comparison, ...]:
    """Return the comparisons of a JSON list."""
    try:
        items = json.loads(text)
        if not isinstance(items, list):
            raise TypeError("expected a list")
        return tuple(map(_filter, items))
    except _MALFORMED as error:
        raise _not_a_condition(text, text) from error


def _filter(item: dict[str, Any]) -> Comparison:
    if "value" in item:
        value = item["value"]
        label = value if isinstance(value, str) else label_of(value)
        return Comparison(str(item["column"]), "is", label)
    low, high = item.get("low"), item.get("high")
    low = -math.inf if low is None else float(low)
    high = math.inf if high is None else float(high)
    if math.isnan(low) or math.isnan(high):
        raise ValueError("expected numbers")
    return Comparison(str(item["column"]), "in", (low, high))


def as_typed(text: str, classes: Sequence[str] = ()) -> str:
    """Return a condition of a page as people type it, where that means the same; else as it is."""
    if not text.startswith("["):
        return text
    parts = [_as_typed(comparison, classes) for comparison in parsed(text)]
    return " and ".join(parts) if parts and all(parts) else text


def _as_typed(comparison: Comparison, classes: Sequence[str]) -> str:
    """Return a comparison as people type it; ``""`` if nothing that they can type is the same."""
    column, value = comparison.column, comparison.value
    if not _COLUMN.fullmatch(column):
        return ""
    if comparison.sign == "in":
        bounds = zip((">=", "<="), value, strict=True)
        texts = [(sign, repr(bound)) for sign, bound in bounds if math.isfinite(bound)]
        return " and ".join(f"{column} {sign} {text.removesuffix('.0')}" for sign, text in texts)
    name = class_name(column, value or "", classes)
    is_digits = column.startswith(".") and _DIGITS.fullmatch(value or "")
    if name and is_digits and classes.index(name) == int(value):
        return f"{column} == {json.dumps(name, ensure_ascii=False)}"
    # Values of a field are numbers where it is one of classes; others may be texts of digits.
    if is_digits and is_of_classes(column):
        return f"{column} == {value}"
    if name or "\\x" in (value or ""):  # shown so: it may be another text, or bytes
        return ""
    is_plain = value and len(value) <= _MAX_LABEL and comparison._stated_label is None  # noqa: SLF001
    return f"{column} == {json.dumps(value, ensure_ascii=False)}" if is_plain else ""


def _not_a_condition(text: str, rest: str) -> ValueError:
    return ValueError(
        "where: expected comparisons joined by `and`, such as .json/height >= 256 and "
        '.txt != \'a cat\', or a list such as [{"column": ".cls", "value": "3"}, {"column": '
        f'".json/n", "low": 1, "high": 9}}], found {rest!r:.80} in {text!r:.200}'
    )


def label_of(value: Any) -> str | None:
    """Return a value as text that equal values share, and no others; None for nothing.

    A long text is represented by its beginning and its end, with its length and a digest, which
    keep it apart from others that begin and end alike.
    """
    if value is None or isinstance(value, str):
        text = value
    elif isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
    else:
        text = json_text(_whole(value), str)
    if text is None or len(text) <= _MAX_LABEL:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:_START]}…{text[-_END:]} ({len(text):,} characters, {digest})"


def _whole(value: Any) -> Any:
    """Return 5 for 5.0, also in lists, since they are equal; other values as they are."""
    if isinstance(value, list | tuple):
        return list(map(_whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_number(value: Any) -> bool:
    """Return whether a value is a number; it may be infinite, or exceed any float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def mask(
    columns: Mapping[str, pa.ChunkedArray] | pa.Table, comparisons: Sequence[Comparison]
) -> npt.NDArray[np.bool_]:
    """Return which rows meet all comparisons.

    Args:
        columns: Columns of a table by their names.
        comparisons: The comparisons.

    Raises:
        ValueError: A column cannot be compared with a value.
    """
    met = [_met(columns[comparison.column], comparison) for comparison in comparisons]
    result: npt.NDArray[np.bool_] = np.logical_and.reduce(met)
    return result


def _met(column: pa.ChunkedArray, comparison: Comparison) -> npt.NDArray[np.bool_]:
    """Return which values of a column meet a comparison, as `Comparison.accepts` does."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = isinstance(comparison.value, str) and comparison.sign in _EQUALITY
    if pa.types.is_nested(column.type) and (is_text or comparison.sign not in _SIGNS):
        return np.array([comparison.accepts(value) for value in column.to_pylist()], bool)
    if comparison.sign == "is":
        return _labelled(column, comparison)
    kind = _kind_of(column.type)
    wanted = comparison.wanted(kind)
    if wanted is None and comparison.sign != "in" and not pa.types.is_null(column.type):
        raise ValueError(
            f"where: {comparison.column}: expected a value to compare {column.type} with, found "
            f"{comparison.value!r}"
        )
    is_there = np.array(column.is_valid(), bool)
    met = np.zeros(len(column), bool)
    if wanted is not None:
        # As an object, or numpy would cut NULs at the end of a text.
        wanted = np.array(wanted, object) if kind in (str, bytes) else wanted
        met[is_there] = comparison.holds(column.drop_null().to_numpy(), wanted)
    return met


def _kind_of(arrow_type: pa.DataType) -> type:
    """Return the Python type of the values of a column, float for all numbers."""
    from pyarrow import types

    kinds = {
        float: (types.is_integer, types.is_floating, types.is_decimal),
        bool: (types.is_boolean,),
        str: (types.is_string, types.is_large_string),
        bytes: (types.is_binary, types.is_large_binary),
    }
    found = (kind for kind, tests in kinds.items() if any(test(arrow_type) for test in tests))
    return next(found, object)


def _labelled(column: pa.ChunkedArray, comparison: Comparison) -> npt.NDArray[np.bool_]:
    """Return which values have a label. Each distinct value is compared once."""
    import pyarrow as pa

    masks = [np.empty(0, bool)]
    for chunk in column.dictionary_encode().chunks:
        accepted = pa.array(map(comparison.accepts, chunk.dictionary.to_pylist()), pa.bool_())
        found = accepted.take(chunk.indices).fill_null(comparison.accepts(None))
        masks.append(np.asarray(found.to_numpy(zero_copy_only=False), bool))
    return np.concatenate(masks)


def met_in(dataset: IndexedDataset, text: str) -> npt.NDArray[np.bool_]:
    """Return which samples of a dataset or view meet a condition, as text.

    Columns that are paths are read; others are those of the saved table.

    Raises:
        ValueError: It is not a condition, or on columns that are not there.
        WidsError: A column cannot be read.
    """
    comparisons = parsed(text, dataset.spec.classes)
    names = {comparison.column for comparison in comparisons}
    paths = sorted(name for name in names if name.startswith("."))
    saved = names - {*paths, INDEX, KEY}
    tables = [_saved(dataset, saved)] if saved else []
    if paths or not saved:  # the index and the keys are columns of both
        tables.append(read_table(dataset.reader, dataset.positions, paths))
    # Each has a row for each sample, in their order.
    columns = {name: table[name] for table in tables for name in table.column_names}
    for each in comparisons:
        is_name = each.sign in _EQUALITY and isinstance(each.value, str) and each.number is None
        is_number = _kind_of(columns[each.column].type) is float
        if dataset.spec.classes and is_name and is_number and is_of_classes(each.column):
            raise _no_class(each.column, each.value, dataset.spec.classes)
    return np.ones(len(tables[0]), bool) & mask(columns, comparisons)


def _no_class(column: str, value: str, classes: Sequence[str]) -> ValueError:
    near = get_close_matches(value, classes)
    some = ", ".join(near) if near else first_of(classes, _MAX_NAMED)
    return ValueError(
        f"where: {column}: expected the name of a class, such as {some}, found {value!r:.80}"
    )


def _saved(dataset: IndexedDataset, names: set[str]) -> pa.Table:
    """Return the saved table of a dataset, which has columns of these names."""
    table = load_table(dataset)
    missing = sorted(names - set(table.column_names))
    if missing:
        raise ValueError(
            f"--where: expected columns of the dataset's table ({', '.join(table.column_names)}) "
            f"or paths such as .json/height, found {', '.join(missing)}"
        )
    return table
