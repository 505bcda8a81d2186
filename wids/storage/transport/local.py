"""Open local files, and files that a caller's handler opens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeAlias

from wids.errors import FetchError, local_error
from wids.storage.transport import urls
from wids.storage.transport.stream import Entry, Stream, Transport, driver_error, file_stream

Opener: TypeAlias = Callable[[str], IO[bytes]]
"""A caller's function that opens a URL as a binary file."""


def transport_for(options: Mapping[str, Any], scratch: str | None) -> Transport:  # noqa: ARG001
    """Return the transport of local files; there are no options for them."""
    return Local()


class Local(Transport):
    """Reads the files of this machine."""

    def open(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:  # noqa: ARG002
        """Open a file; it has no tag."""
        path = urls.local_path(url)
        try:
            file = open(path, "rb")  # noqa: SIM115 - the stream closes it
        except OSError as error:
            raise local_error(path, error) from error
        return file_stream(url, file, start, stop)

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder; lengths are not asked for."""
        path = urls.local_path(folder)
        try:
            with os.scandir(path) as found:
                return [Entry(entry.name, None, entry.is_dir()) for entry in found]
        except FileNotFoundError as error:
            raise local_error(path, error) from error
        except OSError as error:
            reason = error.strerror or error
            raise FetchError(f"{path}: expected a readable folder, found: {reason}") from error


class Handler(Transport):
    """Reads the files that a caller's opener returns; it can be pickled if the opener can."""

    states_nbytes = False  # the opener may fetch all of the file

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    def open(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:  # noqa: ARG002
        """Open a file with one call of the opener."""
        try:
            file = self._opener(url)
        except Exception as error:
            raise driver_error(url, error) from error
        return file_stream(url, file, start, stop)
