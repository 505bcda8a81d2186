"""Open local files, and turn a caller's opener into a transport."""

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
    return open_local


def open_local(url: str, start: int, stop: int | None, tag: str | None) -> Stream:  # noqa: ARG001
    """Open a local file.

    Raises:
        NotFoundError: There is no such file.
        FetchError: It cannot be read.
    """
    path = urls.local_path(url)
    try:
        file = open(path, "rb")  # noqa: SIM115 - the stream closes it
    except OSError as error:
        raise local_error(path, error) from error
    return file_stream(url, file, start, stop)


def entries(path: str) -> list[Entry]:
    """Return what is in a folder of this machine.

    Raises:
        NotFoundError: There is no such folder.
        FetchError: It cannot be listed.
    """
    try:
        with os.scandir(path) as found:
            return [Entry(entry.name, None, entry.is_dir()) for entry in found]
    except FileNotFoundError as error:
        raise local_error(path, error) from error
    except OSError as error:
        reason = error.strerror or error
        raise FetchError(f"{path}: expected a readable folder, found: {reason}") from error


def from_opener(open_file: Opener) -> Transport:
    """Return the transport that reads the files which a caller's opener returns."""

    def transport(url: str, start: int, stop: int | None, tag: str | None) -> Stream:  # noqa: ARG001
        try:
            file = open_file(url)
        except Exception as error:
            raise driver_error(url, error) from error
        return file_stream(url, file, start, stop)

    return transport
