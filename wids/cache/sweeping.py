"""A cache folder → the temporary files in it, and their deletion once their writer is dead.

A writer locks its temporary file, so a file that nobody has locked was left by a killed process.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from typing import Final

from wids.cache import names
from wids.files import locks, publish

_ABANDONED_S: Final = 60.0
"""Age from which a temporary file that nobody has locked is deleted."""
_ABANDONED_UNLOCKED_S: Final = 86_400.0
"""The same where locks do not work, and for folders, which are not locked."""


def sweep(folder: str) -> None:
    """Delete what killed processes left unfinished in a cache folder."""
    for part in (names.shards_folder(folder), names.indexes_folder(folder)):
        try:
            entries = list(os.scandir(part))
        except OSError:
            continue
        for entry in entries:
            if names.is_temporary_name(entry.name):
                delete_if_abandoned(entry.path)


def sweep_beside(path: str) -> None:
    """Delete what killed processes left unfinished of this file, in a folder of the user's."""
    folder = os.path.dirname(path)
    for name, *_ in temporary_files(path):
        delete_if_abandoned(os.path.join(folder, name))


def temporary_files(path: str) -> list[tuple[str, int, int]]:
    """Return name, length and modification time of each temporary file for this path."""
    folder, name = os.path.split(path)
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(publish.temporary_prefix(name)):
                with suppress(OSError):  # renamed or deleted since
                    status = entry.stat()
                    found.append((entry.name, status.st_size, status.st_mtime_ns))
    return sorted(found)


def delete_if_abandoned(path: str) -> bool:
    """Delete a temporary file or folder if it is old and nobody writes to it; return whether."""
    with suppress(OSError):
        # A time in the future is as far from now: a clock was wrong, and may have been set right.
        age_s = abs(time.time() - os.stat(path).st_mtime)
        if os.path.isdir(path):
            # A folder cannot be locked, so only its age says that its writer is gone.
            if age_s > _ABANDONED_UNLOCKED_S:
                shutil.rmtree(path, ignore_errors=True)
                return True
        # Young files stay even without a lock: their writer may not have taken it yet.
        elif age_s > _ABANDONED_UNLOCKED_S or (age_s > _ABANDONED_S and locks.probe(path)):
            os.unlink(path)
            return True
    return False
