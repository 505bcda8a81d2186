"""Read many short spans of a mapped file without keeping the file in memory."""

from __future__ import annotations

import mmap
import os
import time
from typing import Final, TypeAlias

from wids.shards.tars.mapped_file import advise
from wids.storage.locks import READ_FLAGS

Span: TypeAlias = tuple[int, int]
"""Where bytes begin and end."""

_DENSE_NBYTES: Final = 16 << 10
"""Spans whose average distance is at most this are read from the disk in one piece."""

_LONG_NBYTES: Final = 1 << 20
"""Longer spans are read from the map: one system call reads at most 2 GiB."""

_COLD_READ_S: Final = 50e-6
"""A read that takes longer came from the disk."""

_NUM_PROBES: Final = 8
"""Number of spans that are timed to see whether the file is in memory."""


def read_spans(data: mmap.mmap, path: str, inode: int, spans: list[Span]) -> list[bytes]:
    """Return the bytes of spans, which mostly ascend.

    Args:
        data: The map of the file.
        path: Its path, which may refer to another file by now.
        inode: The inode of the mapped file.
        spans: Where the bytes are.
    """
    if not spans:
        return []
    # Hard links, and keys whose members are not adjacent, break the order of the archive.
    first = min(start for start, _ in spans)
    nbytes = max(stop for _, stop in spans) - first
    # One hint for all spans if they are close together. Otherwise each hint costs a microsecond,
    # which is negligible compared with waiting for the disk.
    is_dense = nbytes <= _DENSE_NBYTES * len(spans)
    if is_dense:
        advise(data, "WILLNEED", first, nbytes)
    else:
        _warm(data, spans)
    is_short = max(stop - start for start, stop in spans) <= _LONG_NBYTES
    # A read costs a third of mapping the pages around a span, unless other spans share them.
    handle = _reopened(path, inode, len(data)) if is_short and not is_dense else None
    if handle is None:
        pieces = [data[start:stop] for start, stop in spans]
    else:
        try:
            pieces = [os.pread(handle, stop - start, start) for start, stop in spans]
        finally:
            os.close(handle)
    # Pages that stay mapped count as memory of the process, in the end the whole file.
    advise(data, "DONTNEED", first, nbytes)
    return pieces


def _reopened(path: str, inode: int, nbytes: int) -> int | None:
    """Return a descriptor of the mapped file; None if its path refers to another file."""
    if not hasattr(os, "pread"):  # Windows
        return None
    try:
        handle = os.open(path, READ_FLAGS)
    except OSError:
        return None
    status = os.fstat(handle)
    if (status.st_ino, status.st_size) == (inode, nbytes):
        return handle
    os.close(handle)
    return None


def _warm(data: mmap.mmap, spans: list[Span]) -> None:
    """Let the system read scattered spans together, if they come from the disk."""
    start_s = time.perf_counter()
    for at, (start, stop) in enumerate(spans[:_NUM_PROBES]):
        _ = data[start:stop]
        if time.perf_counter() - start_s > _COLD_READ_S * (at + 1):
            for other_start, other_stop in spans[at + 1 :]:
                advise(data, "WILLNEED", other_start, other_stop - other_start)
            return
