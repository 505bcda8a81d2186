"""At most *n* open shards, the least recently used out first.

The pool opens shards by number with the callable it is given; it knows no paths, specs or samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from wids.shard import Shard

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


class ShardPool:
    """Open shards by number.

    There is no lock, so none can be held across a fork: each step is one operation on a plain dict,
    which is atomic, and a hit changes no more than a number. Two threads that miss a shard at
    once both open it, and the later one stays. A shard that falls out while a thread reads it is
    closed when that thread lets go of it, so each thread can hold one shard beyond ``size``.

    Args:
        open_shard: Opens the shard of a number.
        size: Most shards to keep open.
    """

    def __init__(self, open_shard: Callable[[int], Shard], size: int) -> None:
        self.open_shard = open_shard
        self.size = size
        self.num_accesses = 0
        self.num_misses = 0
        self._entries: dict[int, _Entry] = {}

    def get(self, number: int) -> Shard:
        """Give the shard of a number, opened if need be."""
        self.num_accesses += 1
        entry = self._entries.get(number)
        if entry is not None:
            entry.last_used = self.num_accesses
            return entry.shard
        self.num_misses += 1
        shard = self.open_shard(number)
        self._entries[number] = _Entry(shard, self.num_accesses)
        while len(self._entries) > self.size:
            # list() is one atomic step; an iterator would trip over other threads' changes.
            oldest = min(list(self._entries.items()), key=_last_used)
            self._entries.pop(oldest[0], None)
        return shard

    def close(self) -> None:
        """Let go of all shards; the next `get` opens them again."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files again; only the settings travel.
        return {**self.__dict__, "_entries": {}}


class _Entry:
    """An open shard, and the number of the access that last used it."""

    __slots__ = ("last_used", "shard")

    def __init__(self, shard: Shard, last_used: int) -> None:
        self.shard = shard
        self.last_used = last_used


def _last_used(item: tuple[int, _Entry]) -> int:
    return item[1].last_used
