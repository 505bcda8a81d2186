"""The names of shards → a lock that keeps other writers of them away.

What a killed writer left unfinished is deleted first. Knows nothing of what is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wids.files import abandoned, locks
from wids.transport import urls
from wids.writing.shard_names import ShardNames


@contextmanager
def only_writer(names: ShardNames) -> Iterator[None]:
    """Keep other writers of these shards away, and delete what a killed one left.

    Raises:
        OSError: Another writer of these shards is open.
    """
    if not urls.is_local(names.folder):  # a new object is refused by the server if it exists
        yield
        return
    lock_path = names.lock_path()
    with locks.lock_file(lock_path, mode=0o600) as is_held:
        if is_held is False:
            raise OSError(
                f"{os.path.join(names.folder, names.file_name)}: expected to be the only writer of "
                "these shards, found another one that is open; close it, or give each process a "
                "pattern of its own"
            )
        abandoned.sweep(names.folder, names.is_temporary, min_age_s=0 if is_held else None)
        try:
            yield
        finally:
            if is_held:
                with suppress(OSError):
                    os.unlink(lock_path)
