"""Fetch the remote shards that will be read, in order, ahead of the reader.

Threads of this process fetch, within a limit of bytes that are fetched and not yet read: in order,
so that a shard begins when all parts of the previous one are requested, and admission control
has room for more. They begin when a reader opens a shard: what passes earlier, for example while a
trainer skips the batches of a finished part of an epoch, is not fetched (decision 0037).

Shards of several datasets, also inside torch's wrappers, are numbered together.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, cast

from wids.order.arguments import unwrapped
from wids.shards.reader import ShardReader
from wids.shards.sample_access import SampleAccess, access_of
from wids.storage.download import Download
from wids.storage.reading_threads import ReadingThreads
from wids.storage.transport import urls
from wids.storage.transport.admission import has_room

_logger = logging.getLogger(__name__)

Numbers: TypeAlias = int | tuple[int, ...]
"""The shards of an index, by their numbers among the shards of all datasets. Nearly always there is
one, which is not worth a tuple for each sample."""

NumbersOf: TypeAlias = Callable[[int], Numbers]


class ShardMap:
    """The shards that the samples of a dataset are read from.

    Args:
        dataset: A `ShardListDataset` or view; or torch's ``Subset``, ``ConcatDataset`` or
            ``StackDataset`` around some. Parts that are no datasets of shards have none.

    Attributes:
        numbers: Returns the shards of an index.
        readers: The readers of the datasets.

    Raises:
        TypeError: No dataset of shards is found in it.
    """

    def __init__(self, dataset: Any) -> None:
        self.readers: list[ShardReader] = []
        self._first_numbers: list[int] = []
        self.numbers: NumbersOf = self._numbers_of(dataset)
        if not self.readers:
            raise TypeError(
                f"dataset: expected a wids.ShardListDataset, or torch's Subset, ConcatDataset or "
                f"StackDataset around some, found {type(dataset).__name__}; pass the "
                "ShardListDataset inside it if both have the same indices, or make a view of it, "
                "dataset[indices]"
            )

    def _numbers_of(self, dataset: Any) -> NumbersOf:
        access = access_of(dataset)
        if access is not None:
            return self._numbers_of_shards(access)
        wrapper = unwrapped(dataset)
        if wrapper is None:
            return lambda _: ()
        parts = list(map(self._numbers_of, wrapper.datasets))
        if wrapper.indices is not None:
            return _selected(wrapper.indices, parts[0])
        if wrapper.is_stacked:
            return _together(parts)
        return _one_after_another(dataset.cumulative_sizes, parts)

    def _numbers_of_shards(self, access: SampleAccess) -> NumbersOf:
        reader, shard_number = access.reader, access.shard_number
        # Views share the reader of their dataset, and so its shards.
        if reader not in self.readers:
            last = self._first_numbers[-1] + len(self.readers[-1].shards) if self.readers else 0
            self._first_numbers.append(last)
            self.readers.append(reader)
        first = self._first_numbers[self.readers.index(reader)]
        if not first:
            return cast("NumbersOf", shard_number)
        return lambda index: first + int(shard_number(index))

    def opened(self) -> list[tuple[int, int]]:
        """Return how often shards of each dataset were opened, and the latest of them."""
        firsts = zip(self._first_numbers, self.readers, strict=True)
        return [
            (reader.accesses.sums()[1], first + reader.accesses.last_opened)
            for first, reader in firsts
        ]

    def locate(self, number: int) -> tuple[ShardReader, int]:
        """Return the reader of a shard, and the number that it has there."""
        at = bisect_right(self._first_numbers, number) - 1
        return self.readers[at], number - self._first_numbers[at]


def as_tuple(numbers: Numbers) -> tuple[int, ...]:
    """Return the numbers of the shards of an index one by one."""
    return numbers if isinstance(numbers, tuple) else (numbers,)


def _one_after_another(ends: list[int], parts: list[NumbersOf]) -> NumbersOf:
    def numbers(index: int) -> Numbers:
        at = bisect_right(ends, index)
        return parts[at](index - (ends[at - 1] if at else 0))

    return numbers


def _together(parts: list[NumbersOf]) -> NumbersOf:
    return lambda index: tuple(number for part in parts for number in as_tuple(part(index)))


def _selected(indices: Sequence[int], numbers: NumbersOf) -> NumbersOf:
    return lambda index: numbers(indices[index])


_LOOK_AGAIN: Final = 4096
"""Indices after which a shard that comes up again is looked up again: it may have been evicted."""

_FIRST_LOOK: Final = 50_000
"""Indices to look at before the first one is returned: about ten milliseconds."""

_LOOK_FASTER: Final = 10
"""Indices to look at for each one returned: a pass over local shards starts at once, and the next
remote shard is found when a tenth of the current one has been read."""

_LOOK_EVERY: Final = 1024
"""Indices returned between two looks ahead."""

_POLL_S: Final = 0.01
"""How often to look whether a shard was opened. Other processes cannot wake a thread here."""

_LOOKS_A_TRY: Final = 5
"""How often to look for the copy of a shard that another process fetches, before its lock is tried
again, as often as readers do. That costs 17 times as much."""

_MOST_SHARDS: Final = 64
"""Most shards to fetch at a time, a thread each, if the caller sets no other bound."""

_MOST_COMMANDS: Final = 2
"""Shards to fetch at a time by commands: one is compared and stored meanwhile."""

_PATIENCE_S: Final = 1.0
"""How long the end of a pass waits for its threads, which hold their lock for milliseconds."""

_PAUSE_S: Final = 1.0
"""Pause of the loader after which fetching begins without a reader that was noticed."""


class FetchWindow:
    """The shards of one pass that are fetched, or being fetched, and not yet read.

    ``reach``, ``fill`` and ``close`` are called from one thread. The threads of the window fetch;
    the first of them also decides when to begin.

    Args:
        shards: The shards of the dataset.
        ahead: The indices of the pass, for the window alone.
        limit_nbytes: Most bytes of shards in the window.
        num_threads: Most shards to fetch at a time, or None.
        lock: Held while any thread reads ``ahead``, or changes what is known of it.
    """

    def __init__(
        self,
        shards: ShardMap,
        ahead: Iterable[int],
        limit_nbytes: int,
        num_threads: int | None,
        lock: threading.Lock,
    ) -> None:
        self.limit_nbytes = limit_nbytes
        self._shards = shards
        self._numbers_of = shards.numbers
        self._ahead = enumerate(map(shards.numbers, ahead))
        self._opened = shards.opened()
        # The length of each shard in the window.
        self._waiting: dict[int, int] = {}
        self._looked_at: dict[int, int] = {}
        self._current: Numbers = ()
        self._reached: deque[Numbers] = deque(maxlen=_MOST_SHARDS)
        self._num_reached = 0
        self._num_looked_at = 0
        # Positions and shards that were found and are not ordered yet.
        self._found: deque[tuple[int, int]] = deque()
        self._ordered: deque[int] = deque()
        self._threads = ReadingThreads(num_threads or _MOST_SHARDS, "wids-prefetch")
        # One thread at a time waits to begin, so that shards begin in order.
        self._is_beginning = False
        # For those being fetched, whether the server has answered; with the server and the length.
        self._fetching: dict[threading.Event, tuple[str, int]] = {}
        self._lock = lock
        self._is_open = False
        self._closed = threading.Event()
        self._pid = os.getpid()
        # A pass that an error ended may be collected when the interpreter has stopped its threads.
        atexit.register(self.close)

    def reach(self, index: int) -> None:
        """Move on to a sample that is read now or soon; order shards that come after it."""
        self._num_reached += 1
        if not self._num_reached % _LOOK_EVERY:
            self.fill()
        numbers = self._numbers_of(index)
        if numbers == self._current:
            return
        with self._lock:
            self._current = numbers
            if not self._is_open:
                self._reached.append(numbers)
            found = [self._waiting.pop(number, None) for number in as_tuple(numbers)]
        if any(nbytes is not None for nbytes in found):
            self.fill()

    def close(self, *, cancels: bool = True) -> None:
        """Cancel all fetches, and end the threads; a second call does nothing.

        Args:
            cancels: False after the last sample was reached: workers that are still to read it may
                wait for the shards that are arriving. The threads end with these.
        """
        # The end of the interpreter closes the window, and then collects the pass that has it, when
        # the names of this module are gone. A forked child has neither the threads nor their locks.
        has_ended = self._closed.is_set() and not (cancels and self._fetching)
        if has_ended or os.getpid() != self._pid:
            return
        if not self._lock.acquire(timeout=_PATIENCE_S):
            # This thread has collected the pass, while it held this lock, or another one for which
            # the holder of this one waits. Without it, they would wait for each other for ever.
            close = partial(self.close, cancels=cancels)
            with suppress(RuntimeError):  # the interpreter ends, and its threads with it
                threading.Thread(target=close, name="wids-prefetch-end", daemon=True).start()
            return
        try:
            self._closed.set()  # after this no fetch is ordered, and no thread started
        finally:
            self._lock.release()
        if not cancels and self._fetching:
            self._threads.shutdown(wait=False)
            return
        # Otherwise this reference would keep each pass of a long program alive.
        atexit.unregister(self.close)
        self._threads.shutdown(cancel_futures=True)

    def fill(self) -> None:
        """Order the next shards until the window is full; before it is open, find the first."""
        with self._lock:
            if self._is_open:
                self._fill()
                return
            self._drop_reached()
            if self._look() and not self._threads.threads:
                self._threads.submit(self._open)

    def _fill(self) -> None:
        while not self._closed.is_set():
            left_nbytes = self.limit_nbytes - sum(self._waiting.values())
            if (self._waiting and left_nbytes <= 0) or not self._look():
                return
            number = self._found[0][1]
            reader, number_there = self._shards.locate(number)
            stated = reader.nbytes(number_there)
            # Where lengths are not stated, four shards fill the window.
            nbytes = self.limit_nbytes // 4 if stated is None else stated
            # One shard is always allowed, however long, or the pass would fetch nothing ahead.
            if self._waiting and nbytes > left_nbytes:
                return
            self._found.popleft()
            self._waiting[number] = nbytes
            self._put(number)

    def _put(self, number: int) -> None:
        reader, number_there = self._shards.locate(number)
        reader.announce_shards([number_there])
        self._ordered.append(number)
        self._begin_next()

    def _begin_next(self) -> None:
        """Have a thread wait for its turn with the next shard, if none does; call with the lock."""
        if self._ordered and not self._is_beginning and not self._closed.is_set():
            self._threads.submit(self._fetch, *self._shards.locate(self._ordered.popleft()))
            self._is_beginning = True

    def _look(self) -> bool:
        """Find the next shards to fetch, if none is known; return whether one is near."""
        last_numbers: Numbers = ()
        last = _FIRST_LOOK + _LOOK_FASTER * self._num_reached
        # The bound keeps the first batch of a huge local dataset from waiting for a look at every
        # index.
        while (
            not self._found
            and self._num_looked_at < last
            and (following := next(self._ahead, None))
        ):
            position, numbers = following
            self._num_looked_at = position + 1
            # What was reached before a reader was noticed is fetched by readers, if at all.
            if numbers == last_numbers or position < self._num_reached:
                continue
            last_numbers = numbers
            if numbers != self._current:
                # More than one only where a sample is read from several shards.
                needed = [n for n in as_tuple(numbers) if self._is_needed(position, n)]
                self._found.extend((position, number) for number in needed)
        return bool(self._found)

    def _is_needed(self, position: int, number: int) -> bool:
        """Whether a shard that comes up is remote, and not ordered already."""
        looked_at = self._looked_at.get(number, -_LOOK_AGAIN)
        if number in self._waiting or position - looked_at < _LOOK_AGAIN:
            return False
        self._looked_at[number] = position
        reader, number_there = self._shards.locate(number)
        return not reader.is_local(number_there)

    def _is_read(self) -> bool:
        """Wait until a reader opens a shard; return False if the pass ends first."""
        num_reached, since_s = -1, 0.0
        while not self._closed.wait(_POLL_S):
            if self._shards.opened() != self._opened:
                return True
            # A reader that is not noticed has another dataset object, or had all its shards open.
            # While batches are skipped, there is no pause.
            if num_reached != self._num_reached:
                num_reached, since_s = self._num_reached, time.monotonic()
            elif time.monotonic() - since_s > _PAUSE_S:
                return True
        return False

    def _open(self) -> None:
        """Begin to fetch when shards are read."""
        if not self._is_read():
            return
        with self._lock:
            self._is_open = True
            self._drop_reached()
            try:
                for number in self._being_read():
                    if self._is_needed(self._num_reached, number):
                        self._put(number)
                self._fill()
            except Exception as error:  # noqa: BLE001 - an error of the sampler, or a wrong index
                # The pass itself comes to the same index later, and raises there.
                _logger.info("shards could not be fetched ahead: %r", str(error))

    def _being_read(self) -> list[int]:
        """Return the shard that a reader has opened, and those that were reached after it."""
        opened = {number for _, number in self._shards.opened()}
        latest: list[int] = []
        for numbers in reversed(self._reached):
            latest[:0] = as_tuple(numbers)
            if not opened.isdisjoint(latest):
                return list(dict.fromkeys(latest))
        return list(as_tuple(self._current))

    def _drop_reached(self) -> None:
        while self._found and self._found[0][0] < self._num_reached:
            # It is found again if more of its samples come.
            self._looked_at.pop(self._found.popleft()[1], None)

    def _fetch(self, reader: ShardReader, number: int) -> None:
        """Fetch a shard when it is its turn, or wait until another process has done so."""
        has_begun, looks = threading.Event(), 0
        try:
            self._begin(has_begun, reader, number)
            while not self._closed.is_set():
                if not looks % _LOOKS_A_TRY:
                    reader.fetch(number, lambda *_: has_begun.set())
                # What another process fetches arrives before later shards, too.
                if has_begun.is_set() or reader.is_local(number):
                    break
                looks += 1
                self._closed.wait(_POLL_S)
        except Exception as error:  # noqa: BLE001 - there is the next shard
            # The reader of the shard tries again and raises; an error here would go unseen.
            _logger.info("a shard could not be fetched ahead: %r", str(error))
        finally:
            self._fetching.pop(has_begun, None)
        if self._closed.is_set() and not self._fetching:
            atexit.unregister(self.close)

    def _begin(self, has_begun: threading.Event, reader: ShardReader, number: int) -> None:
        """Wait until the server has room for one more shard.

        A reader that needs it earlier fetches it, and its parts come before those of others.
        """
        try:
            shard = reader.shards[number]
            while not (self._has_room(shard.url) or self._closed.wait(_POLL_S)):
                pass
            server = urls.origin(urls.rewritten(shard.url))
            self._fetching[has_begun] = server, shard.nbytes or Download.part_nbytes + 1
        finally:
            with self._lock:
                self._is_beginning = False
                self._begin_next()

    def _has_room(self, url: str) -> bool:
        """Whether all parts of earlier shards are requested, and one more request is worth it."""
        fetching = list(self._fetching.items())
        server = urls.origin(urls.rewritten(url))
        if not fetching or not server:  # no admission control counts what commands and files do
            return len(fetching) < _MOST_COMMANDS
        # Nor does one know yet which parts a shard has that just began.
        has_begun, (_, nbytes) = fetching[-1]
        is_known = nbytes <= Download.part_nbytes or has_begun.is_set()
        num_files = sum(other == server for _, (other, _) in fetching)
        return is_known and has_room(server, num_files)
