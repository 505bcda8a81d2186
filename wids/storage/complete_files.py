"""Write a file that appears under its name complete, or not at all.

A reader of the path sees the old file or the new one, never a part, and a process that has the old
one mapped keeps it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, Final

from wids.storage import locks

STEM_LENGTH: Final = 40
"""Characters of a name that its temporary files and lock repeat, to stay within 255 bytes."""
_TEMPORARY: Final = re.compile(rf"\.(.{{1,{STEM_LENGTH}}})\.[0-9a-f]{{16}}\.tmp", re.DOTALL)
_FLUSH_S: Final = 0.1
"""Time between two flushes of a file that is being written."""
_NO_FOLDER_SYNC: Final = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EBADF))
"""Errors of file systems on which a folder cannot be flushed, unlike those of a disk."""
_unfinished: Final[set[str]] = set()
"""Paths of the temporary files that this process writes."""


@contextmanager
def replacing(
    path: str | os.PathLike[str], mode: int = 0o666, *, sync: bool = True, is_new: bool = False
) -> Iterator[IO[bytes]]:
    """Yield a file to write, and rename it to its final name when the block succeeds.

    If the block fails, also because of Ctrl-C, the old file stays and the new one is deleted.

    Args:
        path: The final name.
        mode: Permissions of the file, less those that the process's umask removes.
        sync: Whether to wait until the disk has the file and its name, which takes milliseconds.
            Without it, a power failure can leave an empty file under the name, or none. With it,
            the file is also locked while it is written, which distinguishes a file that a killed
            process left from one that is written slowly.
        is_new: Whether to raise FileExistsError, rather than replace a file of that name.
    """
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    # In the same folder, since only a rename within one file system is atomic.
    temporary = os.path.join(folder, temporary_name(name))
    target = os.path.join(folder, name)

    def create(path: str, flags: int) -> int:
        try:
            return os.open(path, flags, mode)
        except OSError as error:  # with the name that the caller knows
            raise OSError(error.errno, error.strerror, target) from None

    _unfinished.add(temporary)
    try:
        with (
            open(temporary, "x+b", opener=create) as file,
            locks.holding(temporary) if sync else nullcontext(),
        ):
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if is_new:
            _rename_to_free_name(temporary, target)
        else:
            os.replace(temporary, target)
        if sync:
            _sync_folder(folder)
    # KeyboardInterrupt is not an Exception, and must not leave the file either (CACHE-10).
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        _unfinished.discard(temporary)


def delete_unfinished() -> None:
    """Delete what this process has not finished, before a thread ends the process."""
    for path in list(_unfinished):
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def flushed_early(file: IO[bytes]) -> Iterator[None]:
    """Have the disk write a file while the block writes it, so that little is left at the end."""
    is_over = threading.Event()

    def flush() -> None:
        while not is_over.wait(_FLUSH_S):
            with suppress(OSError):  # the flush at the end raises it again
                os.fsync(file.fileno())

    thread = threading.Thread(target=flush, name="wids-flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _sync_folder(folder: str) -> None:
    """Wait until the disk has the names in a folder, where that is possible."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows, or a folder that may be written but not listed
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def _rename_to_free_name(temporary: str, path: str) -> None:
    """Rename a file to a name that nothing has; raise FileExistsError if something has it."""
    try:
        os.link(temporary, path)  # unlike a rename, it fails if the name is taken
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: a small race remains
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


def temporary_name(name: str) -> str:
    """Return a unique name for a file that is renamed when it is complete."""
    return f".{name[:STEM_LENGTH]}.{secrets.token_hex(8)}.tmp"


def lock_name(name: str) -> str:
    """Return the name of the file to lock while files of this name or pattern are written."""
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()  # names may begin alike
    return f".{name[:STEM_LENGTH]}.{digest[:16]}.lock"


def stem_of_temporary(temporary: str) -> str | None:
    """Return the first characters of the name that a temporary file will have.

    Return None if it is not a temporary file of this module.
    """
    match = _TEMPORARY.fullmatch(temporary)
    return None if match is None else match[1]


def is_temporary_of(temporary: str, name: str) -> bool:
    """Return whether this may be the name of a temporary file for a file called ``name``."""
    return stem_of_temporary(temporary) == name[:STEM_LENGTH]
