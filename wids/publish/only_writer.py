"""Lock the names of shards, so that only one writer of them is open.

Unfinished files of killed writers are deleted, at the beginning and at the end, since an executor
may have had another worker do the work of a killed one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from wids.publish.shard_names import ShardNames
from wids.storage import abandoned, locks
from wids.storage.transport import urls


@contextmanager
def only_writer(names: ShardNames, *others: str) -> Iterator[None]:
    """Lock out other writers of these shards, and delete what a killed one left.

    Args:
        names: The names of the shards.
        others: Paths of what else is written with them: the spec and the pack.

    Raises:
        OSError: Another writer of these shards is open.
    """
    if not urls.is_local(names.folder):  # a new object is refused by the server if it exists
        yield
        return
    lock_path = names.lock_path()
    with ExitStack() as stack:
        if locks.REFUSES_DELETION:  # when nobody has it open
            stack.callback(_delete, lock_path)
        is_held = stack.enter_context(locks.lock_file(lock_path, mode=0o600))
        if is_held is False:
            raise OSError(
                f"{os.path.join(names.folder, names.file_name)}: expected to be the only writer of "
                "these shards, found another one that is open; close it, or give each process a "
                "pattern of its own"
            )
        if is_held:
            stack.callback(_delete, lock_path)
        _sweep(names, others, 0 if is_held else None)
        yield
        if is_held:  # after an error, a task on an executor may still be writing
            _sweep(names, others, 0)


def _delete(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _sweep(names: ShardNames, others: Sequence[str], min_age_s: float | None) -> None:
    abandoned.sweep(names.folder, names.is_temporary, min_age_s=min_age_s)
    for path in others:
        abandoned.sweep_beside(path, min_age_s=min_age_s)
