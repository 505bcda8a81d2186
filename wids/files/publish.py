"""Bytes → a file that appears under its name complete, or not at all.

A reader of the path sees the old file or the new one, never a part, and a process that has the old
one mapped keeps it. This module knows nothing of what the bytes are.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def replacing(
    path: str | os.PathLike[str], mode: int = 0o666, *, sync: bool = True, is_new: bool = False
) -> Iterator[IO[bytes]]:
    """Yield a file to write, and rename it to its final name when the block succeeds.

    If the block fails, also by Ctrl-C, the old file stays and the new one is deleted.

    Args:
        path: The final name.
        mode: Permissions of the file, less those that the process's umask removes.
        sync: Whether to wait until the disk has the file, which takes milliseconds. Without it, a
            power failure can leave an empty file under the name.
        is_new: Whether to raise FileExistsError, rather than replace a file of that name.
    """
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    # Short, since names are limited to 255 bytes; in the same folder, since only a rename within
    # one file system is atomic.
    temporary = os.path.join(folder, f"{temporary_prefix(name)}{secrets.token_hex(8)}.tmp")
    # A mode at creation, not a chmod afterwards, so that the file is never open to others in
    # between.
    file = open(  # noqa: SIM115 - closed below
        temporary, "x+b", opener=lambda path, flags: os.open(path, flags, mode)
    )
    try:
        with file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if is_new:
            _rename_to_free_name(temporary, os.path.join(folder, name))
        else:
            os.replace(temporary, os.path.join(folder, name))
    # KeyboardInterrupt is no Exception, and must not leave the file either (CACHE-10).
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


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


def temporary_prefix(name: str) -> str:
    """Return how the names of temporary files begin that are written for a file of this name."""
    return f".{name[:40]}."
