"""A cache folder → the deletion of the temporary files that killed processes left in it."""

from __future__ import annotations

from wids.cache import names
from wids.files import abandoned


def sweep(folder: str) -> None:
    """Delete what killed processes left unfinished in a cache folder."""
    for part in (names.shards_folder(folder), names.indexes_folder(folder)):
        abandoned.sweep(part, names.is_temporary_name)
