"""Compute the CRC-32 of the footer of a Parquet file, and one for each of its columns.

Parquet's own checksums cover neither the footer nor the headers of pages, and a damaged one may
still be read, as other values (decision 0072). A column is checked without reading the others.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from wids.storage.checksums import fastest_crc32

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
    return [_of_column(source, metadata, number) for number in range(metadata.num_columns)]


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
        if is_wanted and _of_column(source, metadata, number) != checksum:
            return str(path)
    return ""


def _of_column(source: Any, metadata: Any, number: int) -> int:
    return _crc32(source, _spans(metadata, number))


def _spans(metadata: Any, number: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of a column in each row group."""
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(number)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page:
            start = min(start, chunk.dictionary_page_offset)
        yield start, chunk.total_compressed_size


def _crc32(source: Any, spans: Iterable[tuple[int, int]]) -> int:
    crc32, value = fastest_crc32(), 0
    for start, nbytes in spans:
        source.seek(start)
        for at in range(0, nbytes, _PIECE_NBYTES):
            value = crc32(source.read(min(_PIECE_NBYTES, nbytes - at)), value)
    return value
