"""Open a copy so that it is not evicted while it is open, or delete one that nobody has open.

The lock is on the copy itself, shared by its readers. Python's memory map duplicates the descriptor
and a fork inherits it, so a lease ends when its last map does, without any bookkeeping.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

from wids.storage import locks

_NUM_TRIES: Final = 20


def lease(path: str) -> int | None:
    """Open a file so that it is not evicted while it is open; return None if it is gone.

    Raises:
        OSError: It cannot be read.
    """
    handle = None
    try:
        handle = os.open(path, locks.READ_FLAGS)
        # Bounded, and used without a lease after that: no process waits long for another (CACHE-6).
        for _ in range(_NUM_TRIES):
            if locks.acquire_shared(handle) is not False:
                break
            time.sleep(0.001)  # another process is trying to evict it, which is quick
        status = os.fstat(handle)
        if status.st_nlink > 0:
            # The modification time stays, because it binds the copy to its index (INDEX-1).
            with suppress(OSError):  # the time of last use: most mounts do not update it on a read
                file = handle if os.utime in os.supports_fd else path  # Windows takes only paths
                os.utime(file, ns=(time.time_ns(), status.st_mtime_ns))
            return handle
    except FileNotFoundError:
        return None
    except BaseException:  # Ctrl-C: a lease without an owner would last as long as the process
        if handle is not None:
            os.close(handle)
        raise
    os.close(handle)  # it was evicted between open and lock
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
