"""Temporary files that killed processes left → their deletion, once their writer is dead.

A writer locks its temporary file, so a file that nobody has locked has no writer. This module knows
nothing of what is in the files, or which names are temporary.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from wids.storage import complete_files, locks

_ABANDONED_S: Final = 60.0
"""Age from which a temporary file that nobody has locked is deleted."""
_ABANDONED_UNLOCKED_S: Final = 86_400.0
"""The same where locks do not work, and for folders, which are not locked."""


def sweep(
    folder: str, is_temporary: Callable[[str], bool], *, min_age_s: float | None = None
) -> None:
    """Delete what killed processes left unfinished in a folder.

    Args:
        folder: The folder.
        is_temporary: Whether a name is that of a file, or folder, of which this may be true.
        min_age_s: Age from which a file that nobody has locked is deleted; None for a minute. A
            writer makes its file and then locks it, so 0 is for a caller that has no other writer.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                delete_if_abandoned(entry.path, min_age_s)


def sweep_beside(path: str | os.PathLike[str], *, min_age_s: float | None = None) -> None:
    """Delete what killed processes left unfinished of this file; see `sweep`."""
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    sweep(folder, lambda found: complete_files.is_temporary_of(found, name), min_age_s=min_age_s)


def temporary_files(path: str) -> list[tuple[str, int, int]]:
    """Return name, length and modification time of each temporary file for this path."""
    folder, name = os.path.split(path)
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if complete_files.is_temporary_of(entry.name, name):
                with suppress(OSError):  # renamed or deleted since
                    status = entry.stat()
                    found.append((entry.name, status.st_size, status.st_mtime_ns))
    return sorted(found)


def delete_if_abandoned(path: str, min_age_s: float | None = None) -> bool:
    """Delete a temporary file or folder if it is old and nobody writes to it; return whether."""
    with suppress(OSError):
        # A time in the future is as far from now: a clock was wrong, and may have been set right.
        age_s = abs(time.time() - os.stat(path).st_mtime)
        min_age_s = _ABANDONED_S if min_age_s is None else min_age_s
        if os.path.isdir(path):
            if age_s > _ABANDONED_UNLOCKED_S:
                shutil.rmtree(path, ignore_errors=True)
                return True
        elif age_s > _ABANDONED_UNLOCKED_S or (age_s >= min_age_s and locks.probe(path)):
            os.unlink(path)
            return True
    return False
