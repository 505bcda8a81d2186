"""Lock the names of shards, so that only one writer of them is open.

Unfinished files of killed writers are deleted, at the beginning and at the end, since an executor
may have had another worker do the work of a killed one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from wids.publish.output import Output
from wids.storage import abandoned, locks


@contextmanager
def only_writer(output: Output) -> Iterator[None]:
    """Lock out other writers of these shards, and delete what a killed one left.

    Raises:
        OSError: Another writer of these shards is open.
    """
    names = output.names
    if not output.is_local:  # a new object is refused by the server if it exists
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
        _sweep(output, 0 if is_held else None)
        yield
        if is_held:  # after an error, a task on an executor may still be writing
            _sweep(output, 0)


def _delete(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _sweep(output: Output, min_age_s: float | None) -> None:
    names = output.names
    abandoned.sweep(names.folder, names.is_temporary, min_age_s=min_age_s)
    for path in (output.spec_path, output.pack_path) if output.spec_path else ():
        abandoned.sweep_beside(path, min_age_s=min_age_s)
