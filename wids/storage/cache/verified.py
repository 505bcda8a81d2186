"""Verify the digests of files that this user's cache did not fetch itself.

Users place files in the folder, and other users of a shared folder fetch copies. Hashing takes a
while, so each file is hashed once. A note records the result for its length and modification time.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TypeAlias

from wids.storage.cache.cache_names import (
    RemoteFile,
    default_folder,
    local_index_path,
    save_quietly,
)
from wids.storage.files import file_digest, read_or_map

_Proof: TypeAlias = tuple[object, ...]

_logger = logging.getLogger(__name__)


class VerifiedFiles:
    """The files that this process or an earlier one compared with their digests.

    Args:
        folder: The cache folder, for the notes.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._results: dict[_Proof, bool] = {}

    def verify(self, path: str, remote_file: RemoteFile) -> bool:
        """Return whether a file exists and has the stated digests; hash it if that is not known."""
        digests = remote_file.digests()
        with suppress(OSError):  # another process has discarded it, or it cannot be read
            proof = _proof(path, remote_file)
            # Nothing is known to compare with; specs/security.md states what remains (SEC-41).
            if not digests:
                return True
            if proof not in self._results:
                # In the cache folder, or in the default one of this user.
                folders = dict.fromkeys((self._folder, default_folder()))
                notes = [note_path(folder, path) for folder in folders]
                is_equal = any(_has_own_note(note, proof) for note in notes)
                if not is_equal and all(file_digest(path, name) == d for name, d in digests):
                    is_equal = True
                    # Read back: where every file belongs to one user, as on some network file
                    # systems, the note in the cache folder would never be trusted.
                    any(save_quietly(n, _note(proof)) and _has_own_note(n, proof) for n in notes)
                if not is_equal:
                    _logger.warning(
                        "%s: not used: its digest is not the one that the spec states", path
                    )
                self._results[proof] = is_equal
            return self._results[proof]
        return False

    def note_fetched(self, path: str, remote_file: RemoteFile) -> None:
        """Note that a file was verified while it was fetched."""
        self._results[_proof(path, remote_file)] = True


def note_path(folder: str, path: str) -> str:
    """Return where the note on a file is in a cache folder."""
    return local_index_path(folder, path, "first") + ".proof"


def _proof(path: str, remote_file: RemoteFile) -> _Proof:
    status = os.stat(path)
    # With the digests: a file that was verified for one spec is not verified for another (CACHE-4).
    return (path, status.st_size, status.st_mtime_ns, *remote_file.digests())


def _note(proof: _Proof) -> bytes:
    return repr(proof).encode("utf-8", "surrogateescape")


def _has_own_note(path: str, proof: _Proof) -> bool:
    """Return whether this user wrote this note; users of a folder need not trust each other."""
    return read_or_map(path, is_own=True) == _note(proof)
