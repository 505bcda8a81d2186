"""Advisory locks on open files, which the kernel drops when the process ends.

They save double work and nothing else: on some network file systems a lock fails, on others it
succeeds for everyone, so whoever uses one has to be right without it. A lock belongs to the open
file, its duplicates (such as a memory map keeps) and what a fork inherits, and lasts until the last
of them is closed. This room knows no paths but the one that it is asked about.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: as on a file system without locks
    fcntl = None


def acquire(handle: int, *, shared: bool = False) -> bool | None:
    """Try to lock an open file, without waiting.

    Returns:
        Whether it is locked now; None where there are no locks.
    """
    if fcntl is None:
        return None
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the two ways to say that another one has it
        return False
    except OSError:  # ENOLCK, ENOSYS, EOPNOTSUPP, EBADF: whatever this file system says
        return None
    return True


def release(handle: int) -> None:
    """Unlock an open file, its duplicates in forked processes included."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)


def work(path: str) -> bool:
    """Tell whether nobody holds a lock on this file, and one would keep others out."""
    handles: list[int] = []
    try:
        handles += [os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)]
        return acquire(handles[0]) is True and acquire(handles[1]) is False
    except OSError:
        return False
    finally:
        for handle in handles:
            with suppress(OSError):
                os.close(handle)
