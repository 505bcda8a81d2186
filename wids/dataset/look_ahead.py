"""Return the indices that a sampler will yield before it yields them, and keep its state exact.

A sampler can be of this package, of torch, or a user's own, of indices or of batches.
docs/prefetching.md describes what it has to provide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import chain, tee
from threading import Lock
from typing import Any, Final

from torch.utils.data import BatchSampler

from wids.errors import warn

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


def has_state(sampler: Any) -> bool:
    """Whether the state of a sampler is exact although the sampler is looked at ahead."""
    return _computed(sampler) is not None or _is_stateful(sampler)


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
    if _is_stateful(sampler):
        twin = _Twin(sampler, lock)
        return twin.ahead(), twin.now()
    # Another sampler's order cannot be requested twice, so it is read once, a little ahead.
    future, now = tee(sampler)
    return _flat(future), _locked(now, lock)


def _computed(sampler: Any) -> Any:
    """Return the sampler that can compute the indices without a pass; None if there is none."""
    while type(sampler) is BatchSampler:  # subclasses may change the order
        sampler = sampler.sampler
    return sampler if hasattr(sampler, "ahead") else None


def _is_stateful(sampler: Any) -> bool:
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")


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


class _Twin:
    """A copy of a sampler that runs ahead of it, as long as both yield the same indices.

    A sampler that is restored from its state yields the rest of its pass; so does a copy.
    """

    def __init__(self, sampler: Any, lock: Lock) -> None:
        self._sampler = sampler
        self._lock = lock
        # A dataset may be of any size, and be open.
        held = [getattr(sampler, name, None) for name in ("dataset", "data_source")]
        self._copy = deepcopy(sampler, {id(value): value for value in held if value is not None})
        self._copy.load_state_dict(sampler.state_dict())
        self._is_same = True
        # Indices that only one of them has yielded.
        self._only_ahead: deque[int] = deque()
        self._only_now: deque[int] = deque()

    def ahead(self) -> Iterator[int]:
        for index in _flat(self._copy):
            if not self._agrees(index, self._only_now, self._only_ahead):
                return
            yield index

    def now(self) -> Iterator[Any]:
        has_warned = False
        for item in self._sampler:
            if not has_warned:
                with self._lock:
                    same = [
                        self._agrees(index, self._only_ahead, self._only_now)
                        for index in indices_of(item)
                    ]
                has_warned = not all(same)
                if has_warned:
                    self._warn()
            yield item

    def _agrees(self, index: int, others: deque[int], own: deque[int]) -> bool:
        """Compare an index with that of the other iterator, if that has come so far."""
        if others:
            self._is_same = self._is_same and others.popleft() == index
        else:
            own.append(index)
        return self._is_same

    def _warn(self) -> None:
        warn(
            f"{type(self._sampler).__name__}: a copy that was restored from its state yields other "
            "indices, so shards are not fetched ahead; make the order depend on its attributes "
            "only, or leave out state_dict"
        )
