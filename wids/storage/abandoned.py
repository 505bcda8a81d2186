"""Delete the temporary files that killed processes left, once their writers are dead.

A writer locks its temporary file, so an unlocked one has no writer.
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
"""Age from which an unlocked temporary file is deleted."""
_ABANDONED_UNLOCKED_S: Final = 86_400.0
"""The same where locks do not work, and for folders, which are not locked."""


def sweep(
    folder: str, is_temporary: Callable[[str], bool], *, min_age_s: float | None = None
) -> None:
    """Delete the temporary files that killed processes left in a folder.

    Args:
        folder: The folder.
        is_temporary: Returns whether a name is that of a temporary file or folder.
        min_age_s: Age from which an unlocked file is deleted; None for a minute. A writer creates
            its file before it locks it, so pass 0 only where there is no other writer.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                delete_if_abandoned(entry.path, min_age_s)


def sweep_beside(path: str | os.PathLike[str], *, min_age_s: float | None = None) -> None:
    """Delete the temporary files that killed processes left for this path; see `sweep`."""
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
    """Delete an old temporary file or folder that has no writer; return whether it did so."""
    with suppress(OSError):
        # `abs`, since a time may be in the future if a clock was wrong and was corrected since.
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
