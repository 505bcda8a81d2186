"""Open a copy so that it is not evicted while it is open, or delete one that nobody has open.

The lock is on the copy itself, shared by its readers. Python's memory map duplicates the descriptor
and a fork inherits it, so a lease ends when its last map does, without any bookkeeping.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from io import FileIO
from typing import Final

from wids.storage import locks

_NUM_TRIES: Final = 20


def lease(path: str) -> FileIO | None:
    """Open a file so that it is not evicted while it is open; return None if it is gone.

    It is an object, which the garbage collector closes: Ctrl-C may come before its owner has it,
    and a descriptor without an owner would be a lease as long as the process runs.

    Raises:
        OSError: It cannot be read.
    """
    try:
        file = FileIO(path)
    except FileNotFoundError:
        return None
    try:
        # Bounded, and used without a lease after that: no process waits long for another (CACHE-6).
        for _ in range(_NUM_TRIES):
            if locks.acquire_shared(file.fileno()) is not False:
                break
            time.sleep(0.001)  # another process is trying to evict it, which is quick
        status = os.fstat(file.fileno())
        if status.st_nlink > 0:
            # The modification time stays, because it binds the copy to its index (INDEX-1).
            with suppress(OSError):  # the time of last use: most mounts do not update it on a read
                # Windows takes only paths.
                used = file.fileno() if os.utime in os.supports_fd else path
                os.utime(used, ns=(time.time_ns(), status.st_mtime_ns))
            return file
    except BaseException:  # explicitly, since the traceback keeps this frame
        file.close()
        raise
    file.close()  # it was evicted between open and lock
    return None


def delete_if_unused(path: str) -> bool:
    """Delete a file unless a process has a lease on it; return whether it was deleted."""
    with suppress(OSError), locks.holding(path) as is_held:
        # None, where locks fail, permits the deletion: readers that have the file open keep it on
        # Linux, and the others fetch it again (CACHE-6, CACHE-7).
        if is_held is not False:
            os.unlink(path)
            return True
    return False
