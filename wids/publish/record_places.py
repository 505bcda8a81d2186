"""Keep where the records of a journal begin, in 16 bytes for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from wids.storage.array_types import IntArray

_MIN_RECENT: Final = 1 << 12
"""Least keys in a dict, which takes ten times the memory, before they are sorted into arrays."""
_SHARE: Final = 64
"""As many keys of the arrays, or more, for each in the dict, so that sorting costs little."""


class RecordPlaces:
    """A map from keys below 2**63 to places in a file."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all places."""
        self._recent: dict[int, int] = {}
        self._keys: IntArray = np.empty(0, np.int64)  # ascending
        self._places: IntArray = np.empty(0, np.int64)

    def get(self, key: int) -> int | None:
        """Return the place of a key; None for an unknown one."""
        place = self._recent.get(key)
        if place is None:
            at = int(np.searchsorted(self._keys, key))
            if at < len(self._keys) and self._keys[at] == key:
                place = int(self._places[at])
        return place

    def __setitem__(self, key: int, place: int) -> None:
        self._recent[key] = place
        if len(self._recent) >= max(_MIN_RECENT, len(self._keys) // _SHARE):
            self._sort()

    def __len__(self) -> int:
        self._sort()
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        """Yield the places, in their order."""
        self._sort()
        return map(int, np.sort(self._places))

    def _sort(self) -> None:
        """Move the recent keys to the arrays."""
        if not self._recent:
            return
        count = len(self._recent)
        keys = np.concatenate((np.fromiter(self._recent, np.int64, count), self._keys))
        places = np.fromiter(self._recent.values(), np.int64, count)
        # Of a key that is in both, the first place is kept, which is the recent one.
        self._keys, first = np.unique(keys, return_index=True)
        self._places = np.concatenate((places, self._places))[first]
        self._recent.clear()
