"""Sweep a cache folder: delete what killed processes left there."""

from __future__ import annotations

from wids.storage import abandoned
from wids.storage.cache import cache_names


def sweep(folder: str) -> None:
    """Delete the temporary files that killed processes left in a cache folder."""
    for part in (cache_names.shards_folder(folder), cache_names.indexes_folder(folder)):
        abandoned.sweep(part, cache_names.is_temporary_name)
