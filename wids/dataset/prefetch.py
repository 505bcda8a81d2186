"""Yield the items of a sampler while the remote shards that they need are fetched ahead.

A sampler's future is known, so the next shards are fetched while the current one is read: by
threads of the process that runs the sampler, whatever the number of DataLoader workers. Readers
find the shard in the cache, or wait for it there; the first batches read ranges meanwhile.

A sampler can be of this package, of torch, or a user's own, of indices or of batches.
docs/prefetching.md describes what it has to provide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, tee
from threading import Lock
from typing import Any, Final, TypeVar

import torch  # noqa: F401 - whole, before its parts: threads must not import both at once
from torch.utils.data import BatchSampler, DistributedSampler, Sampler

from wids.dataset.fetch_window import FetchWindow, ShardMap
from wids.order.arguments import at_least
from wids.storage.sizes import nbytes_text, parse_nbytes

_END: Final = object()


def indices_of(item: Any) -> Iterable[int]:
    """Return the indices of a batch, or an index as a batch of one."""
    # A tensor without dimensions is an index, although it has `__iter__`.
    is_batch = isinstance(item, Iterable) and getattr(item, "ndim", None) != 0
    return item if is_batch else (item,)


def with_method(sampler: Any, *names: str) -> Any:
    """Return a sampler, or the next one inside it, that has some methods; None if none has."""
    while sampler is not None and not all(hasattr(sampler, name) for name in names):
        sampler = getattr(sampler, "sampler", None)
    return sampler


def look_ahead(sampler: Any, lock: Lock) -> tuple[Iterator[int], Iterator[Any]]:
    """Begin a pass; return all its indices to look at, and its items.

    Args:
        sampler: The sampler.
        lock: The caller holds it while it reads the first iterator, and not while it reads the
            second, in any threads.
    """
    computed = _computed(sampler)
    if computed is not None:
        return _flat(computed.ahead()), iter(sampler)
    # Another sampler's order cannot be requested twice, so it is read once, a little ahead.
    future, now = tee(sampler)
    return _flat(future), _locked(now, lock)


def _computed(sampler: Any) -> Any:
    """Return the sampler that can compute the indices without a pass; None if there is none."""
    while type(sampler) is BatchSampler:  # subclasses may change the order
        sampler = sampler.sampler
    return sampler if hasattr(sampler, "ahead") else None


def _flat(items: Iterable[Any]) -> Iterator[int]:
    # All items are of the kind of the first; checking each would take as long as the rest.
    rest = iter(items)
    for first in rest:
        if type(first) is int:
            yield first
            yield from rest
        else:
            yield from chain.from_iterable(map(indices_of, chain((first,), rest)))


def _locked(items: Iterator[Any], lock: Lock) -> Iterator[Any]:
    # Both iterators of `tee` are read in different threads, which it does not allow.
    while True:
        with lock:
            item = next(items, _END)
        if item is _END:
            return
        yield item


DEFAULT_NBYTES: Final = 8 << 30
"""Bytes to fetch ahead where neither the caller nor the cache sets a limit."""

_AHEAD: Final = 0.05
"""Part of the dataset that batches read by range while its shards are being fetched."""

T = TypeVar("T")


_OF_SAMPLER: Final = (
    *("batch_size", "drop_last", "generator", "data_source", "shuffle", "seed", "epoch", "ahead"),
    *("rank", "num_replicas", "num_samples", "total_size", "_state_at", "_place_of"),
)
"""Attributes that trainers, and wids' callbacks for them, read if a sampler has them."""


class Prefetcher(Sampler[T]):
    """The indices or batches of another sampler, while their shards are fetched ahead.

    Pass it to a DataLoader in place of the sampler, as ``sampler=`` or ``batch_sampler=``. Fetching
    begins when a shard of the dataset is read, in this process or in a worker, and not while a
    trainer skips batches after a restart. Its threads start with a pass and end with it. A shard
    whose fetch fails is fetched again when it is read, and that read raises the error. ``len``,
    epoch and state are those of the sampler, and so are the attributes that trainers read, such as
    ``batch_size``, ``rank`` and ``num_replicas``; others are those of ``sampler``. Around a
    ``DistributedSampler`` the prefetcher is one too, so that trainers do not wrap or replace it.
    Not safe to share between threads.

    The state is exact around wids' samplers, a ``BatchSampler`` of one, and a sampler of your own
    that has ``ahead``, ``state_dict`` and ``load_state_dict`` (docs/prefetching.md).

    Args:
        sampler: Any sampler of indices or of batches.
        dataset: The `ShardListDataset` that the indices belong to, or torch's ``Subset``,
            ``ConcatDataset`` or ``StackDataset`` around some. The loader has to read this object.
        ahead_nbytes: Most bytes of shards that are fetched, or being fetched, and not yet read: a
            number or a text such as ``"20GB"``; at least one shard. None for 8 GiB, or a quarter of
            the dataset's ``cache_size``.
        num_threads: Most shards to fetch at a time. None for as many as the network rewards.

    Raises:
        TypeError: There is no `ShardListDataset` in ``dataset``.
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

    def __new__(cls, sampler: Sampler[T] | None = None, *_: Any, **__: Any) -> Prefetcher[T]:  # noqa: D102
        # As for `pathlib.Path`: the name that users call has a subclass (decision 0078).
        is_distributed = cls is Prefetcher and isinstance(sampler, DistributedSampler)
        kind: type[Prefetcher[Any]] = DistributedPrefetcher if is_distributed else cls
        return super().__new__(kind)

    def __init__(
        self,
        sampler: Sampler[T],
        dataset: Any,
        *,
        ahead_nbytes: int | str | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.num_threads = None if num_threads is None else at_least(1, num_threads, "num_threads")
        readers = ShardMap(dataset).readers
        for reader in readers:
            reader.accesses.rows.reserve()  # for workers that are spawned later
        self.sampler = sampler
        self.dataset = dataset
        stated = parse_nbytes(ahead_nbytes, "ahead_nbytes")
        wanted = DEFAULT_NBYTES if stated is None else stated
        # More than the cache's share may evict shards that were fetched ahead before they are read.
        shares = [reader.limit_nbytes for reader in readers]
        self.ahead_nbytes = min([wanted, *(share for share in shares if share is not None)])

    def __getattr__(self, name: str) -> Any:
        if name in _OF_SAMPLER:
            return getattr(self.sampler, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def yields_indices(self) -> bool:
        """Whether an item is an index and not a batch, judged by the sampler's attributes."""
        is_torchs = isinstance(self.sampler, BatchSampler)
        return bool(getattr(self.sampler, "yields_indices", not is_torchs))

    def __repr__(self) -> str:
        inner, nbytes = type(self.sampler).__name__, nbytes_text(self.ahead_nbytes)
        bound = "" if self.num_threads is None else f", {self.num_threads} shards at a time"
        return f"<Prefetcher of {inner}: {nbytes} ahead{bound}>"

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # a sampler without a length raises

    def __iter__(self) -> Iterator[T]:
        # The epoch of the pass too is that of this call (ORDER-8).
        lock = Lock()
        ahead, now = look_ahead(self.sampler, lock)
        return self.fetching(ahead, now, lock)

    def fetching(self, ahead: Iterator[int], now: Iterator[Any], lock: Lock) -> Iterator[Any]:
        """Yield what is read now, while the shards of what comes ahead are fetched.

        Args:
            ahead: The indices of a pass, to look at.
            now: Its items: the same indices, one by one or in batches.
            lock: Held while ``ahead`` is read.
        """
        sampler = with_method(self.sampler, "_check_fit")
        if sampler is not None:
            sampler._check_fit(self.dataset, self.ahead_nbytes)
        return self._items(ahead, now, lock)

    def _items(self, ahead: Iterator[int], now: Iterator[Any], lock: Lock) -> Iterator[Any]:
        # A generator starts at the first index, after the loader has forked its workers, so none of
        # these threads runs during a fork.
        shards = ShardMap(self.dataset)
        for reader in shards.readers:  # ranks that share a cache do not know what the others read
            reader.let_ahead(_AHEAD / max(1, getattr(self, "num_replicas", 1)))
        window = FetchWindow(shards, ahead, self.ahead_nbytes, self.num_threads, lock)
        num_read = [reader.accesses.num_here for reader in shards.readers]
        has_ended = False
        try:
            window.fill()
            for item in now:
                if type(item) is int:  # nearly always, and quicker than the question below
                    window.reach(item)
                else:
                    for index in indices_of(item):
                        window.reach(index)
                yield item
            has_ended = True
        finally:
            for reader in shards.readers:
                reader.let_ahead(0)
            # Where this process does not read itself, workers may still read the last batches.
            is_over = num_read != [reader.accesses.num_here for reader in shards.readers]
            window.close(cancels=is_over or not has_ended)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler, or of the one inside it; of none if none has epochs."""
        # Trainers call it wherever it exists, and here it always does.
        sampler = with_method(self.sampler, "set_epoch")
        if sampler is not None:
            sampler.set_epoch(epoch)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state of the sampler, which does not depend on what was fetched ahead."""
        state: dict[str, Any] = self._stateful().state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the sampler."""
        self._stateful().load_state_dict(state)

    def _stateful(self) -> Any:
        sampler = with_method(_computed(self.sampler), "state_dict", "load_state_dict")
        if sampler is None:
            raise TypeError(
                f"{type(self.sampler).__name__}: expected state_dict and load_state_dict, as wids' "
                "samplers have, and ahead(), which computes what comes; the prefetcher reads any "
                "other sampler ahead, so that its own position is of no use"
            )
        return sampler


class DistributedPrefetcher(Prefetcher[int], DistributedSampler[int]):
    """A prefetcher around a distributed sampler, which trainers check with ``isinstance``."""
