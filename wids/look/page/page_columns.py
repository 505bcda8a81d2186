"""Find the columns that a page can filter by: those of a saved table, or those seen in samples.

A saved table on this machine answers at once, without a shard. Other columns are numbers, texts and
flags in the small structures of the first samples; their values have to be read by a scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wids.errors import DecodeError, WidsError
from wids.look.field_stats import CAPTION_EXTENSIONS, is_small, is_text
from wids.look.latest import latest
from wids.look.page.rows import MAX_VALUE_NBYTES
from wids.look.preview import Browsable, sample_sizes
from wids.shards.fields.codecs import extension
from wids.storage.transport import urls
from wids.tables.column_paths import ColumnPath, codec_of, parse_columns, path_text
from wids.tables.column_values import decoder_of
from wids.tables.table_file import Tabular, load_table, saved_columns

if TYPE_CHECKING:
    import pyarrow as pa

_NUM_SEEN: Final = 8
"""Samples that are searched for columns; they are on the first page."""
_MAX_SEEN: Final = 40
_MAX_DEPTH: Final = 3
_MAX_ROWS: Final = 20_000_000
"""Rows of a saved table of which columns are read; each takes some bytes of memory."""
_MAX_KEPT: Final = 4


@dataclass(frozen=True)
class SavedTable:
    """The saved table of a dataset.

    Attributes:
        columns: The names of its columns.
        problem: Why it is not used; ``""`` if it is.
    """

    columns: tuple[str, ...] = ()
    problem: str = ""


class PageColumns:
    """The columns of a dataset. Safe to use from any thread.

    Args:
        dataset: The dataset.

    Attributes:
        column: Returns the column of the saved table that has a name.
    """

    def __init__(self, dataset: Browsable) -> None:
        self._dataset = dataset
        self.column = latest(self._load, _MAX_KEPT)
        self._saved: SavedTable | None = None
        self._seen: tuple[str, ...] | None = None

    @property
    def saved(self) -> SavedTable:
        """The saved table, of which the names of columns are read once."""
        if self._saved is None:
            self._saved = _saved_table(self._dataset)
        return self._saved

    @property
    def seen(self) -> tuple[str, ...]:
        """Paths of columns in the first samples, which are read once; and all that were requested.

        Raises:
            WidsError: The samples cannot be read.
        """
        if self._seen is None:
            self._seen = tuple(dict.fromkeys(_paths_in_samples(self._dataset)))[:_MAX_SEEN]
        return self._seen

    def is_saved(self, name: str) -> bool:
        """Return whether the saved table has a column, so that nothing has to be scanned."""
        return name in self.saved.columns

    def _load(self, name: str) -> pa.ChunkedArray:
        assert isinstance(self._dataset, Tabular)  # noqa: S101 - or it has no saved table
        return load_table(self._dataset, [name])[name]


def path_of(name: str) -> ColumnPath:
    """Return the path of a column that is read from samples.

    Raises:
        ValueError: It is not a path to a value.
    """
    return parse_columns([name])[0]


def _saved_table(dataset: Browsable) -> SavedTable:
    table = dataset.spec.table
    if table is None or not isinstance(dataset, Tabular):
        return SavedTable()
    if not urls.is_local(table.url):
        return SavedTable(problem="The saved table is remote, and not fetched for this page.")
    if len(dataset) > _MAX_ROWS:
        return SavedTable(problem="The saved table is too long for this page.")
    try:
        return SavedTable(tuple(saved_columns(dataset)))
    except (WidsError, ModuleNotFoundError) as error:
        return SavedTable(problem=str(error))


def _paths_in_samples(dataset: Browsable) -> Iterator[str]:
    first = range(min(len(dataset), _NUM_SEEN))
    groups: dict[tuple[str, ...], list[int]] = {}
    for index in first:
        sizes = sample_sizes(dataset, index) or {}
        fields = tuple(f for f, n in sizes.items() if is_text(f) and is_small(f, n))
        # Captions are searched, and hardly ever equal.
        fields = tuple(f for f in fields if extension(f) not in CAPTION_EXTENSIONS and codec_of(f))
        groups.setdefault(fields, []).append(index)
    for fields, indices in groups.items():
        if not fields:
            continue
        with dataset.only(fields) as selection:
            for sample in selection.__getitems__(indices):
                for field in fields:
                    (value,) = decoder_of(field, MAX_VALUE_NBYTES)([bytes(sample[field])])
                    yield from _paths(field, value, ())


def _paths(field: str, value: Any, steps: Sequence[str]) -> Iterator[str]:
    """Yield the paths to plain values in a value."""
    if isinstance(value, dict) and len(steps) < _MAX_DEPTH:
        for name, item in value.items():
            if isinstance(name, str) and name:
                yield from _paths(field, item, (*steps, name))
    elif not isinstance(value, dict | list | DecodeError | None):
        yield path_text(field, steps)
