"""Find the samples of a dataset that satisfy the conditions of a page, during a scan.

A condition is a text in key or captions, a field, or the value of a column. Those on columns of the
saved table are applied first: a scan reads only what they leave.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.look.field_stats import MAX_TEXT_NBYTES, is_text
from wids.look.page.page_columns import PageColumns, path_of
from wids.look.page.rows import Rows, ShardRows
from wids.tables.column_paths import INDEX, KEY, ColumnPath
from wids.tables.conditions import Comparison, mask, parsed

MAX_HITS: Final = 1_000_000
"""Found samples after which a search stops."""
_WORD: Final = re.compile(r'"([^"]+)"|(\S+)')
_MAX_WORDS: Final = 20
_MAX_FILTERS: Final = 20


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
    filters: tuple[Comparison, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.words or self.field or self.filters)


def parse_conditions(query: dict[str, str], classes: Sequence[str] = ()) -> Conditions:
    """Return the conditions in the query of a page, which may name classes.

    Raises:
        ValueError: The filters are malformed.
    """
    words = tuple(quoted or word for quoted, word in _WORD.findall(query.get("q", "").casefold()))
    filters = parsed(query.get("where") or "[]", classes)
    if len(words) > _MAX_WORDS or len(filters) > _MAX_FILTERS:
        raise ValueError(
            f"expected at most {_MAX_WORDS} words and {_MAX_FILTERS} filters, found {len(words)} "
            f"and {len(filters)}"
        )
    return Conditions(words, query.get("field", ""), filters)


class Hits:
    """The samples that satisfy conditions.

    Args:
        conditions: What they must have.
        columns: The columns of the dataset.
        within: Which samples of the dataset to look at; None for all.
        max_hits: How many to find.

    Attributes:
        fields: The fields whose values are decoded.
        found: Their indices so far, ascending.
        needs_scan: Whether samples have to be read to answer.

    Raises:
        ValueError: A filter names no column.
    """

    def __init__(
        self,
        conditions: Conditions,
        columns: PageColumns,
        within: npt.NDArray[np.bool_] | None = None,
        max_hits: int = MAX_HITS,
    ) -> None:
        self._max_hits = max_hits
        saved = [each for each in conditions.filters if columns.is_saved(each.column)]
        found = {each.column: columns.column(each.column) for each in saved}
        self._mask = within
        if saved:
            met = mask(found, saved)
            self._mask = met if within is None else met & within
        rest = tuple(each for each in conditions.filters if each not in saved)
        names = dict.fromkeys(each.column for each in rest)
        self._paths = [path_of(name) for name in names if name not in (INDEX, KEY)]
        self.fields = tuple(dict.fromkeys(path.field for path in self._paths))
        self._conditions = replace(conditions, filters=rest)
        self.needs_scan = bool(self._conditions)
        self.found = array("q")
        if not self.needs_scan and self._mask is not None:
            self.found.extend(np.flatnonzero(self._mask)[:max_hits].tolist())

    def wanted(self, start: int, rows: Rows) -> Rows:
        """Return the samples that have to be read to answer."""
        return self.possible(start, rows) if self.needs_scan else rows[:0]

    def possible(self, start: int, rows: Rows) -> Rows:
        """Return the samples that neither the saved table nor their indices rule out."""
        rows = rows if self._mask is None else rows[self._mask[start + rows]]
        return _accepted(self._conditions, INDEX, rows, (start + rows).tolist())

    def visit(self, start: int, shard: ShardRows, rows: Rows) -> bool:
        """Add the samples that satisfy the conditions; return whether there are too many."""
        self.found.extend((self.matching(shard, rows) + start).tolist())
        return len(self.found) >= self._max_hits

    def matching(self, shard: ShardRows, rows: Rows) -> Rows:
        """Return which of some possible samples satisfy the conditions."""
        return _matching(self._conditions, self._paths, shard, rows)


def _matching(
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
        rows = rows[shard.members(conditions.field, rows)[0]]
    rows = _accepted(conditions, KEY, rows, map(shard.key, rows.tolist()))
    for path in paths:
        # A few values are in memory at a time.
        values = chain.from_iterable(shard.values(path, rows))
        rows = _accepted(conditions, path.name, rows, values)
    return _with_words(conditions.words, shard, rows) if conditions.words else rows


def _accepted(conditions: Conditions, column: str, rows: Rows, values: Iterable[Any]) -> Rows:
    """Return the samples whose values in a column satisfy the conditions."""
    filters = [each for each in conditions.filters if each.column == column]
    if not filters:
        return rows
    is_wanted = [all(each.accepts(value) for each in filters) for value in values]
    chosen: Rows = rows[np.array(is_wanted, bool)]
    return chosen


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
