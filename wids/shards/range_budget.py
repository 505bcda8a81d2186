"""Count the bytes of each shard that are read by range, and decide when they are enough.

Nobody knows what a program will read next. A shard is fetched as soon as that is at most twice the
cost of the best choice in hindsight (decision 0093). A sampler does know: it announces the shards
of its pass, which are then fetched when they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wids.storage.shared_numbers import SharedArray

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
        self._read_nbytes = SharedArray("q", num_shards)
        self._announced = SharedArray("B", num_shards)
        self._ahead_nbytes = SharedArray("q", 1)

    def is_spent(self, number: int, shard_nbytes: int) -> bool:
        """Whether nothing more of a shard of this length is read by range."""
        if self._announced.values[number]:
            return shard_nbytes <= _SMALL_NBYTES or self._ahead_nbytes.values[0] < 1
        return bool(self._read_nbytes.values[number] >= shard_nbytes)

    def takes(self, number: int, shard_nbytes: int, nbytes: int) -> bool:
        """Whether to read this many bytes of a shard by range, which are then counted.

        Args:
            number: The shard.
            shard_nbytes: Its length.
            nbytes: Bytes to read.
        """
        if self.is_spent(number, shard_nbytes):
            return False
        announced, ahead, read = self._announced, self._ahead_nbytes, self._read_nbytes
        if announced.values[number]:
            left_nbytes = ahead.values[0] - nbytes
            if left_nbytes < 0:
                return False
            ahead.values[0] = left_nbytes
            return True
        # What is transferred until its copy is evicted is then at most twice what the best choice
        # would transfer, whatever is read later (decision 0093).
        read_nbytes = read.values[number]
        if read_nbytes + 2 * nbytes >= shard_nbytes:
            return False
        read.values[number] = read_nbytes + nbytes
        return True

    def announce(self, numbers: Iterable[int]) -> None:
        """Note shards that a pass reads whole, or in large part."""
        for number in numbers:
            self._announced.values[number] = 1

    def forget_announced(self) -> None:
        """Count all shards that were announced from zero again."""
        for number, is_announced in enumerate(self._announced.values):
            if is_announced:
                self._announced.values[number] = self._read_nbytes.values[number] = 0

    def let_ahead(self, nbytes: int) -> None:
        """Let batches read this many bytes of announced shards while these are being fetched.

        Without them, each batch waits for its shards.
        """
        self._ahead_nbytes.values[0] = nbytes

    def note_fetched(self, number: int) -> None:
        """Count from zero again: if the copy of the shard is evicted, the choice is a new one."""
        self._read_nbytes.values[number] = 0
