"""Decide which remote shards are read by byte range, and which are fetched whole.

Nobody knows what a program will read next. A shard is fetched as soon as that is at most twice the
cost of the best choice in hindsight (decision 0093). A sampler does know: it announces the shards
of its pass, which are then fetched when they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wids.storage.shared_number import SharedArray

_ANNOUNCED: Final = 1 << 62
"""Stands for the bytes read of a shard that was announced."""

_SMALL_NBYTES: Final = 8 << 20
"""A shard that arrives about as soon as a part of it: batches wait for it."""


class RangeBudget:
    """Bytes that were read by range of each shard of a dataset, and which shards were announced.

    Shared with the processes that are started later, forked and spawned ones alike. A copy that is
    pickled for another machine starts from the current values. There is no lock: of two processes
    or threads that add at the same moment, one may not be counted, which only delays a fetch.

    Args:
        num_shards: Number of shards.
    """

    def __init__(self, num_shards: int) -> None:
        # For each shard, and the bytes of `let_ahead`.
        self._shared = SharedArray("q", num_shards + 1)

    def takes(self, number: int, shard_nbytes: int, nbytes: int) -> bool:
        """Whether to read this many bytes of a shard by range, which are then counted.

        Args:
            number: The shard.
            shard_nbytes: Its length.
            nbytes: Bytes to read; 0 to ask whether anything more is read by range.
        """
        values = self._shared.values
        read_nbytes = values[number]
        if read_nbytes == _ANNOUNCED:
            free_nbytes = values[-1]
            if shard_nbytes <= _SMALL_NBYTES or free_nbytes < max(nbytes, 1):
                return False
            values[-1] = free_nbytes - nbytes
            return True
        # What is transferred for the shard is then at most twice what the best choice would
        # transfer, whatever is read later (decision 0093).
        if read_nbytes + 2 * nbytes >= shard_nbytes:
            return False
        values[number] = read_nbytes + nbytes
        return True

    def announce(self, numbers: Iterable[int]) -> None:
        """Note shards that a pass reads whole, or in large part."""
        for number in numbers:
            self._shared.values[number] = _ANNOUNCED

    def forget_announced(self) -> None:
        """Count all shards that were announced from zero again."""
        for number in range(len(self._shared.values) - 1):
            if self._shared.values[number] == _ANNOUNCED:
                self._shared.values[number] = 0

    def let_ahead(self, nbytes: int) -> None:
        """Let batches read this many bytes of announced shards while these are being fetched.

        Without them, each batch waits for its shards.
        """
        self._shared.values[-1] = nbytes

    def note_fetched(self, number: int) -> None:
        """Count from zero again: if the copy of the shard is evicted, the choice is a new one."""
        if self._shared.values[number] != _ANNOUNCED:
            self._shared.values[number] = 0
