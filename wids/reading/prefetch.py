"""The indices that a sampler gives → the remote shards that they will need, fetched ahead.

A sampler knows its future, so the next shards are fetched while the present one is read: by a few
threads of the process that runs the sampler, whatever the number of DataLoader workers. Readers
find the shard in the cache, or wait for it there. This room never sees a sample.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import tee
from typing import Any, Final, Protocol

from torch.utils.data import DistributedSampler, Sampler

from wids.cache.store import BackgroundFetch
from wids.files.sizes import parse_nbytes
from wids.sampling.chunked import ChunkedSampler

_logger = logging.getLogger("wids")

DEFAULT_NBYTES: Final = 8 << 30
_LOOK_AGAIN: Final = 4096
"""Indices after which a shard that comes up again is looked for again: it may have been evicted."""

_FIRST_LOOK: Final = 50_000
"""Indices to look at before the first is handed out: about ten milliseconds."""
_LOOK_FASTER: Final = 10
"""Indices to look at for each that is handed out: a pass over shards that are all here is not
looked through before it begins, and the next shard is found when a tenth of this one was read."""
_LOOK_EVERY: Final = 1024

_PATIENCE_S: Final = 3.0
"""How long the end of a pass waits for a download to notice that it is called off."""


class RemoteDataset(Protocol):
    """What a `Prefetcher` needs of a dataset."""

    def shard_number(self, index: int) -> int:
        """Give the number of the shard that a sample is in."""

    def is_here(self, number: int) -> bool:
        """Tell whether a shard can be read without fetching it."""

    def fetch_shard(self, number: int, background: BackgroundFetch) -> None:
        """Fetch a shard, unless it is here, or another process does."""

    def shard_nbytes(self, number: int) -> int | None:
        """Give the length of a shard in bytes, or None where it is not known."""

    @property
    def cache_share_nbytes(self) -> int | None:
        """Most bytes that may wait in the cache, or None for no limit."""


class Prefetcher(Sampler[int]):
    """The indices of another sampler, while the shards that they need are fetched ahead.

    Pass it to a DataLoader in place of the sampler. Threads run while a pass is read, and end with
    it. A fetch that fails is tried again by whoever reads the shard, who gets the error. ``len``,
    epoch and state are those of the sampler, and around a ``DistributedSampler`` this is one too,
    so that trainers leave it alone. Not safe to share between threads.

    Args:
        sampler: Any sampler of indices.
        dataset: The `ShardListDataset` that they are indices of.
        ahead_nbytes: Most bytes of shards to have fetched, or be fetching, before they are read, a
            count or a text such as ``"20GB"``; at least one shard. None for 8 GiB, or a quarter of
            the dataset's ``cache_size``.
        num_threads: Shards to fetch at a time.
    """

    def __new__(cls, sampler: Sampler[int], *_: Any, **__: Any) -> Prefetcher:  # noqa: D102
        is_distributed = cls is Prefetcher and isinstance(sampler, DistributedSampler)
        return super().__new__(_DistributedPrefetcher if is_distributed else cls)

    def __getnewargs__(self) -> tuple[Sampler[int]]:
        return (self.sampler,)  # what __new__ needs, when this is copied or pickled

    def __init__(
        self,
        sampler: Sampler[int],
        dataset: RemoteDataset,
        *,
        ahead_nbytes: int | str | None = None,
        num_threads: int = 2,
    ) -> None:
        if not hasattr(dataset, "shard_number"):
            raise TypeError(
                f"dataset: expected a wids.ShardListDataset, found {type(dataset).__name__}; a "
                "subset is a view, dataset[indices]"
            )
        if num_threads < 1:
            raise ValueError(f"num_threads: expected at least 1, found {num_threads}")
        self.sampler = sampler
        self.dataset = dataset
        stated = parse_nbytes(ahead_nbytes, "ahead_nbytes")
        wanted = DEFAULT_NBYTES if stated is None else stated
        share = dataset.cache_share_nbytes
        self.ahead_nbytes = wanted if share is None else min(wanted, share)
        self.num_threads = num_threads

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # a sampler without a length raises

    def __iter__(self) -> Iterator[int]:
        if isinstance(self.sampler, ChunkedSampler):
            # Its order is a pure function, so a copy runs ahead without touching its position.
            ahead, now = iter(copy(self.sampler)), iter(self.sampler)
        else:
            ahead, now = tee(self.sampler)
        return self._indices(ahead, now)

    def _indices(self, ahead: Iterator[int], now: Iterator[int]) -> Iterator[int]:
        # Nothing happens before the first index is asked for: by then, workers have been forked.
        window = _Window(self.dataset, ahead, self.ahead_nbytes, self.num_threads)
        try:
            window.fill()
            for index in now:
                window.reach(index)
                yield index
        finally:
            window.close()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler."""
        self.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # one without raises

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Give the state of the sampler, which is where this one is too."""
        state: dict[str, Any] = self._stateful().state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the sampler."""
        self._stateful().load_state_dict(state)

    def _stateful(self) -> Any:
        # Of another sampler the state would be that of the look ahead.
        if not isinstance(self.sampler, ChunkedSampler):
            raise TypeError(
                f"{type(self.sampler).__name__}: expected one of wids' own samplers, whose states "
                "can be told while others are fetched ahead"
            )
        return self.sampler

    def __getattr__(self, name: str) -> Any:
        # Whatever else a trainer asks of a sampler: rank, num_replicas, shuffle, ….
        if name.startswith("_") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)


class _DistributedPrefetcher(Prefetcher, DistributedSampler[int]):  # type: ignore[misc]  # `dataset`
    """A prefetcher around a distributed sampler."""


class _Window:
    """The shards of one pass that are fetched, or being fetched, and not yet read.

    ``reach`` is called from one thread; the threads of the window see the queue only.
    """

    def __init__(
        self, dataset: RemoteDataset, ahead: Iterable[int], limit_nbytes: int, num_threads: int
    ) -> None:
        self.dataset = dataset
        self.limit_nbytes = limit_nbytes
        self.num_threads = num_threads
        self._ahead = enumerate(map(dataset.shard_number, ahead))
        self._waiting: dict[int, tuple[int, BackgroundFetch]] = {}
        self._looked_at: dict[int, int] = {}
        self._current = -1
        self._num_reached = 0
        self._num_looked_at = 0
        self._postponed: int | None = None
        self._queue: queue.SimpleQueue[tuple[int, BackgroundFetch] | None] = queue.SimpleQueue()
        self._fetches: list[BackgroundFetch] = []
        self._threads: list[threading.Thread] = []
        # A pass that an error broke off may be collected only when threads no longer run.
        atexit.register(self.close)

    def reach(self, index: int) -> None:
        """Take note that a sample is read now, or soon."""
        self._num_reached += 1
        if not self._num_reached % _LOOK_EVERY:
            self.fill()
        number = self.dataset.shard_number(index)
        if number == self._current:
            return
        is_first, self._current = self._current < 0, number
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            self.fill()
            # From here on a reader would wait for this fetch, and not fetch by itself. In the
            # beginning there is nothing else to read.
            fetch = waiting[1]
            (fetch.done if is_first else fetch.begun).wait()

    def close(self) -> None:
        """End what is being fetched, and the threads."""
        atexit.unregister(self.close)
        until_s = time.monotonic() + _PATIENCE_S
        for fetch in self._fetches:
            fetch.cancelled.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def fill(self) -> None:
        """Order the next shards until enough bytes are on their way."""
        while True:
            on_their_way = sum(nbytes for nbytes, _ in self._waiting.values())
            if self._waiting and on_their_way >= self.limit_nbytes:
                return
            number = self._next()
            if number is None:
                return
            stated = self.dataset.shard_nbytes(number)
            # Where lengths are not stated, four shards are enough ahead.
            nbytes = self.limit_nbytes // 4 if stated is None else stated
            if self._waiting and on_their_way + nbytes > self.limit_nbytes:
                self._postponed = number
                return
            self._order(number, nbytes)

    def _order(self, number: int, nbytes: int) -> None:
        fetch = BackgroundFetch()
        self._waiting[number] = (nbytes, fetch)
        self._fetches = [*(f for f in self._fetches if not f.done.is_set()), fetch]
        if len(self._threads) < self.num_threads:
            # A daemon, so that a server that hangs does not keep the process from ending.
            thread = threading.Thread(target=self._work, name="wids-prefetch", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((number, fetch))

    def _next(self) -> int | None:
        """Give the next shard that is not here yet."""
        if self._postponed is not None:
            number, self._postponed = self._postponed, None
            return number
        latest = -1
        last = _FIRST_LOOK + _LOOK_FASTER * self._num_reached
        while self._num_looked_at < last and (found := next(self._ahead, None)):
            position, number = found
            self._num_looked_at = position + 1
            if number == latest or number in self._waiting:
                continue
            latest = number
            looked_at = self._looked_at.get(number)
            if looked_at is not None and position - looked_at < _LOOK_AGAIN:
                continue
            self._looked_at[number] = position
            if not self.dataset.is_here(number):
                return number
        return None

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            number, fetch = order
            try:
                if not fetch.cancelled.is_set():
                    self.dataset.fetch_shard(number, fetch)
            except Exception as error:  # noqa: BLE001 - a thread that ends would be waited for
                # Whoever reads the shard tries again, and is told; here nobody would hear.
                _logger.info("shard %d could not be fetched ahead: %r", number, str(error))
            finally:
                fetch.begun.set()
                fetch.done.set()
