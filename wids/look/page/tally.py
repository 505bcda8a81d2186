"""Count how often each value of a column occurs, and how numbers are distributed.

Values arrive in parts, in any order, while other threads read the counts: from a column of a table,
or from samples that a scan visits.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wids.look.distributions import bin_counts, is_numeric
from wids.look.page.hits import Hits
from wids.look.page.rows import Rows, ShardRows
from wids.tables.column_paths import ColumnPath
from wids.tables.conditions import is_number, label_of

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_DISTINCT: Final = 20_000
"""Different values that are counted one by one."""
_MAX_LISTED: Final = 60
"""Values to list, the most frequent ones."""
_MAX_CHIPS_OF_NUMBERS: Final = 24
"""More different numbers than this are shown as a histogram."""
_NUM_BINS: Final = 32
_MAX_FLOAT: Final = sys.float_info.max
"""An integer may exceed it, which `isfinite` refuses."""
MAX_TALLIED: Final = 2_000_000
"""Samples whose values are counted by a scan."""


class Tally:
    """The values of a column that are known so far. Safe to use from any thread.

    Args:
        path: Where a scan finds the values; None if it does not read them.
        column: The values of all samples of the dataset instead, or None.
        hits: The samples that count; None for all.

    Attributes:
        fields: The fields whose values a scan decodes.
    """

    def __init__(
        self,
        path: ColumnPath | None = None,
        column: pa.ChunkedArray | None = None,
        hits: Hits | None = None,
    ) -> None:
        own = () if path is None else (path.field,)
        self.fields = tuple(dict.fromkeys((*own, *(() if hits is None else hits.fields))))
        self._path = path
        self._column = column
        self._hits = hits
        self._num_visited = 0
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._num_values = 0
        self._num_nulls = 0
        self._num_uncounted = 0
        self._is_numeric = True
        self._numbers: list[npt.NDArray[np.float64]] = []

    def wanted(self, start: int, rows: Rows) -> Rows:
        """Return the samples that may count."""
        return rows if self._hits is None else self._hits.possible(start, rows)

    def visit(self, start: int, shard: ShardRows, rows: Rows) -> bool:
        """Add the values of samples; return whether these are enough."""
        self._num_visited += len(rows)
        rows = rows if self._hits is None else self._hits.matching(shard, rows)
        if self._column is not None:
            self.add_column(self._column.take(start + rows))
        elif self._path is not None:
            self._add_parts(shard.values(self._path, rows))
        return self._num_visited >= MAX_TALLIED

    def _add_parts(self, parts: Iterable[list[Any]]) -> None:
        """Add values of some samples, a few at a time; None is a sample without one."""
        counts: Counter[str | None] = Counter()
        numbers: list[float] | None = []
        for values in parts:
            counts.update(map(label_of, values))
            if numbers is not None and all(v is None or is_number(v) for v in values):
                numbers += [v for v in values if v is not None and abs(v) <= _MAX_FLOAT]
            else:
                numbers = None
            del values  # or they would stay in memory while the next ones are decoded
        self._add(counts.items(), None if numbers is None else np.array(numbers, np.float64))

    def add_column(self, column: pa.ChunkedArray) -> None:
        """Add all values of a column of a table."""
        import pyarrow as pa

        if pa.types.is_nested(column.type):  # Arrow counts no lists
            self._add_parts(chunk.to_pylist() for chunk in column.chunks)
            return
        found = column.value_counts()
        labels = map(label_of, found.field("values").to_pylist())
        numbers = None
        if is_numeric(column.type):
            numbers = column.drop_null().to_numpy().astype(np.float64)
            numbers = numbers[np.isfinite(numbers)]
        self._add(zip(labels, found.field("counts").to_pylist(), strict=True), numbers)

    def _add(
        self, counts: Iterable[tuple[str | None, int]], numbers: npt.NDArray[np.float64] | None
    ) -> None:
        """Add labels with their counts, and their values if all of them are numbers."""
        with self._lock:
            for label, count in counts:
                if label is None:
                    self._num_nulls += count
                    continue
                self._num_values += count
                if label in self._counts or len(self._counts) < _MAX_DISTINCT:
                    self._counts[label] += count
                else:
                    self._num_uncounted += count
            self._is_numeric = self._is_numeric and numbers is not None
            if self._is_numeric and numbers is not None:
                self._numbers.append(numbers)

    def summary(self, num_classes: int = 0) -> dict[str, Any]:
        """Return what a page shows of the column.

        ``values`` are labels with counts, numbers ascending and others by frequency; ``bins`` is a
        histogram of numbers that are too many to list, unless they are of classes with names.

        Args:
            num_classes: Classes that have names, all of which are listed.
        """
        with self._lock:
            return self._summary(num_classes)

    def _summary(self, num_classes: int) -> dict[str, Any]:
        distinct = len(self._counts)
        numbers = np.concatenate([np.empty(0), *self._numbers]) if self._is_numeric else np.empty(0)
        is_numeric = len(numbers) > 0
        summary: dict[str, Any] = {
            "num_values": self._num_values,
            "num_nulls": self._num_nulls,
            "num_distinct": distinct,
            "is_exact": not self._num_uncounted,
            "is_numeric": is_numeric,
            "values": [],
            "bins": [],
        }
        if is_numeric:
            summary |= {"low": float(numbers.min()), "high": float(numbers.max())}
        if is_numeric and distinct > max(_MAX_CHIPS_OF_NUMBERS, num_classes):
            return summary | {"bins": bin_counts(numbers, _NUM_BINS).tolist()}
        listed = self._counts.most_common(max(_MAX_LISTED, num_classes))
        if is_numeric:
            listed.sort(key=lambda pair: (pair[0] == "NaN", _number(pair[0])))
        return summary | {"values": [{"label": label, "count": n} for label, n in listed]}


def _number(label: str) -> float:
    """Return the number that a label states; one that is cut exceeds any float."""
    digits, is_cut, _ = label.partition("…")
    return math.copysign(math.inf, float(digits)) if is_cut else float(label)
