"""Reserve space for a file that is being fetched, before its bytes arrive.

A file of known length gets its space at once. One of unknown length gets it in steps, and no more
than the limit of the cache and the disk allow, since nothing else stops an endless response.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from wids.errors import FetchError
from wids.storage.sizes import nbytes_text
from wids.storage.transport import urls

_STEP_NBYTES: Final = 64 << 20
_STEP_PART: Final = 16
"""A step is at most this part of the limit, so that a short file evicts few others."""
_LEAST_NBYTES: Final = 256 << 10
_SPARE_NBYTES: Final = 1 << 30
_SPARE_PART: Final = 100
"""What a file of unknown length leaves free on the disk: a hundredth of it, at most a gigabyte."""


class StorageError(FetchError):
    """A file that cannot be stored in the cache, though perhaps elsewhere."""


@dataclass
class Space:
    """The space of one file.

    Attributes:
        folder: Where the file is.
        stated_nbytes: Its length, if it is known.
        limit_nbytes: The limit of the cache, or None if it has none.
        reserve: Called with a length before the file reaches it.
    """

    folder: str
    stated_nbytes: int | None
    limit_nbytes: int | None
    reserve: Callable[[int], None]
    _reserved_nbytes: int = -1

    def cover(self, received_nbytes: int, total_nbytes: int | None) -> None:
        """Reserve space for what has arrived, and for what is expected next.

        Args:
            received_nbytes: Bytes that the file has.
            total_nbytes: Its length as its server states it, or None.

        Raises:
            OSError: The disk or the limit has no space for it.
        """
        if received_nbytes <= self._reserved_nbytes:
            return
        # The server's length first: it decides how many bytes will arrive, even if the spec is
        # wrong.
        known_nbytes = self.stated_nbytes if total_nbytes is None else total_nbytes
        if known_nbytes is not None and received_nbytes <= known_nbytes:
            # Before anything is evicted: a server that claims too much must not empty the cache
            # (CACHE-8).
            if known_nbytes - received_nbytes > shutil.disk_usage(self.folder).free:
                raise _no_space(f" for {nbytes_text(known_nbytes)}")
            nbytes = known_nbytes
        else:
            nbytes = self._next_step(received_nbytes)
        self.reserve(nbytes)
        self._reserved_nbytes = nbytes

    def _next_step(self, received_nbytes: int) -> int:
        """Return the length to reserve for a file of unknown final length."""
        disk = shutil.disk_usage(self.folder)
        spare_nbytes = disk.free - min(_SPARE_NBYTES, disk.total // _SPARE_PART)
        if spare_nbytes < _LEAST_NBYTES:
            raise _no_space(f" after {nbytes_text(received_nbytes)} of unknown length")
        step_nbytes = min(_STEP_NBYTES, spare_nbytes // 2)
        limit_nbytes = self.limit_nbytes
        if limit_nbytes is None:
            return received_nbytes + step_nbytes
        if received_nbytes > limit_nbytes:
            raise OSError(
                errno.EFBIG,
                f"its length is not known, and it is longer than {nbytes_text(limit_nbytes)} "
                "(cache_size)",
            )
        return min(limit_nbytes, received_nbytes + min(step_nbytes, limit_nbytes // _STEP_PART))


def _no_space(what: str) -> OSError:
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}{what}")


def storage_error(
    url: str, path: str, cache_folder: str, limit_nbytes: int | None, error: OSError
) -> StorageError:
    """Return the error for a file that could not be stored under a path."""
    folder = os.path.dirname(path)
    what = f"{urls.redact(url)}: cannot be stored in {folder}: {error.strerror or error}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageError(f"{what}; set cache_dir (now {cache_folder}) to a folder of your own")
    with suppress(OSError):
        what += f", {nbytes_text(shutil.disk_usage(folder).free)} are free"
    if error.errno == errno.EFBIG:
        return StorageError(f"{what}; make cache_size larger, or state filesize in the spec")
    limit_text = "unlimited" if limit_nbytes is None else nbytes_text(limit_nbytes)
    return StorageError(
        f"{what}; set cache_size (now {limit_text}) to what fits there, or cache_dir (now "
        f"{cache_folder}) to a larger disk"
    )
