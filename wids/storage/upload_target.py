"""A place to write a file at, with what both kinds of places share: one attempt each, no retries.

`fsspec_target` and `object_target` have the two kinds, and `upload` repeats what failed.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

from wids.errors import NotFoundError
from wids.storage.transport import urls
from wids.storage.transport.fsspec import Fsspec
from wids.storage.transport.object_store import ObjectStores
from wids.storage.transport.stream import TransientError

PIECE_NBYTES: Final = 16 << 20
"""Bytes of a file that are compared at a time."""


class Target(ABC):
    """A file, or a folder, at a URL.

    Methods raise FileNotFoundError if it does not exist, and other errors of any kind.

    Args:
        transport: Reads it.
        url: Where it is.
    """

    def __init__(self, transport: Fsspec | ObjectStores, url: str) -> None:
        self._transport = transport
        self._url = url

    def nbytes(self) -> int | None:
        """Return the length of the file, or None if the server does not state it."""
        return self._transport(self._url, 0, 0, None).total_nbytes

    def exists(self) -> bool:
        """Return whether the file exists."""
        try:
            self.nbytes()
        except FileNotFoundError:
            return False
        return True

    def check_absent(self) -> None:
        """Raise FileExistsError if the file exists."""
        if self.exists():
            raise FileExistsError

    def save(self, path: str) -> None:
        """Write the file to a local path."""
        with open(path, "wb") as file, self._transport(self._url, 0, None, None) as stream:
            file.writelines(stream.chunks)
            if stream.total_nbytes not in (None, file.tell()):
                message = f"{urls.redact(self._url)}: expected all of it, found a part"
                raise TransientError(message, is_outage=False)

    def names(self) -> list[str]:
        """Return the names in the folder; none if it does not exist."""
        with suppress(NotFoundError):
            return [entry.name for entry in self._transport.entries(self._url)]
        return []

    def has_bytes_of(self, path: str) -> bool:
        """Return whether the file has the bytes of a local file."""
        try:
            if self.nbytes() != os.path.getsize(path):
                return False
            with open(path, "rb") as file:
                start = 0
                while piece := file.read(PIECE_NBYTES):
                    stop = start + len(piece)
                    with self._transport(self._url, start, stop, None) as stream:
                        if b"".join(stream.chunks) != piece:
                            return False
                    start = stop
        except FileNotFoundError:
            return False
        return True

    def check_length(self, expected: int) -> None:
        """Refuse an upload of which only a part has arrived, and delete that."""
        found = self.nbytes()
        if found in (None, expected):
            return
        if found is not None and found < expected:
            self.remove()
        message = f"{urls.redact(self._url)}: expected {expected} bytes after the upload, "
        raise TransientError(f"{message}found {found}", is_outage=False)

    @abstractmethod
    def read(self) -> tuple[bytes, str | None]:
        """Return all bytes, and their version if the server can compare it; else None."""

    @abstractmethod
    def put(self, path: str, *, is_new: bool, replaces: str | None) -> None:
        """Upload a complete local file, so that nothing is visible before its last byte.

        Raises:
            FileExistsError: ``is_new``, and the file exists.
            object_store.RefusedVersionError: It has another version than ``replaces``.
        """

    @abstractmethod
    def move(self, url: str) -> None:
        """Rename the file, over any file that has the other URL."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the file."""
