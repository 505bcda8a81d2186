"""Write files with a driver of fsspec: under a temporary name, which is then renamed.

Drivers differ in what they show of an upload before its end, and in what they do with one that
fails. A rename shows a complete file with all of them.
"""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from typing import Any

from wids.errors import printable
from wids.storage import complete_files
from wids.storage.transport.stream import TransientError


class FsspecTarget:
    """A file at a path of a file system of fsspec; see `upload_target.Target`.

    Args:
        system: The file system.
        path: The path there.
    """

    def __init__(self, system: Any, path: str) -> None:
        self._system = system
        self._path = path

    def nbytes(self) -> int | None:
        """Return the length of the file."""
        self._system.invalidate_cache()  # listings are cached, and others write too
        nbytes: int | None = self._system.info(self._path).get("size")
        return nbytes

    def part(self, start: int, stop: int) -> bytes:
        """Return a part of the file."""
        return bytes(self._system.cat_file(self._path, start=start, end=stop))

    def read(self) -> tuple[bytes, str | None]:
        """Return all bytes, of one version if the server states it."""
        before = self._tag()
        data = bytes(self._system.cat_file(self._path))
        if self._tag() != before:
            message = f"{printable(self._path)}: it changed while it was being read"
            raise TransientError(message, is_outage=False)
        return data, None

    def _tag(self) -> object:
        self._system.invalidate_cache()
        return self._system.info(self._path).get("ETag")

    def save(self, path: str) -> None:
        """Write the file to a local path."""
        self._system.get_file(self._path, path)

    def names(self) -> list[str]:
        """Return the names in the folder."""
        self._system.invalidate_cache()
        with suppress(FileNotFoundError):
            found = self._system.ls(self._path, detail=False)
            return [str(name).rstrip("/").rpartition("/")[2] for name in found]
        return []

    def put(self, path: str, *, is_new: bool, replaces: str | None) -> None:  # noqa: ARG002
        """Upload under a temporary name, compare the length, and rename."""
        folder, _, name = self._path.rpartition("/")
        temporary = f"{folder}/{complete_files.temporary_name(name)}"
        at_temporary = FsspecTarget(self._system, temporary)
        try:
            self._system.put_file(path, temporary)
            at_temporary._check_length(os.path.getsize(path))
            if is_new:
                self._check_absent()
            self._system.mv(temporary, self._path)
        except BaseException:
            with suppress(Exception):
                at_temporary.remove()
            raise

    def _check_length(self, expected: int) -> None:
        """Refuse a file that a driver closed after it had written a part."""
        found = self.nbytes()
        if found not in (None, expected):
            message = f"{self._path}: expected {expected} bytes after the upload, found {found}"
            raise TransientError(message, is_outage=False)

    def _check_absent(self) -> None:
        with suppress(FileNotFoundError):
            self.nbytes()
            raise FileExistsError

    def move(self, url: str) -> None:
        """Rename the file."""
        self._system.mv(self._path, self._system._strip_protocol(url))  # noqa: SLF001

    def remove(self) -> None:
        """Delete the file."""
        try:
            self._system.rm_file(self._path)
        except NotImplementedError:  # of drivers that only delete by pattern
            self._system.rm(glob.escape(self._path))
