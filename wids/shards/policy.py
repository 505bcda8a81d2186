"""Decide how a shard is read: this is the only place that does.

A file of this machine is mapped, and so is a copy in the cache. For the others it depends on what
is wanted, on ``access``, and on what is known of the shard:

| ``access``               | `PART` | `SAMPLES` | `MOST` | `FILE` |
|--------------------------|--------|-----------|--------|--------|
| ``"range"``              | range  | range     | range  | fetch  |
| ``"download"``           | range* | fetch     | fetch  | fetch  |
| ``"auto"``               | range* | range*    | fetch  | fetch  |

(*) Fetched instead if it has no index, if its server sends whole files only, or, with ``"auto"``,
if enough of it was read by range (`RangeBudget`). With ``access="range"`` it is never fetched for
samples: without an index, opening it is an error.

One sample and a batch differ only in the bytes that are counted, and a pass is `MOST` where it
reads a quarter of a shard or more.

Nobody knows what a program will read next. A shard is fetched as soon as that is at most twice the
cost of the best choice in hindsight (decision 0093). A sampler does know: it announces the shards
of its pass, which are then fetched when they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, Protocol

from wids.shards.read_options import AccessMode
from wids.storage.stages import SharedArray


class Wanted(Enum):
    """What a caller wants of a shard."""

    PART = auto()
    """Its index, its keys, or part of a field."""
    SAMPLES = auto()
    """Some samples: one, or those of a batch."""
    MOST = auto()
    """A quarter of its samples or more, as in a pass, or all bytes; or what ranges cannot give."""
    FILE = auto()
    """A file of this machine."""


class Way(Enum):
    """How a shard is read."""

    MAP = auto()
    """It is a file of this machine, which is mapped."""
    COPY = auto()
    """It has a copy in the cache, which is mapped."""
    RANGE = auto()
    """The bytes of members are requested from its server."""
    FETCH = auto()
    """It is downloaded into the cache, and the copy is mapped."""


class KnownShard(Protocol):
    """What is known of one shard; each fact is looked up when it is asked for."""

    @property
    def path(self) -> str | None:
        """The path of a shard that is a file of this machine."""

    @property
    def has_copy(self) -> bool:
        """Whether the cache has a copy."""

    @property
    def access(self) -> AccessMode:
        """What the caller of the dataset allows."""

    @property
    def sends_ranges(self) -> bool:
        """Whether its server may send ranges."""

    @property
    def is_spent(self) -> bool:
        """Whether enough of it was read by range."""

    @property
    def has_index(self) -> bool:
        """Whether its index is known without the shard; finding out may take a request."""


def way_to_read(wanted: Wanted, shard: KnownShard, *, supposes_index: bool = False) -> Way:
    """Return how to read a shard.

    Args:
        wanted: What is wanted of it.
        shard: What is known of it.
        supposes_index: Whether to answer, without a request, as if its index were known.
    """
    if shard.path is not None:
        return Way.MAP
    if shard.has_copy:
        return Way.COPY
    access = shard.access
    if access == "range":
        return Way.FETCH if wanted is Wanted.FILE else Way.RANGE
    may_range = wanted is Wanted.PART or (wanted is Wanted.SAMPLES and access == "auto")
    # Without ranges, each attempt would start the transfer of the whole file.
    if not may_range or not shard.sends_ranges or shard.is_spent:
        return Way.FETCH
    return Way.RANGE if supposes_index or shard.has_index else Way.FETCH


def wanted_instead(wanted: Wanted, access: AccessMode) -> Wanted | None:
    """Return what to want of a shard that cannot be read by range after all.

    None if the error stands: it was not read by range, or must not be fetched.
    """
    return Wanted.MOST if wanted in _BY_RANGE and access != "range" else None


_BY_RANGE: Final = Wanted.PART, Wanted.SAMPLES

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
