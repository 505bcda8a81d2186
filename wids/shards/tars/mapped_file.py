"""Map or read a local file, and advise the system about mapped files.

Touching a mapped page beyond the end of a shortened file kills the process, so callers compare the
length of a mapped file before they read.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from io import FileIO
from typing import Final, TypeAlias

from wids.errors import FetchError, ShardFormatError, local_error

FileBytes: TypeAlias = bytes | mmap.mmap

_SMALL_NBYTES: Final = 64 << 10
"""Files up to this size are read, larger ones mapped. Mapping takes as long as reading this many
bytes, and a file descriptor; reading takes memory that processes do not share."""


def map_file(path: str, handle: FileIO | int | None = None) -> tuple[mmap.mmap, os.stat_result]:
    """Map a file of any size, and return the map and the status when it was opened.

    Args:
        path: The file.
        handle: The file, if it is already open, or a descriptor of it; always closed here.

    Raises:
        FetchError: The file cannot be opened.
        ShardFormatError: The file is empty, which no tar is.
    """
    try:
        with _open(path, handle) if handle is None or isinstance(handle, int) else handle as file:
            status = os.fstat(file.fileno())
            _refuse_empty(path, status)
            # The length from `fstat`, not 0: then the status matches the map, or `mmap` raises
            # because the file became shorter in between.
            return mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ), status
    except (ShardFormatError, FetchError):  # the one is a ValueError too, the other an OSError
        raise
    except OSError as error:  # a folder, a device
        raise local_error(path, error) from error
    except ValueError as error:
        raise ShardFormatError(f"{path}: it became shorter while it was opened") from error


def _open(path: str, handle: int | None) -> FileIO:
    try:
        return FileIO(path if handle is None else handle)
    except OSError as error:
        if handle is not None:  # of a folder: `FileIO` leaves it open
            os.close(handle)
        raise local_error(path, error) from None
    except ValueError as error:  # a NUL in the path
        raise FetchError(f"{path!r}: expected a path, found: {error}") from error


def _refuse_empty(path: str, status: os.stat_result) -> None:
    if not status.st_size:
        raise ShardFormatError(
            f"{path}: expected a tar, found an empty file; write it or fetch it again"
        )


def read_or_map(path: str, *, file: FileIO | None = None, is_own: bool = False) -> FileBytes | None:
    """Read a small file, or map a larger one; return None if that is not possible.

    Args:
        path: The file.
        file: The file, if it is already open; always closed here.
        is_own: Whether to return None for a file of another user: in a shared cache folder, users
            trust only their own files.
    """
    try:
        with FileIO(path) if file is None else file as opened:
            status = os.fstat(opened.fileno())
            # INDEX-3. By the descriptor, not by the path, which another user can replace in
            # between. Windows has no such owner.
            if is_own and hasattr(os, "geteuid") and status.st_uid != os.geteuid():
                return None
            if status.st_size <= _SMALL_NBYTES:
                return opened.read(status.st_size)
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # a folder, or truncated to nothing after `fstat`
        return None


def advise(data: mmap.mmap, advice: str, start: int = 0, nbytes: int | None = None) -> None:
    """Advise the system about a range of a mapped file, or all of it, if the platform can.

    Without advice, a cold read of a few kilobytes costs as much as the system's readahead, which is
    megabytes on some machines. With ``RANDOM`` alone, each page costs a wait; with ``WILLNEED`` on
    the range, there is one wait for all.
    """
    # Windows has no madvise, and macOS lacks some of Linux's options.
    option = getattr(mmap, f"MADV_{advice}", None)
    if option is None or nbytes == 0:
        return
    # madvise accepts only addresses at the start of a page.
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # only advice, and a closed map needs none
        data.madvise(option, first, (len(data) if nbytes is None else start + nbytes) - first)
