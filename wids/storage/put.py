"""Upload a complete local file with an fsspec driver, in one attempt that leaves no partial file.

Nothing is retried here: `upload` does that.
"""

from __future__ import annotations

import glob
import inspect
import os
from contextlib import suppress
from typing import Any, Final

from wids.storage import complete_files
from wids.storage.transport.stream import TransientError

PART_NBYTES: Final = 16 << 20
_MAX_PARTS: Final = 10_000
_NUM_CONNECTIONS: Final = 4
"""Drivers have as many parts in memory as connections: 500 MB for each file by default."""


def is_refused_version(error: OSError) -> bool:
    """Return whether the server refused to replace a file because its version differs."""
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "412")


def is_same(system: Any, target: str, path: str) -> bool:
    """Return whether a target has the bytes of a local file."""
    return _num_held(system, target, path) == os.path.getsize(path)


def _num_held(system: Any, target: str, path: str) -> int | None:
    """Return the length of a target that is the beginning of a local file; None for any other."""
    system.invalidate_cache()
    try:
        nbytes = system.info(target).get("size")
        if nbytes is None or nbytes > os.path.getsize(path):
            return None
        with open(path, "rb") as file:
            for start in range(0, nbytes, PART_NBYTES):
                stop = min(start + PART_NBYTES, nbytes)
                if system.cat_file(target, start=start, end=stop) != file.read(stop - start):
                    return None
    except FileNotFoundError:
        return None
    return int(nbytes)


def directly(system: Any, path: str, target: str, *, is_new: bool, **headers: str) -> None:
    """Upload to a server that shows nothing before the last request."""
    part_nbytes = max(PART_NBYTES, -(-os.path.getsize(path) // _MAX_PARTS))
    options = {
        "chunksize": -(-part_nbytes // PART_NBYTES) * PART_NBYTES,
        "max_concurrency": _NUM_CONNECTIONS,
        **({"mode": "create"} if is_new else {}),
    }
    # Not all drivers have all of these, and some pass any unknown name on to the request.
    known = inspect.signature(getattr(system, "_put_file", system.put_file)).parameters
    is_ours = is_new  # whether this upload wrote the file that exists after an error
    try:
        system.put_file(path, target, **{k: v for k, v in options.items() if k in known}, **headers)
        is_ours = True
        with suppress(PermissionError):  # some keys are for writing alone
            _check_length(system, target, os.path.getsize(path))
    except FileExistsError:
        raise
    except Exception:
        # Not after Ctrl-C, which would wait for a server that hangs: the driver itself completes
        # the upload, or leaves nothing that can be seen.
        with suppress(Exception):
            # Another program may have replaced it since: only a part of this file is deleted.
            held_nbytes = _num_held(system, target, path) if is_ours else None
            if held_nbytes is not None and held_nbytes < os.path.getsize(path):
                remove(system, target)
        raise


def and_rename(
    system: Any,
    path: str,
    target: str,
    *,
    is_new: bool,
    **headers: str,  # noqa: ARG001 - as `directly`
) -> None:
    """Upload under a temporary name, compare the length, and rename."""
    folder, _, name = target.rpartition("/")
    temporary = f"{folder}/{complete_files.temporary_name(name)}"
    try:
        system.put_file(path, temporary)
        _check_length(system, temporary, os.path.getsize(path))
        if is_new:
            check_absent(system, target)
        system.mv(temporary, target)
    except BaseException:
        with suppress(Exception):
            remove(system, temporary)
        raise


def _check_length(system: Any, path: str, nbytes: int) -> None:
    """Refuse a file that a driver closed after it had written a part."""
    system.invalidate_cache()
    found = system.info(path).get("size")
    if found not in (None, nbytes):
        message = f"{path}: expected {nbytes} bytes after the upload, found {found}"
        raise TransientError(message, is_outage=False)


def remove(system: Any, path: str) -> None:
    """Delete a file."""
    try:
        system.rm_file(path)
    except NotImplementedError:  # of drivers that only delete by pattern
        system.rm(glob.escape(path))


def check_absent(system: Any, path: str) -> None:
    """Raise FileExistsError if a file exists."""
    if has(system, path):
        raise FileExistsError


def has(system: Any, path: str) -> bool:
    """Return whether a file exists."""
    system.invalidate_cache()  # listings are cached, and others write too
    try:
        system.info(path)
    except FileNotFoundError:
        return False
    return True
