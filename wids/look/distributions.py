"""Describe as text how the values of a column of a table are distributed.

Numbers: quantiles and a histogram. Few different values: how often each occurs. Texts and lists:
also how long they are. Nothing is read here; whatever the values are, the text has no character
that a terminal would interpret as a command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wids.errors import printable
from wids.look.text import bar_text, labelled, shortened, table, text_width
from wids.storage.sizes import count_text

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_COUNTED: Final = 12
"""Most different values that are listed with their counts."""
_QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_QUANTILE_NAMES: Final = ("least", "5%", "25%", "median", "75%", "95%", "most")
_NUM_BINS: Final = 40
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
        numbers = values.to_numpy()
        numbers = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
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
    counts = _value_counts(values)
    if len(counts) <= _MAX_COUNTED:
        texts = [(labelled(name, printable(str(value)), classes), n) for value, n in counts]
        yield from _counted(texts, len(values))
    elif is_numeric(values.type):
        yield from _numbers("", values.to_numpy())
    else:
        yield f"  {len(counts):,} different values; most frequent:"
        yield from _counted(counts[:3], len(values))
        if _has_length(values.type):
            yield from _numbers("length", pc.binary_length(values).to_numpy())


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Return whether the values of an Arrow type are numbers."""
    import pyarrow as pa

    return bool(pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type))


def _has_length(arrow_type: pa.DataType) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(is_kind(arrow_type) for is_kind in kinds)


def _value_counts(values: pa.ChunkedArray) -> list[tuple[Any, int]]:
    """Return the different values with their counts: numbers ascending if few, else by count."""
    found = values.value_counts()
    counts = found.field("counts").to_numpy()
    order = np.argsort(-counts, kind="stable")
    if len(order) > _MAX_COUNTED:
        shown = found.field("values").take(order[:_MAX_COUNTED]).to_pylist()
        rest: list[Any] = [None] * (len(order) - _MAX_COUNTED)
        return list(zip([*shown, *rest], counts[order].tolist(), strict=True))
    pairs = list(zip(found.field("values").to_pylist(), counts.tolist(), strict=True))
    if any(isinstance(value, str | bytes) for value, _ in pairs):
        return [pairs[at] for at in order.tolist()]
    # NaN is not equal to itself, and comes last.
    return sorted(pairs, key=lambda pair: (pair[0] != pair[0], pair[0]))


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
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
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


def _histogram(values: npt.NDArray[np.float64], num_bins: int = _NUM_BINS) -> str:
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
