"""Keep at most *n* shards open, in an LRU cache by number."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Protocol

from wids.shards.tars.raw_samples import PooledShard
from wids.shards.tars.shard import Shard
from wids.storage import stages
from wids.storage.shared_numbers import SharedRows
from wids.storage.stages import this_process

_LAST_USED: Final = attrgetter("last_used")  # several times faster than a Python function


class OpenShard(Protocol):
    """A callable that opens a shard by its number."""

    def __call__(self, number: int, *, local: bool, make_room: Callable[[], None]) -> PooledShard:
        """Open a shard.

        Args:
            number: Its number.
            local: Whether the shard must be a local file, because much of it will be read.
            make_room: Closes open shards, which prevent the cache from evicting their files.
        """


class ShardPool:
    """Open shards by number.

    Safe to use from any number of threads. There is no lock, so none can be held across a fork:
    each step is one atomic operation on a plain dict, and a hit only changes a number. If two
    threads miss a shard at the same time, both open it and the later one stays. A shard that is
    evicted while a thread reads it is closed when that thread releases it, so each thread can hold
    one shard beyond ``size``.

    Args:
        open_shard: Opens a shard by its number.
        size: Most shards to keep open.
        limit_nbytes: Most bytes of local shards to keep open, if there is more than one; None for
            no limit. The cache cannot evict a copy while it is open.

    Attributes:
        num_accesses: How often this process requested a shard.
        num_misses: How often it had to open it.
        counts: The same, in all processes that share the dataset; but a process that was not
            started by another one counts its accesses in ``num_accesses`` alone.
    """

    def __init__(self, open_shard: OpenShard, size: int, limit_nbytes: int | None = None) -> None:
        self.open_shard = open_shard
        self.size = size
        self.limit_nbytes = limit_nbytes
        self.num_accesses = self._num_published = 0
        self.num_misses = 0
        self.counts = SharedRows(0, 0)
        self._entries: dict[int, _Entry] = {}
        self._opened: set[int] = set()

    def announce(self, number: int, local_indices: list[int]) -> None:
        """Read samples with large members ahead from the disk, if their shard is open and local."""
        entry = self._entries.get(number)
        if entry is not None and isinstance(entry.shard, Shard):
            entry.shard.announce(local_indices)

    def get(self, number: int, local: bool = True) -> PooledShard:
        """Return a shard by its number, and open it if necessary; see `OpenShard`."""
        # Two threads may read the same count here. A count or an age is then off by one, which
        # changes what is evicted first but never what is read.
        now = self.num_accesses = self.num_accesses + 1
        if this_process.is_child:
            self.counts.row[0] += 1
        entry = self._entries.get(number)
        if entry is not None:
            # Once enough of a shard was read by range, the whole file is better.
            if entry.is_local or not (local or entry.shard.is_spent):
                entry.last_used = now
                return entry.shard
            local = True
        self._publish()
        self.num_misses += 1
        self.counts.row[1] += 1
        self.counts.common[0] = number
        stages.count(stages.OPENINGS)
        if number in self._opened:
            stages.count(stages.REOPENINGS)
        self._opened.add(number)
        shard = self.open_shard(number, local=local, make_room=self.close)
        # Another thread may have stored its own shard of this number since the miss. The later one
        # stays, and the other is closed when its reader releases it.
        self._entries[number] = _Entry(number, shard, now)
        while len(self._entries) > self.size or self._is_too_long():
            # list() is one atomic step; other threads would change the dict under an iterator.
            oldest = min(list(self._entries.values()), key=_LAST_USED, default=None)
            # None, or a number that is gone: another thread evicted it or called `close`.
            if oldest is not None:
                self._entries.pop(oldest.number, None)
        return shard

    def usage(self) -> tuple[int, int]:
        """Return how often shards were requested, and opened, in all processes that share this."""
        self._publish()
        num_accesses, num_misses = map(int, self.counts.sums())
        return num_accesses, num_misses

    @property
    def last_opened(self) -> int:
        """The shard that was opened last, or is being opened, in all these processes."""
        return int(self.counts.common[0])

    def _publish(self) -> None:
        """Add to the counts what this process has not added at each access."""
        if not this_process.is_child:
            self.counts.row[0] += self.num_accesses - self._num_published
            self._num_published = self.num_accesses

    def peek(self, number: int) -> PooledShard | None:
        """Return a shard if it is open, without counting as a use."""
        entry = self._entries.get(number)
        return None if entry is None else entry.shard

    def has_local(self, number: int) -> bool:
        """Whether a shard is open as a local file."""
        entry = self._entries.get(number)
        return entry is not None and entry.is_local

    def drop(self, number: int, shard: PooledShard) -> None:
        """Release a shard, unless another one has taken its place."""
        entry = self._entries.get(number)
        if entry is not None and entry.shard is shard:
            self._entries.pop(number, None)

    def close(self) -> None:
        """Release all shards; the next `get` opens them again."""
        # Left to the garbage collector: another thread may be reading one of them.
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the files itself, so only the settings are pickled.
        self._publish()
        counts = {"num_accesses": 0, "_num_published": 0}
        return {**self.__dict__, **counts, "_entries": {}, "_opened": set()}

    def _is_too_long(self) -> bool:
        # One shard always stays, however long: the caller is about to read it.
        if self.limit_nbytes is None or len(self._entries) < 2:
            return False
        # Only these hold a lease, which prevents the cache from deleting their files (CACHE-7).
        shards = [entry.shard for entry in list(self._entries.values()) if entry.is_local]
        return sum(shard.nbytes for shard in shards) > self.limit_nbytes


class _Entry:
    """An open shard, and the number of the access that last used it."""

    __slots__ = ("is_local", "last_used", "number", "shard")

    def __init__(self, number: int, shard: PooledShard, last_used: int) -> None:
        self.number = number
        self.shard = shard
        self.is_local = shard.is_local  # read at each hit, and faster than a property
        self.last_used = last_used
