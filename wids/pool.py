"""At most *n* open shards, the least recently used out first.

The pool opens shards by number with the callable it is given; it knows no paths, specs or samples.
"""

from __future__ import annotations

from collections import OrderedDict
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

    There is no lock, so none can be held across a fork: each step is one operation on a dict, which
    is atomic. Two threads that miss the same shard at once both open it and the later one stays. A
    shard that falls out while a thread reads it is closed when that thread lets go of it. Each
    thread can hold one shard beyond ``size`` in that way.

    Args:
        open_shard: Opens the shard of a number.
        size: Most shards to keep open.
    """

    def __init__(self, open_shard: Callable[[int], Shard], size: int) -> None:
        self.open_shard = open_shard
        self.size = size
        self.num_accesses = 0
        self.num_misses = 0
        self._shards: OrderedDict[int, Shard] = OrderedDict()

    def get(self, number: int) -> Shard:
        """Give the shard of a number, opened if need be."""
        self.num_accesses += 1
        try:
            self._shards.move_to_end(number)
            return self._shards[number]
        except KeyError:  # not there, or put out by another thread between the two lines
            self.num_misses += 1
        shard = self.open_shard(number)
        self._shards[number] = shard
        while len(self._shards) > self.size:
            try:
                self._shards.popitem(last=False)
            except KeyError:  # another thread emptied the pool
                break
        return shard

    def close(self) -> None:
        """Let go of all shards; the next `get` opens them again."""
        self._shards.clear()

    def __len__(self) -> int:
        return len(self._shards)

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files again; only the settings travel.
        return {**self.__dict__, "_shards": OrderedDict()}
