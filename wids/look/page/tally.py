"""Count the values of columns: as text about a table, and for a page while a scan finds them.

The text has, for numbers, quantiles and a histogram. Of few different values it states how often
each occurs, of texts and lists also how long they are. Whatever the values are, it has no character
that a terminal would interpret as a command.

For a page, values arrive in parts, in any order, while other threads read the counts. Nothing is
read here.
"""

from __future__ import annotations

import math
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wids.errors import printable
from wids.look.text import bar_text, labelled, shortened, table, text_width
from wids.storage.arrays import IntArray
from wids.storage.sizes import count_text
from wids.tables.column_values import ColumnPath
from wids.tables.conditions import is_number, label_of
from wids.tables.search import Hits, ShardRows

if TYPE_CHECKING:
    import pyarrow as pa


_MAX_COUNTED: Final = 12
"""Most different values that are listed with their counts."""
_QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_QUANTILE_NAMES: Final = ("least", "5%", "25%", "median", "75%", "95%", "most")
_NUM_BARS: Final = 40
_NUM_EIGHTHS: Final = 8
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_NUM_SMALL_BINS: Final = 12
_BAR_WIDTH: Final = 20
_VALUE_WIDTH: Final = 40
_END: Final = 12


def distributions_text(columns: pa.Table, width: int = 80, classes: Sequence[str] = ()) -> str:
    """Return the distribution of each column but ``__index__`` and ``__key__``, as text.

    Args:
        columns: A table of `ShardListDataset.table`, or any other Arrow table.
        width: Most characters of a line.
        classes: Names of classes, by their numbers.
    """
    texts = [
        "\n".join(shortened(line, width) for line in _lines(name, columns[name], classes))
        for name in columns.column_names
        if name not in ("__index__", "__key__")
    ]
    return "\n\n".join(texts)


def columns_text(columns: pa.Table, width: int = 80) -> str:
    """Return one line for each column but ``__index__`` and ``__key__``: its type and a small bar.

    The bar of numbers is their histogram, between the least and the most; that of other values
    their counts, most frequent first, with how many different ones there are.
    """
    rows = [
        (name, str(columns[name].type), *_ends_and_bar(columns[name].drop_null()))
        for name in columns.column_names
        if name not in ("__index__", "__key__")
    ]
    text = table(["column", "type", "least", "", "most"], rows)
    return "\n".join(shortened(line, width) for line in text.splitlines())


def _ends_and_bar(values: pa.ChunkedArray) -> tuple[str, str, str]:
    """Return the text left of a bar, the bar, and the text right of it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(values.type):
        values = pc.list_value_length(values)
    if is_numeric(values.type):
        numbers = _finite(values.to_numpy())
        if not len(numbers):
            return "", "", ""
        bins = _histogram(numbers.astype(np.float64), _NUM_SMALL_BINS)
        return _number_text(numbers.min().item()), bins, _number_text(numbers.max().item())
    if not len(values):
        return "", "", ""
    counts = np.sort(values.value_counts().field("counts").to_numpy())[::-1]
    bar = _blocks(counts[:_NUM_SMALL_BINS]) if len(counts) <= _MAX_COUNTED else ""
    return "", bar, f"{len(counts):,} different"


def _lines(name: str, column: pa.ChunkedArray, classes: Sequence[str]) -> Iterator[str]:
    """Yield the lines of one column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    nulls = f", {column.null_count:,} null" if column.null_count else ""
    yield printable(f"{name}: {column.type}, {count_text(len(column), 'row')}{nulls}")
    values = column.drop_null()
    if not len(values):
        return
    if pa.types.is_list(values.type):
        yield from _numbers("items", pc.list_value_length(values).to_numpy())
        return
    counts, num_different = _value_counts(values)
    if num_different <= _MAX_COUNTED:
        texts = [(labelled(name, printable(str(value)), classes), n) for value, n in counts]
        yield from _counted(texts, len(values))
    elif is_numeric(values.type):
        yield from _numbers("", values.to_numpy())
    else:
        yield f"  {num_different:,} different values; most frequent:"
        yield from _counted(counts[:3], len(values))
        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
        if any(is_kind(values.type) for is_kind in kinds):
            yield from _numbers("length", pc.binary_length(values).to_numpy())


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Return whether the values of an Arrow type are numbers."""
    import pyarrow as pa

    return bool(pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type))


def _value_counts(values: pa.ChunkedArray) -> tuple[list[tuple[Any, int]], int]:
    """Return the most frequent values with their counts, and how many different ones there are.

    Numbers are in ascending order if all of them are returned, others in that of their counts.
    """
    found = values.value_counts()
    counts = found.field("counts").to_numpy()
    order = np.argsort(-counts, kind="stable")[:_MAX_COUNTED]
    shown = found.field("values").take(order).to_pylist()
    pairs = list(zip(shown, counts[order].tolist(), strict=True))
    if len(pairs) == len(counts) and not any(isinstance(value, str | bytes) for value in shown):
        # NaN is not equal to itself, and comes last.
        pairs.sort(key=lambda pair: (pair[0] != pair[0], pair[0]))
    return pairs, len(counts)


def _counted(counts: list[tuple[Any, int]], total: int) -> Iterator[str]:
    """Yield a line for each value: how often it occurs, its share, and a bar."""
    most = max(count for _, count in counts)
    rows = [
        (
            _both_ends(printable(str(value))),
            f"{count:,}",
            _percent_text(count, total),
            bar_text(count / most, _BAR_WIDTH),
        )
        for value, count in counts
    ]
    yield from (f"  {line}" for line in table(["value", "rows", "share", ""], rows).splitlines())


def _both_ends(text: str) -> str:
    """Return a text with its beginning and its end, since texts that differ often begin alike."""
    if text_width(text) <= _VALUE_WIDTH:
        return text
    return shortened(text, _VALUE_WIDTH - _END) + text[-_END:]


def _percent_text(count: int, total: int) -> str:
    """Return a share as a percentage that is 0.0% or 100.0% only if that is exact."""
    tenths = count * 1000 // total if count * 2 > total else -(-count * 1000 // total)
    return f"{tenths / 10:.1f}%"


def _numbers(what: str, values: npt.NDArray[Any]) -> Iterator[str]:
    """Yield quantiles and a histogram of numbers."""
    finite = _finite(values)
    label = f"{what}: " if what else ""
    if len(finite) < len(values):
        yield f"  {label}{len(values) - len(finite):,} not finite"
    if not len(finite):
        return
    # Quantiles are values that occur, and so exact for integers of any size.
    quantiles = np.quantile(finite, _QUANTILES, method="inverted_cdf")
    # Divided first: the sum of extreme values exceeds any float.
    mean = float((finite.astype(np.float64) / len(finite)).sum())
    pairs = zip(_QUANTILE_NAMES, quantiles.tolist(), strict=True)
    texts = [f"{name} {_number_text(value)}" for name, value in pairs]
    yield f"  {label}{', '.join(texts)}; mean {_number_text(mean)}"
    low, high = quantiles[0].item(), quantiles[-1].item()
    bins = _histogram(finite.astype(np.float64))
    if bins:
        yield f"  {_number_text(low)} |{bins}| {_number_text(high)}"


def _finite(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _histogram(values: npt.NDArray[np.float64], num_bins: int = _NUM_BARS) -> str:
    """Return one character for each bin, as high as its share; a filled one is never blank.

    Empty if all values are equal as floats.
    """
    counts = bin_counts(values, num_bins)
    return _blocks(counts) if len(counts) > 1 else ""


def bin_counts(values: npt.NDArray[np.float64], num_bins: int) -> npt.NDArray[np.intp]:
    """Return how many values are in each of some bins of equal width; in one if all are equal."""
    quarters = values / 4  # the range of extreme values exceeds any float
    low, span = quarters.min(), quarters.max() - quarters.min()
    if not span:
        return np.array([len(values)])
    bins = ((quarters - low) / span * num_bins).astype(np.int64)
    return np.bincount(np.minimum(bins, num_bins - 1), minlength=num_bins)


def _blocks(counts: npt.NDArray[Any]) -> str:
    """Return one character for each count, as high as its share of the highest."""
    heights = -(-counts * _NUM_EIGHTHS // counts.max())
    return "".join(_BLOCKS[height] for height in heights.tolist())


def _number_text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


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

    def wanted(self, start: int, rows: IntArray) -> IntArray:
        """Return the samples that may count."""
        return rows if self._hits is None else self._hits.possible(start, rows)

    def visit(self, start: int, shard: ShardRows, rows: IntArray) -> bool:
        """Add the values of samples; return whether these are enough."""
        self._num_visited += len(rows)
        rows = rows if self._hits is None else self._hits.matching(shard, rows)
        if self._column is not None:
            self.add_column(self._column.take(start + rows))
        elif self._path is not None:
            self._add_values(shard.values_at(self._path, rows))
        return self._num_visited >= MAX_TALLIED

    def _add_values(self, values: Iterable[Any]) -> None:
        """Add values, of which few are in memory at a time; None is a sample without one."""
        counts: Counter[str | None] = Counter()
        numbers, is_numeric = array("d"), True
        for value in values:
            counts[label_of(value)] += 1
            if is_numeric and value is not None:
                is_numeric = is_number(value)
                if is_numeric and abs(value) <= _MAX_FLOAT:
                    numbers.append(value)
        self._add(counts.items(), np.asarray(numbers) if is_numeric else None)

    def add_column(self, column: pa.ChunkedArray) -> None:
        """Add all values of a column of a table."""
        import pyarrow as pa

        if pa.types.is_nested(column.type):  # Arrow counts no lists
            self._add_values(value for chunk in column.chunks for value in chunk.to_pylist())
            return
        found = column.value_counts()
        labels = map(label_of, found.field("values").to_pylist())
        numbers = None
        if is_numeric(column.type):
            numbers = _finite(column.drop_null().to_numpy().astype(np.float64))
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
            num_classes: The number of classes with names; all of them are listed.
        """
        with self._lock:
            counts = self._counts.copy()
            numbers = np.concatenate([np.empty(0), *(self._numbers if self._is_numeric else ())])
            distinct, is_numeric = len(counts), len(numbers) > 0
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
        listed = counts.most_common(max(_MAX_LISTED, num_classes))
        if is_numeric:
            listed.sort(key=lambda pair: (pair[0] == "NaN", _number(pair[0])))
        return summary | {"values": [{"label": label, "count": n} for label, n in listed]}


def _number(label: str) -> float:
    """Return the number that a label states; one that is cut exceeds any float."""
    digits, is_cut, _ = label.partition("…")
    return math.copysign(math.inf, float(digits)) if is_cut else float(label)
