"""Define what a place to write a file at can do: one attempt each, without retries.

`fsspec_target` and `object_target` have the two kinds, and `upload` repeats what failed.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

PIECE_NBYTES: Final = 16 << 20
"""Bytes of a file that are compared at a time."""


class Target(Protocol):
    """A file, or a folder, at a URL.

    Methods raise FileNotFoundError if it does not exist, and other errors of any kind.
    """

    def nbytes(self) -> int | None:
        """Return the length of the file, or None if the server does not state it."""

    def part(self, start: int, stop: int) -> bytes:
        """Return a part of the file."""

    def read(self) -> tuple[bytes, str | None]:
        """Return all bytes, and their version if the server can compare it; else None."""

    def save(self, path: str) -> None:
        """Write the file to a local path."""

    def names(self) -> list[str]:
        """Return the names in the folder; none if it does not exist."""

    def put(self, path: str, *, is_new: bool, replaces: str | None) -> None:
        """Upload a complete local file, so that nothing is visible before its last byte.

        Raises:
            FileExistsError: ``is_new``, and the file exists.
            object_store.RefusedVersionError: It has another version than ``replaces``.
        """

    def move(self, url: str) -> None:
        """Rename the file, over any file that has the other URL."""

    def remove(self) -> None:
        """Delete the file."""


def exists(target: Target) -> bool:
    """Return whether a file exists."""
    try:
        target.nbytes()
    except FileNotFoundError:
        return False
    return True


def is_same(target: Target, path: str) -> bool:
    """Return whether a target has the bytes of a local file."""
    try:
        if target.nbytes() != os.path.getsize(path):
            return False
        with open(path, "rb") as file:
            start = 0
            while piece := file.read(PIECE_NBYTES):
                if target.part(start, start + len(piece)) != piece:
                    return False
                start += len(piece)
    except FileNotFoundError:
        return False
    return True
