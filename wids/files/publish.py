"""Bytes → a file that appears all at once.

Whoever reads a path that is written here sees the old file or the new one, whole, and whoever has
the old one mapped keeps it. This room knows nothing of what the bytes are.
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
    """Give a file to write, which takes its name when the block ends well.

    Otherwise, Ctrl-C included, what was there stays and nothing is left behind.

    Args:
        path: The name.
        mode: Permissions of the file, less those that the process's umask takes away.
        sync: Whether to wait until the disk has it, which takes milliseconds. Without, a machine
            that loses power may come back with an empty file under the name.
        is_new: Whether to raise FileExistsError, and leave it, if something has the name by then.
    """
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    # Short, since names are limited to 255 bytes; in the same folder, since a rename is one step
    # only within a file system.
    temporary = os.path.join(folder, f"{temporary_prefix(name)}{secrets.token_hex(8)}.tmp")
    handle = os.open(
        temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode
    )
    try:
        with open(handle, "w+b") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if is_new:
            _take_name(temporary, os.path.join(folder, name))
        else:
            os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _take_name(temporary: str, path: str) -> None:
    """Give a file a name that nothing has."""
    try:
        os.link(temporary, path)  # unlike a rename, it fails where something is
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: nearly as good
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


def temporary_prefix(name: str) -> str:
    """Give how the names of temporary files begin that are written for a file of this name."""
    return f".{name[:40]}."
