"""Read the keys of a dataset or view from the indexes of its shards, as a sequence.

Keys are read from indexes when they are asked for, a shard at a time. No sample is read, and no
shard is fetched.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, overload

from wids.errors import WidsError, printable
from wids.shards.positions import Positions, as_index, first_index_of, from_start, in_turn, select
from wids.shards.reader import ShardReader
from wids.shards.tars.headers import to_text

_PART: Final = 8
"""If less than one in this many of a shard's keys is wanted, they are decoded one by one."""


class Keys(Sequence[str]):
    """The keys of a dataset or view, in the order of its samples.

    ``key in keys`` and ``keys.index(key)`` take constant time, as `find_key` does. A slice, a list
    of indices or a mask selects the keys of that view. Nothing is stored: each pass reads the
    indexes of the shards.

    Raises:
        FetchError: When keys are read: a remote shard has no index.
    """

    def __init__(self, shards: ShardReader, positions: Positions) -> None:
        self._shards = shards
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: Any) -> Keys: ...
    def __getitem__(self, index: Any) -> str | Keys:
        try:
            index = as_index(index)
        except TypeError:
            return Keys(self._shards, select(self._positions, index))
        position = int(self._positions[from_start(index, len(self))])
        number, local_index = self._shards.locate(position)
        return self._shards.key_index(number).key(local_index)

    def __iter__(self) -> Iterator[str]:
        places = map(self._shards.locate, in_turn(self._positions))
        for number, run in groupby(places, operator.itemgetter(0)):
            shard_index, local_indices = self._shards.key_index(number), [i for _, i in run]
            if len(local_indices) * _PART < len(shard_index):
                yield from map(shard_index.key, local_indices)
            else:
                stored = shard_index.stored_keys()
                yield from (to_text(stored[local_index]) for local_index in local_indices)

    def __reversed__(self) -> Iterator[str]:
        return iter(self[::-1])

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) >= 0

    def index(self, key: str, start: int = 0, stop: int | None = None) -> int:
        """Return the index of the first sample with a key.

        Raises:
            ValueError: No sample has the key.
        """
        if start == 0 and stop is None:
            index = self._find(key)
            if index < 0:
                raise ValueError(f"{key!r} is not among these {len(self)} keys")
            return index
        start, stop, _ = slice(start, stop).indices(len(self))
        return start + self[start:stop].index(key)

    def _find(self, key: str) -> int:
        return first_index_of(self._positions, self._shards.find(key))

    def __repr__(self) -> str:
        text = f"<Keys of {len(self)} samples"
        try:
            shown = [repr(self[index]) for index in range(min(len(self), 2))]
        except WidsError:  # an index that is not available, or damaged
            shown = []
        more = ", …" if len(self) > len(shown) > 0 else ""
        return printable(f"{text}: {', '.join(shown)}{more}>" if shown else f"{text}>")
