"""Guards against hostile fields: decoding never fills the memory and never runs code unasked.

Knows nothing about field names or values; the decoder reports what is raised here.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from typing import Final

MAX_UNZIPPED_NBYTES: Final = 1 << 30
"""Largest decompressed size of a ``.gz`` field, and of the members of an archive together."""


class RefusedError(Exception):
    """A field that is not decoded, whatever its bytes are."""


def unzip(data: bytes, max_nbytes: int | None) -> bytes:
    """Return gzip data decompressed.

    Args:
        data: One or more gzip streams.
        max_nbytes: Largest decompressed size; None for `MAX_UNZIPPED_NBYTES`.

    Raises:
        ValueError: The data is empty, or longer than the limit when decompressed.
        OSError: The data is not gzip.
        EOFError: The data ends early.
    """
    if max_nbytes is None:
        max_nbytes = MAX_UNZIPPED_NBYTES
    if not data:  # which GzipFile would read as a valid stream of no bytes
        raise ValueError("expected gzip data, found none: the field is empty")
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        unzipped = stream.read(max_nbytes + 1)
    if len(unzipped) > max_nbytes:
        raise ValueError(f"it is longer than {max_nbytes} bytes when decompressed")
    return unzipped


def check_archive(data: bytes) -> None:
    """Raise ValueError for a zip archive that would fill the memory; accept all other data."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            nbytes = sum(member.file_size for member in archive.infolist())
        # Stored members may be as long as the archive itself, which is in memory already.
        if nbytes > max(MAX_UNZIPPED_NBYTES, len(data)):
            raise ValueError(f"it is longer than {MAX_UNZIPPED_NBYTES} bytes when decompressed")
