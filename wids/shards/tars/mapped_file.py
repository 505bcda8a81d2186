"""Map or read a local file, and advise the system about mapped files.

Touching a mapped page beyond the end of a shortened file kills the process, so callers compare the
length of a mapped file before they read.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Final, TypeAlias

from wids.errors import FetchError, ShardFormatError, local_error
from wids.storage.locks import READ_FLAGS

FileBytes: TypeAlias = bytes | mmap.mmap

_SMALL_NBYTES: Final = 64 << 10
"""Files up to this size are read, larger ones mapped. Mapping takes as long as reading this many
bytes, and a file descriptor; reading takes memory that processes do not share."""


def map_file(path: str, handle: int | None = None) -> tuple[mmap.mmap, os.stat_result]:
    """Map a file of any size, and return the map and the status when it was opened.

    Args:
        path: The file.
        handle: A descriptor of the file, if it is already open; always closed here.

    Raises:
        FetchError: The file cannot be opened.
        ShardFormatError: The file is empty, which no tar is.
    """
    handle = _open(path) if handle is None else handle
    try:
        status = os.fstat(handle)
        _refuse_empty(path, status)
        # The length from `fstat`, not 0: then the status matches the map, or `mmap` raises because
        # the file became shorter in between.
        return mmap.mmap(handle, status.st_size, access=mmap.ACCESS_READ), status
    except OSError as error:  # a folder, a device
        raise local_error(path, error) from error
    except ShardFormatError:  # a ValueError too
        raise
    except ValueError as error:
        raise ShardFormatError(f"{path}: it became shorter while it was opened") from error
    finally:
        os.close(handle)


def _open(path: str) -> int:
    try:
        return os.open(path, READ_FLAGS)  # a third of the time that open() takes
    except OSError as error:
        raise local_error(path, error) from None
    except ValueError as error:  # a NUL in the path
        raise FetchError(f"{path!r}: expected a path, found: {error}") from error


def _refuse_empty(path: str, status: os.stat_result) -> None:
    if not status.st_size:
        raise ShardFormatError(
            f"{path}: expected a tar, found an empty file; write it or fetch it again"
        )


def read_or_map(path: str, *, handle: int | None = None, is_own: bool = False) -> FileBytes | None:
    """Read a small file, or map a larger one; return None if that is not possible.

    Args:
        path: The file.
        handle: A descriptor of the file, if it is already open; always closed here.
        is_own: Whether to return None for a file of another user: in a shared cache folder, users
            trust only their own files.
    """
    try:
        if handle is None:
            handle = os.open(path, READ_FLAGS)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        # INDEX-3. By the descriptor, not by the path, which another user can replace in between.
        # Windows has no such owner.
        if is_own and hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            return None
        if status.st_size <= _SMALL_NBYTES:
            return os.read(handle, status.st_size)
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # a folder, or truncated to nothing after `fstat`
        return None
    finally:
        os.close(handle)


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
