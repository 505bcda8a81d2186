"""Make temporary files that are deleted when the block or the process ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


def folder_of(file: IO[bytes]) -> str | None:
    """Return the folder of a file, which has space for more of its size; None without a name."""
    name: object = getattr(file, "name", None)  # without one, that of a file is a number
    return os.path.dirname(name) if isinstance(name, str) else None


@contextmanager
def unnamed_file(folder: str | None = None) -> Iterator[tuple[IO[bytes], str]]:
    """Yield a temporary file and a path to it; the file has no name where that is possible.

    A file without a name is gone when its process is, even killed.

    Args:
        folder: Where it is; None for the system's folder for temporary files, which ``TMPDIR``
            names.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        path = f"/proc/self/fd/{file.fileno()}"
        if os.path.exists(path):
            yield file, path
            return
    # Not a named temporary file, which on Windows cannot be opened once more by its name, nor
    # deleted while it is mapped: then it stays.
    with tempfile.TemporaryDirectory("", "wids-", folder, ignore_cleanup_errors=True) as own:
        path = os.path.join(own, "file")
        with open(path, "x+b") as file:
            yield file, path
