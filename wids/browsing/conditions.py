"""The query of a page → what a sample must have; and samples of a shard → those that have it.

A condition is a text in key or captions, a field, or the value of a column.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from wids.browsing.rows import Rows, ShardRows
from wids.columns.column_paths import ColumnPath
from wids.looking.field_stats import MAX_TEXT_NBYTES, is_text

_WORD: Final = re.compile(r'"([^"]+)"|(\S+)')
_MAX_WORDS: Final = 20
_MAX_FILTERS: Final = 20
_MAX_LABEL: Final = 100
_START: Final = 60
_END: Final = 25


@dataclass(frozen=True)
class Filter:
    """What the value of a column must be: equal to a label, or a number in a range.

    Attributes:
        column: The name of the column.
        label: The value as `label_of` returns it; None for samples without a value.
        low, high: The range, both included; None for values by label.
    """

    column: str
    label: str | None = None
    low: float | None = None
    high: float | None = None

    def accepts(self, value: Any) -> bool:
        """Return whether a value is what is wanted."""
        if self.low is None or self.high is None:
            return label_of(value) == self.label
        return is_number(value) and self.low <= value <= self.high


@dataclass(frozen=True)
class Conditions:
    """What a sample must have, all of it.

    Attributes:
        words: Texts that its key or its captions contain, without regard to case.
        field: A field; ``""`` for none.
        filters: Values of columns.
    """

    words: tuple[str, ...] = ()
    field: str = ""
    filters: tuple[Filter, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.words or self.field or self.filters)


def parse_conditions(query: dict[str, str]) -> Conditions:
    """Return the conditions in the query of a page.

    Raises:
        ValueError: The filters are malformed.
    """
    words = tuple(quoted or word for quoted, word in _WORD.findall(query.get("q", "").casefold()))
    try:
        filters = _filters(json.loads(query.get("where") or "[]"))
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(
            'where: expected a list such as [{"column": ".cls", "value": "3"}, {"column": '
            f'".json/n", "low": 1, "high": 9}}], found {query["where"]:.200}'
        ) from error
    if len(words) > _MAX_WORDS or len(filters) > _MAX_FILTERS:
        raise ValueError(
            f"expected at most {_MAX_WORDS} words and {_MAX_FILTERS} filters, found {len(words)} "
            f"and {len(filters)}"
        )
    return Conditions(words, query.get("field", ""), filters)


def _filters(items: Any) -> tuple[Filter, ...]:
    if not isinstance(items, list):
        raise TypeError("expected a list")
    return tuple(map(_parsed, items))


def _parsed(item: dict[str, Any]) -> Filter:
    if "value" in item:
        return Filter(str(item["column"]), None if item["value"] is None else str(item["value"]))
    low, high = item.get("low"), item.get("high")
    low = -math.inf if low is None else float(low)
    high = math.inf if high is None else float(high)
    if math.isnan(low) or math.isnan(high):
        raise ValueError("expected numbers")
    return Filter(str(item["column"]), low=low, high=high)


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
        text = json.dumps(value, ensure_ascii=False, default=str, separators=(",", ":"))
    if text is None or len(text) <= _MAX_LABEL:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:_START]}…{text[-_END:]} ({len(text):,} characters, {digest})"


def is_number(value: Any) -> bool:
    """Return whether a value is a number; it may be infinite, or exceed any float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def matching(
    conditions: Conditions, paths: Sequence[ColumnPath], shard: ShardRows, rows: Rows
) -> Rows:
    """Return which samples of a shard satisfy the conditions.

    Args:
        conditions: What they must have.
        paths: The columns of filters that are to be read, each once.
        shard: The shard.
        rows: The samples to consider.
    """
    if conditions.field:
        rows = rows[shard.have(conditions.field, rows)]
    for path in paths:
        filters = [each for each in conditions.filters if each.column == path.name]
        is_wanted: list[bool] = []
        for values in shard.values(path, rows):
            is_wanted += [all(each.accepts(value) for each in filters) for value in values]
            del values  # or they would stay in memory while the next ones are decoded
        rows = rows[np.array(is_wanted, bool)]
    return _with_words(conditions.words, shard, rows) if conditions.words else rows


def _with_words(words: Sequence[str], shard: ShardRows, rows: Rows) -> Rows:
    missing = {row: _missing(words, shard.key(row).casefold()) for row in rows.tolist()}
    rest = np.array([row for row, lacks in missing.items() if lacks], np.int64)
    fields = [field for field in shard.fields if is_text(field)]
    for row, field, data in shard.read(fields, rest, MAX_TEXT_NBYTES):
        missing[row] = _missing(missing[row], _text_of(field, data).casefold())
    return np.array([row for row, lacks in missing.items() if not lacks], np.int64)


def _missing(words: Sequence[str], text: str) -> list[str]:
    return [word for word in words if word not in text]


def _text_of(field: str, data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    if "\\u" in text and field.lower().endswith("json"):
        try:
            return json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            return text
    return text
