"""Conditions → the samples that satisfy them, as far as a scan has come; and tallies of columns.

Filters by columns of the saved table are applied first: a scan reads only what they leave.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from wids.browsing.conditions import Conditions, Filter, matching
from wids.browsing.page_columns import PageColumns, path_of
from wids.browsing.rows import Rows, ShardRows
from wids.browsing.tally import Tally

MAX_HITS: Final = 1_000_000
"""Samples that a search finds; more are not looked for."""
MAX_TALLIED: Final = 2_000_000
"""Samples whose values are counted by a scan."""


class Hits:
    """The samples that satisfy conditions.

    Args:
        conditions: What they must have.
        columns: The columns of the dataset.

    Attributes:
        fields: The fields whose values are decoded.
        found: Their indices so far, ascending.
        needs_scan: Whether samples have to be read to answer.

    Raises:
        ValueError: A filter names no column.
    """

    def __init__(self, conditions: Conditions, columns: PageColumns) -> None:
        saved = [each for each in conditions.filters if columns.is_saved(each.column)]
        self._mask = _common_mask(saved, columns)
        rest = tuple(each for each in conditions.filters if each not in saved)
        self._paths = [path_of(name) for name in dict.fromkeys(each.column for each in rest)]
        self.fields = tuple(dict.fromkeys(path.field for path in self._paths))
        self._conditions = replace(conditions, filters=rest)
        self.needs_scan = bool(self._conditions)
        self.found = array("q")
        if not self.needs_scan and self._mask is not None:
            self.found.extend(np.flatnonzero(self._mask)[:MAX_HITS].tolist())

    def wanted(self, start: int, rows: Rows) -> Rows:
        """Return the samples that the saved table does not rule out."""
        if not self.needs_scan:
            return rows[:0]
        return rows if self._mask is None else rows[self._mask[start + rows]]

    def visit(self, start: int, shard: ShardRows, rows: Rows) -> bool:
        """Add the samples that satisfy the conditions; return whether these are too many."""
        found = matching(self._conditions, self._paths, shard, rows)
        self.found.extend((found + start).tolist())
        return len(self.found) >= MAX_HITS


def _common_mask(filters: Sequence[Filter], columns: PageColumns) -> npt.NDArray[np.bool_] | None:
    masks = [columns.mask(each) for each in filters]
    return np.logical_and.reduce(masks) if masks else None


class ColumnTally:
    """How the values of a column are distributed.

    Args:
        name: The path of the column.

    Attributes:
        fields: The field whose values are decoded.
        tally: The values so far.

    Raises:
        ValueError: It is not a path to a value.
    """

    def __init__(self, name: str) -> None:
        self._path = path_of(name)
        self.fields = (self._path.field,)
        self.tally = Tally()
        self._num_seen = 0

    def wanted(self, start: int, rows: Rows) -> Rows:  # noqa: ARG002 - as a visitor
        """Return all samples."""
        return rows

    def visit(self, start: int, shard: ShardRows, rows: Rows) -> bool:  # noqa: ARG002 - as a visitor
        """Count the values of samples; return whether these are enough."""
        self.tally.add(shard.values(self._path, rows))
        self._num_seen += len(rows)
        return self._num_seen >= MAX_TALLIED
