"""At most *n* open shards, the least recently used out first.

Nothing here knows how a shard is opened, or what a sample is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from wids.reading.range_shard import RemoteShard
from wids.tars.shard import Shard

AnyShard: TypeAlias = "Shard | RemoteShard"

MAX_OPEN_SHARDS: Final = 256
"""Default limit, where the process may open four times as many files."""


def default_size() -> int:
    """Give how many shards to keep open: a quarter of the process's file descriptors at most."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit for files opened this way
        return MAX_OPEN_SHARDS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_SHARDS if soft < 0 else max(1, min(MAX_OPEN_SHARDS, soft // 4))


class OpenShard(Protocol):
    """Opens the shard of a number."""

    def __call__(self, number: int, *, whole: bool, make_room: Callable[[], None]) -> AnyShard:
        """Open a shard.

        Args:
            number: Its number.
            whole: Whether all of it has to be on this machine, since more of it will be read.
            make_room: Closes shards that are open, where they are in the way.
        """


class ShardPool:
    """Open shards by number.

    There is no lock, so none can be held across a fork: each step is one operation on a plain dict,
    which is atomic, and a hit changes no more than a number. Two threads that miss a shard at
    once both open it, and the later one stays. A shard that falls out while a thread reads it is
    closed when that thread lets go of it, so each thread can hold one shard beyond ``size``.

    Args:
        open_shard: Opens the shard of a number.
        size: Most shards to keep open.
        limit_nbytes: Most bytes of shards to keep open, where more than one is; None for no limit.
            An open copy of a remote shard cannot be evicted from the cache.
    """

    def __init__(self, open_shard: OpenShard, size: int, limit_nbytes: int | None = None) -> None:
        self.open_shard = open_shard
        self.size = size
        self.limit_nbytes = limit_nbytes
        self.num_accesses = 0
        self.num_misses = 0
        self._entries: dict[int, _Entry] = {}

    def get(self, number: int, *, whole: bool = True) -> AnyShard:
        """Give the shard of a number, opened if need be; see `OpenShard`."""
        self.num_accesses += 1
        entry = self._entries.get(number)
        if entry is not None:
            whole = whole or entry.shard.is_spent
            if entry.is_local or not whole:
                entry.last_used = self.num_accesses
                return entry.shard
        self.num_misses += 1
        shard = self.open_shard(number, whole=whole, make_room=self.close)
        self._entries[number] = _Entry(shard, self.num_accesses)
        while len(self._entries) > self.size or self._is_too_long():
            # list() is one atomic step; an iterator would trip over other threads' changes.
            oldest = min(list(self._entries.items()), key=_last_used, default=None)
            if oldest is not None:
                self._entries.pop(oldest[0], None)
        return shard

    def _is_too_long(self) -> bool:
        if self.limit_nbytes is None or len(self._entries) < 2:
            return False
        shards = [entry.shard for entry in list(self._entries.values()) if entry.is_local]
        return sum(shard.nbytes for shard in shards) > self.limit_nbytes

    def close(self) -> None:
        """Let go of all shards; the next `get` opens them again."""
        self._entries.clear()

    def peek(self, number: int) -> AnyShard | None:
        """Give a shard that is open, as it is, or None."""
        entry = self._entries.get(number)
        return None if entry is None else entry.shard

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files again; only the settings travel.
        return {**self.__dict__, "_entries": {}}


class _Entry:
    """An open shard, and the number of the access that last used it."""

    __slots__ = ("is_local", "last_used", "shard")

    def __init__(self, shard: AnyShard, last_used: int) -> None:
        self.shard = shard
        self.is_local = shard.is_local
        self.last_used = last_used


def _last_used(item: tuple[int, _Entry]) -> int:
    return item[1].last_used
