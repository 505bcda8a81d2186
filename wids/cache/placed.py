"""A file that the user placed → whether it has the digests that its spec states.

Hashing takes a while, so each state of a file is hashed once, and a note of the result is kept in
the cache folder, bound to the file's length and modification time.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TypeAlias

from wids.cache.names import RemoteFile, local_index_path
from wids.cache.saving import save_quietly
from wids.files.digests import file_digest

_Proof: TypeAlias = tuple[object, ...]

_logger = logging.getLogger("wids")


class PlacedFiles:
    """The placed files that were verified, by this process or by one before it.

    Args:
        folder: The cache folder, for the notes.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._verified: set[_Proof] = set()

    def verify(self, path: str, status: os.stat_result, remote_file: RemoteFile) -> bool:
        """Return whether a file has the stated digests; hash it if that is not known yet."""
        digests = remote_file.digests()
        if not digests:
            return True
        proof = _proof(path, status, remote_file)
        if proof in self._verified:
            return True
        note_path = local_index_path(self._folder, path, "first") + ".proof"
        note = repr(proof).encode("utf-8", "surrogateescape")
        if _has_own_note(note_path, note):
            self._verified.add(proof)
            return True
        try:
            is_equal = all(file_digest(path, name) == digest for name, digest in digests)
        except OSError:
            return False
        if is_equal:
            self._verified.add(proof)
            save_quietly(note_path, note)
        else:
            _logger.warning("%s: not used: its digest is not the one that the spec states", path)
        return is_equal

    def note_fetched(self, path: str, remote_file: RemoteFile) -> None:
        """Note that a file was verified while it was fetched."""
        self._verified.add(_proof(path, os.stat(path), remote_file))


def _proof(path: str, status: os.stat_result, remote_file: RemoteFile) -> _Proof:
    return (path, status.st_size, status.st_mtime_ns, *remote_file.digests())


def _has_own_note(path: str, note: bytes) -> bool:
    """Whether this user wrote this note; users who share a folder need not trust each other."""
    with suppress(OSError), open(path, "rb") as file:
        is_own = not hasattr(os, "geteuid") or os.stat(path).st_uid == os.geteuid()
        return is_own and file.read() == note
    return False
