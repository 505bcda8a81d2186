"""Save a table of all samples as a Parquet file beside the spec, and load it for the same shards.

A saved table is a cache that is checked, never an authority: one of other shards is refused.
specs/tables.md specifies the file.

Parquet's own checksums cover neither the footer nor the headers of pages, and a damaged one may
still be read, as other values (decision 0117). A column is checked without reading the others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wids.errors import TableError, WidsError, local_error
from wids.shards.positions import Positions
from wids.shards.read_options import cache_folder
from wids.shards.sample_access import IndexedDataset
from wids.shards.sidecars import discard, local_file
from wids.shards.specs.loader import Shards, load_with
from wids.shards.specs.model import DatasetSpec, SavedTable
from wids.shards.specs.saving import is_local_document, name_table
from wids.storage import files
from wids.storage.arrays import IntArray
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher
from wids.storage.transport import urls
from wids.tables.column_values import INDEX, KEY
from wids.tables.table import check_arrow, read_table

if TYPE_CHECKING:
    import pyarrow as pa


_TRAILER_NBYTES: Final = 8
"""The length of the footer and the magic, at the end of the file."""
_PIECE_NBYTES: Final = 1 << 20


def footer_checksum(source: Any) -> int:
    """Return the checksum of the footer of an open file, and of what follows it."""
    nbytes = source.seek(0, os.SEEK_END)
    start = max(nbytes - _TRAILER_NBYTES, 0)
    source.seek(start)
    start = max(start - int.from_bytes(source.read(4), "little"), 0)
    return _crc32(source, [(start, nbytes - start)])


def column_checksums(source: Any, metadata: Any) -> list[int]:
    """Return the checksums of all columns of an open file, located by its footer."""
    return [_crc32(source, _spans(metadata, n)) for n in range(metadata.num_columns)]


def damaged_column(
    source: Any, metadata: Any, expected: Sequence[int], names: Collection[str]
) -> str:
    """Return the first column whose bytes differ from the expected ones; ``""`` if none do.

    Args:
        source: The open file.
        metadata: Its parsed footer.
        expected: What `column_checksums` returned for it.
        names: The columns to look at.
    """
    for number, checksum in enumerate(expected):
        path = metadata.schema.column(number).path
        # A column with parts has several: "a.list.element". Those of a column named "a.b" are
        # compared too, which does no harm.
        is_wanted = any(path == name or path.startswith(f"{name}.") for name in names)
        if is_wanted and _crc32(source, _spans(metadata, number)) != checksum:
            return str(path)
    return ""


def _spans(metadata: Any, number: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of a column in each row group."""
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(number)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page:
            start = min(start, chunk.dictionary_page_offset)
        yield start, chunk.total_compressed_size


def _crc32(source: Any, spans: Iterable[tuple[int, int]]) -> int:
    crc32, value = files.fastest_crc32(), 0
    for start, nbytes in spans:
        source.seek(start)
        for at in range(0, nbytes, _PIECE_NBYTES):
            value = crc32(source.read(min(_PIECE_NBYTES, nbytes - at)), value)
    return value


_MIN_GROUP: Final = 1 << 16
_MAX_GROUP: Final = 1 << 20
"""Limits for rows of a row group: small shards share one, and a group is cut at the maximum."""

_METADATA: Final = b"wids"


def fingerprint(spec: DatasetSpec) -> str:
    """Return a digest of the shards of a spec: their names, counts, lengths and digests, in order.

    Names without their folders, so that a copy of the dataset elsewhere has the same fingerprint.
    """
    digest = hashlib.sha256()
    for shard in spec.shards:
        name = os.path.basename(urls.path_of(shard.url))
        facts = [name, shard.num_samples, shard.nbytes, shard.md5sum, shard.sha256]
        digest.update(json.dumps(facts).encode("ascii") + b"\n")
    return digest.hexdigest()[:32]


def save_table(
    table: pa.Table,
    dataset: IndexedDataset | Shards,
    output: str | os.PathLike[str],
    columns: Mapping[str, str] | None = None,
    *,
    allow_pipe: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetSpec:
    """Save a table of all samples for `load_table`, as ``wids table`` does, as a Parquet file.

    The file appears complete, or not at all. Columns may be added to the table before it is saved,
    such as predictions.

    Args:
        table: What the ``table`` method of the whole dataset returned: a row for each sample, in
            their order, with ``__index__`` and ``__key__``.
        dataset: The dataset, or its spec in any form that a dataset takes. A JSON document on this
            machine names the table from then on; its previous text stays beside it as ``.bak``.
        output: Path of the file, on this machine.
        columns: The paths by the names of their columns, if the table was made with a mapping.
        allow_pipe: Whether a spec that is passed may name ``pipe:`` commands.
        storage_options: As for `ShardListDataset`, if a spec is passed.

    Returns:
        The spec of the dataset, which names the table.

    Raises:
        TableError: The rows are not all samples of the dataset, in their order.
        ValueError: The output is not a path on this machine.
        ModuleNotFoundError: pyarrow is not installed.

    Example:
        >>> import wids
        >>> with wids.TarWriter("birds.tar") as writer:
        ...     for n in range(3):
        ...         _ = writer.write({"__key__": f"{n:03d}", "cls": n})
        >>> wids.build_spec(["birds.tar"]).save("birds.json")
        >>> with wids.ShardListDataset("birds.json") as dataset:
        ...     table = dataset.table([".cls"])
        >>> spec = wids.save_table(table, "birds.json", "birds.parquet")
        >>> wids.load_table("birds.json").column_names
        ['__index__', '__key__', '.cls']
    """
    check_arrow()
    spec, _, _ = _lookup(dataset, allow_pipe, storage_options)
    name = os.fspath(output)
    if not urls.is_local(name):
        raise ValueError(
            f"output: expected a file on this machine, found {urls.redact(name)}; save it here and "
            "copy it beside the published spec"
        )
    edges = dataset.reader.edges if isinstance(dataset, IndexedDataset) else _edges(spec, table)
    _check_rows(table, int(edges[-1]))
    paths = {name: name for name in table.column_names if name not in (INDEX, KEY)}
    path = os.path.abspath(urls.local_path(name))
    saved = _written(table, spec, edges, paths | dict(columns or {}), path)
    if isinstance(dataset, (str, os.PathLike)) and is_local_document(os.fspath(dataset)):
        name_table(urls.local_path(os.fspath(dataset)), saved)
    return replace(spec, table=saved)


def _edges(spec: DatasetSpec, table: pa.Table) -> IntArray:
    """Return where the shards begin, and the end of the last; the ends alone if none are stated."""
    counts = [shard.num_samples for shard in spec.shards]
    known = [count for count in counts if count is not None]
    return np.cumsum([0, *known] if len(known) == len(counts) else [0, len(table)])


def _check_rows(table: pa.Table, num_samples: int) -> None:
    """Raise `TableError` if the rows of a table are not all samples, in their order."""
    missing = [name for name in (INDEX, KEY) if name not in table.column_names]
    if missing:
        found = f"none of the name {missing[0]}"
    elif len(table) != num_samples:
        found = f"{len(table):,} rows"
    elif not np.array_equal(table[INDEX].to_numpy(), np.arange(num_samples)):
        found = "them in another order"
    else:
        return
    raise TableError(
        f"table: expected the columns {INDEX} and {KEY}, and a row for each of the {num_samples:,} "
        f"samples of the whole dataset, in their order; found {found}; make it with the `table` "
        "method of the dataset, not of a view"
    )


def _written(
    table: pa.Table, spec: DatasetSpec, edges: IntArray, paths: Mapping[str, str], output: str
) -> SavedTable:
    """Write a table of all samples as Parquet; return its entry in the spec.

    Args:
        table: The table, whose rows are all samples in order.
        spec: Of the dataset that it was made from.
        edges: Where the shards begin, and the end of the last one.
        paths: The paths of its columns by their names.
        output: The absolute path of the file.
    """
    import pyarrow.parquet as pq

    mark = fingerprint(spec)
    own = json.dumps({"version": 1, "fingerprint": mark, "columns": dict(paths)})
    schema = table.schema.with_metadata({_METADATA: own.encode("utf-8")})
    files.sweep_beside(output)
    table = table.replace_schema_metadata(schema.metadata)
    with files.replacing(output) as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for start, stop in _row_groups(edges.tolist()):
                writer.write_table(table.slice(start, stop - start), row_group_size=_MAX_GROUP)
        found = [footer_checksum(file), *column_checksums(file, pq.read_metadata(file))]
        nbytes = file.seek(0, os.SEEK_END)
    return SavedTable(output, mark, nbytes, tuple(found))


def _row_groups(edges: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the rows of each row group: whole shards, so that one shard's rows are near."""
    start = 0
    for edge in edges[1:]:
        if edge - start >= _MIN_GROUP or (edge == edges[-1] and edge > start):
            yield start, edge
            start = edge


def load_table(
    dataset: IndexedDataset | Shards,
    columns: Collection[str] | None = None,
    *,
    allow_pipe: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Read the table that ``wids table`` or `save_table` saved for a dataset.

    Its shards are neither opened nor fetched. A remote table is fetched into the cache.

    Args:
        dataset: A dataset, a view, whose rows are returned, or a spec in any form that a dataset
            takes.
        columns: Names of the columns to read; None for all. ``__index__`` and ``__key__`` are
            always there.
        allow_pipe: Whether a spec that is passed may name ``pipe:`` commands.
        storage_options: As for `ShardListDataset`, if a spec is passed.

    Raises:
        TableError: The spec names no table, the table was made of other shards, it is damaged, or
            has no such column.
        FetchError: The table cannot be read.
        ModuleNotFoundError: pyarrow is not installed.

    Example:
        >>> import wids
        >>> with wids.TarWriter("pets.tar") as writer:
        ...     for n in range(3):
        ...         _ = writer.write({"__key__": f"{n:03d}", "cls": n})
        >>> wids.build_spec(["pets.tar"]).save("pets.json")
        >>> from wids.cli.main import main
        >>> main(["table", "pets.json", "--columns", "label=.cls", "--output", "pets.parquet"])
        pets.parquet: 3 rows, 3 columns
        ...
        0
        >>> wids.load_table("pets.json")["label"].to_pylist()
        [0, 1, 2]
        >>> with wids.ShardListDataset("pets.json") as dataset:
        ...     wids.load_table(dataset[1:])["__key__"].to_pylist()
        ['001', '002']
    """
    check_arrow()
    import pyarrow as pa

    if isinstance(columns, str):
        raise TypeError(f"columns: expected a list of names, found the text {columns!r}")
    spec, store, positions = _lookup(dataset, allow_pipe, storage_options)
    if columns is not None:
        columns = [INDEX, KEY, *(c for c in columns if c not in (INDEX, KEY))]
    with _opened(spec, store, columns) as (name, file):
        try:
            table = file.read(columns)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(name, error) from error
    # A table that is sorted with pyarrow and saved again keeps its fingerprint.
    if not np.array_equal(table[INDEX].to_numpy(), np.arange(len(table))):
        raise _damaged(name, "its rows are in another order than the samples")
    if positions is None or (isinstance(positions, range) and positions == range(len(table))):
        return table
    return table.take(pa.array(np.asarray(positions, np.int64)))


def saved_columns(dataset: IndexedDataset) -> dict[str, str]:
    """Return the paths of the columns of the saved table of a dataset, by their names.

    Raises:
        TableError: There is no saved table, or it was made of other shards, or is damaged.
        ModuleNotFoundError: pyarrow is not installed.
    """
    check_arrow()
    with _opened(dataset.spec, dataset.reader.store, ()) as (_, file):
        columns: dict[str, str] = _own(file)["columns"]
        return columns


def read_or_load(dataset: IndexedDataset, columns: Mapping[str, str]) -> pa.Table:
    """Return columns from the saved table of a dataset if it has them, else read the dataset.

    Args:
        dataset: The dataset or view.
        columns: Paths by the names of their columns, or names alone of columns of the saved table;
            none for all its columns.

    Raises:
        TableError: The saved table is needed, and there is none, or it is stale.
        WidsError: A column cannot be read.
    """
    check_arrow()
    saved: Mapping[str, str] = {}
    try:
        saved = saved_columns(dataset)
    except TableError:
        if not columns or any(not path.startswith(".") for path in columns.values()):
            raise
    wanted = {name: path for name, path in columns.items() if path not in (name, saved.get(name))}
    if not wanted and set(columns) <= set(saved):
        return load_table(dataset, list(columns) or None)
    return read_table(dataset.reader, dataset.positions, columns)


def _lookup(
    dataset: IndexedDataset | Shards, allow_pipe: bool, storage_options: Mapping[str, Any] | None
) -> tuple[DatasetSpec, Cache, Positions | None]:
    """Return where to look for a saved table, and which of its rows are wanted; None for all."""
    if isinstance(dataset, IndexedDataset):
        return dataset.spec, dataset.reader.store, dataset.positions
    folder = cache_folder(None)
    fetcher = Fetcher(storage_options, None, os.path.join(folder, "shards"))
    spec = load_with(fetcher, dataset, None, allow_pipe=allow_pipe)
    return spec, Cache(folder, fetcher), None


@contextmanager
def _opened(
    spec: DatasetSpec, store: Cache, columns: Collection[str] | None
) -> Iterator[tuple[str, Any]]:
    """Provide the name of a saved table, and the Parquet file, checked against the spec.

    Args:
        spec: Names it.
        store: Where a remote one is copied to.
        columns: The columns that will be read; None for all.
    """
    if spec.table is None:
        label = f"the spec {spec.name!r}" if spec.name else "the spec"
        raise TableError(
            f"{label}: expected the name of a saved table, found none; make one with `wids table "
            "SPEC --columns label=.cls,height=.json/height --output NAME.parquet`"
        )
    name, expected = urls.redact(spec.table.url), fingerprint(spec)
    if spec.table.fingerprint != expected:  # before anything is fetched
        raise _stale(name, expected, spec.table.fingerprint)
    with ExitStack() as stack:
        file, damage = _checked(stack, spec, store, columns)
        if damage and discard(store, spec.table.url):  # the copy, and not the table
            stack.close()
            file, damage = _checked(stack, spec, store, columns)
        if damage:
            raise _damaged(name, f"{damage} does not have the checksum that the spec states")
        yield name, file


def _checked(
    stack: ExitStack, spec: DatasetSpec, store: Cache, columns: Collection[str] | None
) -> tuple[Any, str]:
    """Open a saved table until the stack ends; return it, and what of it is damaged, or ``""``."""
    import pyarrow as pa

    saved = spec.table
    assert saved is not None  # noqa: S101 - or there is nothing to open
    path = stack.enter_context(local_file(store, saved.url))
    try:
        source = stack.enter_context(pa.OSFile(path))
    except OSError as error:
        raise local_error(path, error) from error
    # Damage leaves the length as it was; another program that saves the table again does not.
    crc32s = saved.checksums if saved.nbytes in (None, source.size()) else ()
    if crc32s and footer_checksum(source) != crc32s[0]:
        return None, "its footer"
    name = urls.redact(saved.url)
    file = _parsed(source, name, spec, saved.fingerprint)
    num_expected = 1 + file.metadata.num_columns
    if crc32s and len(crc32s) != num_expected:
        raise TableError(
            f"{name}: expected {num_expected} checksums in the spec, of the footer and of each "
            f"column, found {len(crc32s)}; make the table again with `wids table`"
        )
    _check_columns(columns or (), file.schema_arrow.names, name)
    names = file.schema_arrow.names if columns is None else columns
    return file, damaged_column(source, file.metadata, crc32s[1:], names)


def _parsed(source: Any, name: str, spec: DatasetSpec, expected: str) -> Any:
    """Return the parser of an open table whose footer has been compared with the spec."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source)
        found, names = _own(file).get("fingerprint"), set(file.schema_arrow.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(name, error) from error
    if found != expected:
        raise _stale(name, expected, found)
    if not {INDEX, KEY} <= names:
        raise _damaged(name, f"it has no column {INDEX} or {KEY}")
    counts = [shard.num_samples for shard in spec.shards]
    num_rows = file.metadata.num_rows
    if None not in counts and num_rows != sum(count or 0 for count in counts):
        raise _damaged(name, f"it has {num_rows:,} rows, and the spec other samples")
    return file


def _own(file: Any) -> dict[str, Any]:
    """Return what wids wrote into the metadata of a Parquet file."""
    try:
        own = json.loads((file.schema_arrow.metadata or {})[_METADATA])
        return own if isinstance(own["columns"], dict) else {"columns": {}}
    except (KeyError, TypeError, ValueError):
        return {"columns": {}}


def _check_columns(columns: Collection[str], names: list[str], name: str) -> None:
    for column in columns:
        if column not in names:
            near = get_close_matches(str(column), names, n=3, cutoff=0.5) or names[2:12]
            raise TableError(
                f"{name}: expected a column of the table, found {column!r}; it has "
                f"{', '.join(near)}"
            )


def _stale(name: str, expected: str, found: object) -> TableError:
    return TableError(
        f"{name}: expected a table of the shards that the spec names now (fingerprint {expected}), "
        f"found one of others ({found}); the shards have changed, or the spec: make the table "
        "again with `wids table`"
    )


def _damaged(name: str, error: object) -> WidsError:
    return TableError(
        f"{name}: expected a Parquet file that `wids table` wrote, found another or a damaged one "
        f"({error}); make it again with `wids table`"
    )
