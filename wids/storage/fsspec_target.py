"""Write files with a driver of fsspec: under a temporary name, which is then renamed.

Drivers differ in what they show of an upload before its end, and in what they do with one that
fails. A rename shows a complete file with all of them.
"""

from __future__ import annotations

import glob
import os
from contextlib import suppress

from wids.storage import complete_files
from wids.storage.transport import urls
from wids.storage.transport.fsspec import Fsspec
from wids.storage.transport.stream import TransientError
from wids.storage.upload_target import Target


class FsspecTarget(Target):
    """A file that a driver of fsspec writes.

    Raises:
        FetchError: There is no driver for its scheme, or it leads to local files.
    """

    _transport: Fsspec

    def __init__(self, transport: Fsspec, url: str) -> None:
        super().__init__(transport, url)
        self._system, self._path = transport.file_system(url)

    def read(self) -> tuple[bytes, str | None]:
        """Return all bytes, of one version if the server states it."""
        before = self._transport(self._url, 0, 0, None).tag
        data = bytes(self._system.cat_file(self._path))
        if self._transport(self._url, 0, 0, None).tag != before:
            message = f"{urls.redact(self._url)}: it changed while it was being read"
            raise TransientError(message, is_outage=False)
        return data, None

    def put(self, path: str, *, is_new: bool, replaces: str | None) -> None:  # noqa: ARG002
        """Upload under a temporary name, compare the length, and rename."""
        folder, _, name = self._url.rpartition("/")
        url = f"{folder}/{complete_files.temporary_name(name)}"
        temporary = FsspecTarget(self._transport, url)
        try:
            self._system.put_file(path, temporary._path)
            temporary.check_length(os.path.getsize(path))
            if is_new:
                self.check_absent()
            self._system.mv(temporary._path, self._path)
        except BaseException:
            with suppress(Exception):
                temporary.remove()
            raise

    def move(self, url: str) -> None:
        """Rename the file."""
        self._system.mv(self._path, self._transport.file_system(url)[1])

    def remove(self) -> None:
        """Delete the file."""
        try:
            self._system.rm_file(self._path)
        except NotImplementedError:  # of drivers that only delete by pattern
            self._system.rm(glob.escape(self._path))
