"""The indices of a sampler → the remote shards that they will need, fetched ahead.

A sampler knows its future, so the next shards are fetched while the current one is read: by a few
threads of the process that runs the sampler, whatever the number of DataLoader workers. Readers
find the shard in the cache, or wait for it there. Nothing here sees a sample.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import tee
from typing import Any, Final, Protocol

from torch.utils.data import DistributedSampler, Sampler

from wids.cache.store import BackgroundFetch
from wids.files.sizes import parse_nbytes
from wids.reading.reader import ShardReader
from wids.sampling.passes import EpochSampler

_logger = logging.getLogger("wids")

DEFAULT_NBYTES: Final = 8 << 30
"""Bytes to fetch ahead where neither the caller nor the cache sets a limit."""

_LOOK_AGAIN: Final = 4096
"""Indices after which a shard that comes up again is looked up again: it may have been evicted."""

_FIRST_LOOK: Final = 50_000
"""Indices to look at before the first one is returned: about ten milliseconds."""

_LOOK_FASTER: Final = 10
"""Indices to look at for each one returned: a pass over local shards starts at once, and the next
remote shard is found when a tenth of the current one was read."""

_LOOK_EVERY: Final = 1024
"""Indices returned between two looks ahead."""

_PATIENCE_S: Final = 3.0
"""How long the end of a pass waits for downloads to notice that they are cancelled."""


class RemoteDataset(Protocol):
    """What a `Prefetcher` asks of a dataset."""

    @property
    def reader(self) -> ShardReader:
        """The shards, which are fetched through it."""

    def shard_number(self, index: int) -> int:
        """Return the number of the shard that a sample is in."""


class Prefetcher(Sampler[int]):
    """The indices of another sampler, while the shards that they need are fetched ahead.

    Pass it to a DataLoader in place of the sampler. Its threads start with a pass and end with it.
    A shard whose fetch fails is fetched again when it is read, and that read raises the error.
    ``len``, epoch and state are those of the sampler. Around a ``DistributedSampler`` the
    prefetcher is one too, so that trainers do not wrap or replace it. Not safe to share between
    threads.

    Args:
        sampler: Any sampler of indices.
        dataset: The `ShardListDataset` that the indices belong to.
        ahead_nbytes: Most bytes of shards that are fetched, or being fetched, and not yet read: a
            number or a text such as ``"20GB"``; at least one shard. None for 8 GiB, or a quarter of
            the dataset's ``cache_size``.
        num_threads: Shards to fetch at a time.

    Raises:
        TypeError: ``dataset`` is not a `ShardListDataset`.
        ValueError: ``num_threads`` is less than 1, or ``ahead_nbytes`` is not a number of bytes.

    Example:
        >>> import wids
        >>> from torch.utils.data import DataLoader
        >>> with wids.TarWriter("train.tar") as writer:
        ...     for n in range(6):
        ...         _ = writer.write({"__key__": f"{n:06d}", "cls": n})
        >>> dataset = wids.ShardListDataset("train.tar")  # or the URL of a spec
        >>> sampler = wids.Prefetcher(wids.ChunkedSampler(dataset), dataset)
        >>> batches = DataLoader(dataset, batch_size=2, sampler=sampler)
        >>> sorted(n for batch in batches for n in batch[".cls"].tolist())
        [0, 1, 2, 3, 4, 5]
        >>> dataset.close()
    """

    def __new__(cls, sampler: Sampler[int], *_: Any, **__: Any) -> Prefetcher:  # noqa: D102
        # A class of its own, since trainers ask with `isinstance`; all other prefetchers must not
        # look distributed.
        is_distributed = cls is Prefetcher and isinstance(sampler, DistributedSampler)
        return super().__new__(_DistributedPrefetcher if is_distributed else cls)

    def __getnewargs__(self) -> tuple[Sampler[int]]:
        return (self.sampler,)  # __new__ needs it when the prefetcher is copied or unpickled

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
        share = dataset.reader.cache_share_nbytes
        # More than the cache's share may evict shards that were fetched ahead before they are read.
        self.ahead_nbytes = wanted if share is None else min(wanted, share)
        self.num_threads = num_threads

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # a sampler without a length raises

    def __iter__(self) -> Iterator[int]:
        if isinstance(self.sampler, EpochSampler):
            # The order is a pure function, which can be computed once more.
            ahead, now = self.sampler.ahead(), iter(self.sampler)
        else:
            # A random order of its own cannot be asked for twice: a second iterator would yield
            # another.
            ahead, now = tee(self.sampler)
        return self._indices(ahead, now)

    def _indices(self, ahead: Iterator[int], now: Iterator[int]) -> Iterator[int]:
        # A generator starts at the first index, when the loader has forked its workers: no thread
        # of ours runs during a fork.
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
        """Return the state of the sampler, which does not depend on what was fetched ahead."""
        state: dict[str, Any] = self._stateful().state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the sampler."""
        self._stateful().load_state_dict(state)

    def _stateful(self) -> Any:
        # Any other sampler is itself read ahead, and its state is of no use.
        if not isinstance(self.sampler, EpochSampler):
            raise TypeError(
                f"{type(self.sampler).__name__}: expected one of wids' own samplers, whose state "
                "does not depend on how far ahead shards were fetched"
            )
        return self.sampler

    def __getattr__(self, name: str) -> Any:
        # Other attributes that trainers read: rank, num_replicas, shuffle, ….
        if name.startswith("_") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)


class _DistributedPrefetcher(Prefetcher, DistributedSampler[int]):  # type: ignore[misc]  # `dataset`
    """A prefetcher around a distributed sampler."""


class _Window:
    """The shards of one pass that are fetched, or being fetched, and not yet read.

    ``reach`` is called from one thread; the threads of the window only see the queue.

    Args:
        dataset: The dataset.
        ahead: The indices of the pass, for the window alone.
        limit_nbytes: Most bytes of shards in the window.
        num_threads: Shards to fetch at a time.
    """

    def __init__(
        self, dataset: RemoteDataset, ahead: Iterable[int], limit_nbytes: int, num_threads: int
    ) -> None:
        self.limit_nbytes = limit_nbytes
        self.num_threads = num_threads
        self._reader = dataset.reader
        self._shard_number = dataset.shard_number
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
        # A pass that an error ended may be collected when the interpreter has stopped its threads.
        atexit.register(self.close)

    def reach(self, index: int) -> None:
        """Move on to a sample that is read now or soon; order shards that come after it."""
        self._num_reached += 1
        if not self._num_reached % _LOOK_EVERY:
            self.fill()
        number = self._shard_number(index)
        if number == self._current:
            return
        is_first, self._current = self._current < 0, number
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            self.fill()
            # Once its fetch has begun, a reader waits for it instead of fetching the shard itself.
            # For the first shard wait until it is complete: there is nothing else to read.
            fetch = waiting[1]
            (fetch.done if is_first else fetch.begun).wait()

    def close(self) -> None:
        """Cancel all fetches, and end the threads."""
        # Or each pass of a long program would stay alive through this reference.
        atexit.unregister(self.close)
        # One deadline for all threads, so that several servers that hang do not add up.
        until_s = time.monotonic() + _PATIENCE_S
        # Cancelled before the threads are told to end: the Nones queue up behind the waiting
        # orders, which each thread then drops at once.
        for fetch in self._fetches:
            fetch.cancelled.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def fill(self) -> None:
        """Order the next shards until the window is full."""
        while True:
            ordered_nbytes = sum(nbytes for nbytes, _ in self._waiting.values())
            if self._waiting and ordered_nbytes >= self.limit_nbytes:
                return
            number = self._next()
            if number is None:
                return
            stated = self._reader.nbytes(number)
            # Where lengths are not stated, four shards fill the window.
            nbytes = self.limit_nbytes // 4 if stated is None else stated
            # CACHE-16: one shard is always allowed, however long, or the pass would fetch nothing
            # ahead.
            if self._waiting and ordered_nbytes + nbytes > self.limit_nbytes:
                # Kept, because the iterator that found it cannot step back.
                self._postponed = number
                return
            self._order(number, nbytes)

    def _order(self, number: int, nbytes: int) -> None:
        fetch = BackgroundFetch()
        self._waiting[number] = (nbytes, fetch)
        # Only those that `close` may have to cancel; a long pass would otherwise collect all of
        # them.
        self._fetches = [*(f for f in self._fetches if not f.done.is_set()), fetch]
        if len(self._threads) < self.num_threads:
            # A daemon, so that a server that hangs does not keep the process from ending.
            thread = threading.Thread(target=self._work, name="wids-prefetch", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((number, fetch))

    def _next(self) -> int | None:
        """Return the next shard that has to be fetched; None if none is near."""
        if self._postponed is not None:
            number, self._postponed = self._postponed, None
            return number
        latest = -1
        last = _FIRST_LOOK + _LOOK_FASTER * self._num_reached
        # The bound keeps the first batch of a huge local dataset from waiting for a look at every
        # index.
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
            if not self._reader.is_local(number):
                return number
        return None

    def _work(self) -> None:
        """Fetch shards from the queue until it yields None."""
        while (order := self._queue.get()) is not None:
            number, fetch = order
            try:
                if not fetch.cancelled.is_set():
                    self._reader.fetch(number, fetch)
            except Exception as error:  # noqa: BLE001 - the pass waits for this thread
                # The reader of the shard tries again and raises; an error here would reach nobody.
                _logger.info("shard %d could not be fetched ahead: %r", number, str(error))
            finally:
                # Also after an error or a cancellation: `reach` waits for one of these events
                # without a limit.
                fetch.begun.set()
                fetch.done.set()
