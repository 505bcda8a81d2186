"""Advisory locks on files, which the kernel releases when the process ends.

Locks only save duplicate work. On some network file systems they fail, on others they succeed for
everyone, so code that takes one must be correct without it. Lock files are those of `filelock`,
imported when the first one is locked. Files with content are locked by `flock`, exclusively or not:
`filelock` has no native shared lock.

A forked process inherits no lock on a file, since it does not have the thread that holds it, and no
file that is `unshared`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from typing import IO, Any, Final, TypeVar
from weakref import WeakSet

File = TypeVar("File", bound=IO[bytes])

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, where lock files work, and open files need no locks
    fcntl = None

READ_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0)
"""For `os.open`: without the second one, Windows would translate the ends of lines."""
SAFE_FLAGS: Final = READ_FLAGS | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""For files that another user of a shared folder could replace by a link or a pipe (SEC-40)."""
REFUSES_DELETION: Final = os.name == "nt"
"""Whether the system does not rename or delete a file that a process has open, as Windows."""
_POLL_S: Final = 0.05


@contextmanager
def lock_file(
    path: str, *, mode: int, timeout_s: float = 0, give_up: Callable[[], bool] | None = None
) -> Iterator[bool | None]:
    """Hold an exclusive lock on a file that exists only to be locked, while the block runs.

    The file is created if it is missing and never deleted here; a symbolic link is not followed.
    Where nobody waits for it, its holder may delete it. A process that is forked in the block does
    not inherit the lock.

    Args:
        path: The lock file.
        mode: Its permissions if it is created, regardless of the umask.
        timeout_s: How long to wait for another process.
        give_up: Called between attempts; returns True to stop waiting earlier.

    Yields:
        True if the lock is held, False if another process holds it, None where locks fail.
    """
    if fcntl is None and not REFUSES_DELETION:  # filelock would make a marker file
        yield None
        return
    from filelock import FileLock, Timeout

    # Each option matters: a marker file, to which filelock falls back where flock is missing, would
    # outlive a kill; a deleted lock file would split its waiters into two groups.
    lock = FileLock(
        path, mode=mode, thread_local=False, fallback_to_soft=False, preserve_lock_file=True
    )

    is_held: bool | None = True
    try:
        try:
            lock.acquire(timeout=timeout_s, poll_interval=_POLL_S, cancel_check=give_up)
        except Timeout:  # an OSError too, so it comes first
            # In a folder that takes no files, filelock waits as for another process.
            is_held = False if os.path.lexists(path) else None
        except OSError:  # ENOLCK, ENOSYS, a read-only folder, a symbolic link
            is_held = None
        yield is_held
    finally:
        with suppress(OSError):
            lock.release()


@contextmanager
def holding(path: str, *, is_shared: bool = False) -> Iterator[bool | None]:
    """Try to lock an existing file, without waiting, while the block runs.

    A process that is forked in the block does not inherit the lock, as of `unshared`. Otherwise a
    child would keep the lock after its parent was killed.

    Args:
        path: The file.
        is_shared: Whether others may share the lock; otherwise it is exclusive.

    Yields:
        As `acquire` returns.

    Raises:
        OSError: The file cannot be opened.
    """
    if fcntl is None:
        yield None
        return
    with unshared(partial(open_to_lock, path)) as file:
        try:
            yield acquire(file.fileno(), is_shared=is_shared)
        finally:
            release(file.fileno())


@contextmanager
def unshared(open_file: Callable[[], File]) -> Iterator[File]:
    """Open a file for this process alone: one that is forked in the block has the null device.

    What the child writes to it is lost. Otherwise a child that ends before the block would write
    what its parent has buffered once more.

    Args:
        open_file: Opens it.
    """
    with _no_fork:
        file = open_file()
        _held.add(file)
    try:
        with file:  # closed by C code, or by the garbage collector: an interrupt leaves no lock
            yield file
    finally:
        _held.discard(file)  # now, when nothing is left to be written


_held: Final[WeakSet[IO[bytes]]] = WeakSet()
_no_fork: Final = threading.RLock()
"""Held while an open file is not yet in the set: a child would inherit its lock."""


def _drop_locks() -> None:
    # The fork copied the lock in the held state, and the child has no thread that would release it.
    _no_fork.release()
    for file in _held:
        with suppress(OSError, ValueError):  # one that is closed: a traceback may keep it
            handle = file.fileno()
            os.close(handle)  # first: the process may have no other one left
            # It stays in use: the child may close it later, when it could be another file.
            null = os.open(os.devnull, os.O_RDWR)
            if null != handle:
                os.dup2(null, handle, inheritable=False)
                os.close(null)
    _held.clear()


if hasattr(os, "register_at_fork"):
    # A `flock` belongs to the open file, which a fork shares: a child could hold or release it.
    os.register_at_fork(
        before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_drop_locks
    )


def prepare() -> None:
    """Import what lock files need, which has hooks of its own for the moment of a fork."""
    import filelock  # noqa: F401


def acquire(handle: int, *, is_shared: bool = False) -> bool | None:
    """Try to lock an open file, without waiting: exclusively, or together with others.

    The lock belongs to the open file, its duplicates and what forked processes inherit, and lasts
    until it is released or the last of them is closed.

    Returns:
        Whether the file is locked now; None where locks fail.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the two errors that mean another process has it
        return False
    except OSError:  # ENOLCK, ENOSYS, EOPNOTSUPP, EBADF: it depends on the file system
        return None
    return True


def release(handle: int) -> None:
    """Unlock an open file, also for its duplicates in forked processes."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)


def open_to_lock(path: str) -> FileIO:
    """Open an existing file to lock it: not through a link, and without waiting for a named pipe.

    Raises:
        OSError: It cannot be opened.
    """
    try:  # NFS locks exclusively only what is open to write
        return FileIO(path, "r+", opener=lambda name, _: os.open(name, os.O_RDWR | SAFE_FLAGS))
    except PermissionError:  # elsewhere a read-only file will do
        return FileIO(path, opener=open_safely)


def open_safely(path: str, _: int) -> int:
    """Open a file to read it, as an ``opener``: not through a link, without waiting for a pipe."""
    return os.open(path, SAFE_FLAGS)


def probe(path: str) -> bool:
    """Return whether this file may be deleted: if a process has it in use, that is noticed.

    It is unlocked, and a lock on it would exclude other processes; or the system sees to it.
    """
    if REFUSES_DELETION:
        return os.path.exists(path)
    try:
        # Two openings, because some network file systems grant every lock (CACHE-6).
        with open_to_lock(path) as one, open_to_lock(path) as other:
            return acquire(one.fileno()) is True and acquire(other.fileno()) is False
    except OSError:
        return False
