"""Time a training loop around any loader: how long it waits, and what the stages of reading take.

Trainers iterate over the loader that they were passed, and Python looks ``__iter__`` up on its
class. So this replaces ``__iter__`` of that class while a loop is timed (decision 0106).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial, reduce
from time import perf_counter
from typing import Any, Final

from wids.dataset.collating import collate as own_collate
from wids.dataset.stage_times import StageTimes, added, stage_times
from wids.errors import warn
from wids.storage import stages

_WINDOW_S: Final = 60.0
_MOST_WAITING: Final = 0.4


class TimedLoop:
    """The times of the loops over one loader, inside a ``with`` block; made by `timings`.

    Args:
        loader: The loader.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._ends = ExitStack()
        self.num_batches = 0
        self.wait_s = 0.0
        self.loop_s = 0.0
        self._start = self._now()
        self._end: StageTimes | None = None
        self._window = (0.0, 0.0)
        self._has_warned = False
        self.is_waiting = False

    def __enter__(self) -> TimedLoop:
        with ExitStack() as ends:
            _watch(self)
            ends.callback(_unwatch, self)
            base = self._base
            collate = getattr(base, "collate_fn", None)
            # Of any library, in workers that are started from now on; one that cannot be set stays.
            if callable(collate) and collate is not own_collate:
                with suppress(AttributeError):
                    base.collate_fn = partial(stages.timed, stages.COLLATE, collate)
                    ends.callback(setattr, base, "collate_fn", collate)
            stages.start()
            ends.callback(stages.stop)
            self._start = self._now()
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._ends:
            self._end = self.times()

    @property
    def _base(self) -> Any:
        """The loader that has the workers: accelerate wraps it."""
        return getattr(self.loader, "base_dataloader", self.loader)

    def times(self) -> StageTimes:
        """Return where the time went so far: that of this rank, over all of its workers."""
        return self._end or added(self._now(), self._start, -1)

    def _now(self) -> StageTimes:
        return stage_times(
            stages.counted(),
            stages.own_between_s[0],
            loop_s=self.loop_s,
            wait_s=self.wait_s,
            num_batches=self.num_batches,
            num_workers=int(getattr(self.loader, "num_workers", 0) or 0),
        )

    def over_ranks(self) -> StageTimes:
        """Return the sum over all ranks; each of them has to call it, outside of the loop.

        Without an initialised ``torch.distributed``, those of this process.
        """
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return self.times()
        each: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(each, self.times())
        total: StageTimes = reduce(added, each)
        return replace(total, num_ranks=len(each))

    @property
    def bottleneck(self) -> str:
        """What bounds the loop; see `StageTimes.bottleneck`."""
        return self.times().bottleneck

    @property
    def advice(self) -> str:
        """Which setting to change."""
        return self.times().advice

    def as_dict(self) -> dict[str, float]:
        """Return all numbers by name, for monitoring."""
        return self.times().as_dict()

    def __repr__(self) -> str:
        return repr(self.times())

    def is_about(self, loader: Any) -> bool:
        """Whether a loader is the one that is timed, or one that a trainer has made of it."""
        dataset = getattr(self.loader, "dataset", None)
        return loader is self.loader or (
            dataset is not None and getattr(loader, "dataset", None) is dataset
        )

    def waited_for(self, function: Callable[[Any], Any], of: Any) -> Any:
        """Call a function of a loader; loaders inside it, which it may call, are not timed."""
        self.is_waiting = True
        try:
            return function(of)
        finally:
            self.is_waiting = False

    def note(self, wait_s: float, step_s: float) -> None:
        """Note that the loop had a batch for a while, and then waited for the next."""
        self.wait_s += wait_s
        self.loop_s += wait_s + step_s
        since_s, waited_s = self._window
        if self.loop_s - since_s >= _WINDOW_S and self.num_batches:
            share = (self.wait_s - waited_s) / (self.loop_s - since_s)
            self._window = self.loop_s, self.wait_s
            if share > _MOST_WAITING and not self._has_warned:
                self._has_warned = True
                times = self.times()
                warn(
                    f"the training loop waited {share:.0%} of the last minute for data; "
                    f"bottleneck: {times.bottleneck}: {times.advice}"
                )


def timings(loader: Any) -> TimedLoop:
    """Time the loops over a loader, in a ``with`` block around them.

    Knows the share of time that a loop waited for data, and the seconds of each stage of reading,
    over all workers of this rank: network, opening shards, disk, checksums, decoding,
    transformations, collating, and what workers do between batches. What else reads in this program
    meanwhile is counted too. Times nothing outside the block; inside it costs one to four percent
    of processor time, least where pictures are decoded (docs/slow.md).

    Loops of the program and of trainers count: those over this loader, and over others with its
    dataset, as trainers make them. Workers that were started before the block report their stages,
    but for other collate functions than `wids.collate`.

    Warns once, with the stage, if a loop waits for more than 40% of a minute.

    Args:
        loader: A ``DataLoader``, torchdata's ``StatefulDataLoader``, one that accelerate has
            prepared, a `stream`, or any other object whose class is written in Python.

    Returns:
        A context manager: its ``times()`` are frozen, with the numbers and their table as ``str``,
        and stay after the block; ``bottleneck`` and ``advice`` say what to change, ``as_dict()``
        has numbers for monitoring, and ``over_ranks()``, called on all ranks, their sum.

    Raises:
        TypeError: The loader cannot be iterated over, or its class cannot be watched.

    Example:
        >>> import wids
        >>> from torch.utils.data import DataLoader
        >>> with wids.TarWriter("train.tar") as writer:
        ...     for n in range(6):
        ...         _ = writer.write({"__key__": f"{n:06d}", "cls": n})
        >>> dataset = wids.ShardListDataset("train.tar")
        >>> loader = DataLoader(dataset, batch_size=2)
        >>> with wids.timings(loader) as timings:
        ...     for batch in loader:
        ...         pass
        >>> timings.times().num_batches, timings.as_dict()["samples"]
        (3, 6.0)
        >>> timings.bottleneck in ("loop", "workers", "index", "collate", "disk")
        True
        >>> dataset.close()
    """
    if not callable(getattr(type(loader), "__iter__", None)):
        raise TypeError(f"loader: expected one to iterate over, found {type(loader).__name__}")
    return TimedLoop(loader)


class _TimedIterator:
    """An iterator of a loader, whose time is noted."""

    def __init__(self, iterator: Iterator[Any], loop: TimedLoop, start_s: float) -> None:
        self._iterator = iterator
        self._loop = loop
        self._since_s = perf_counter()
        loop.note(self._since_s - start_s, 0.0)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        loop, start_s = self._loop, perf_counter()
        try:
            batch = loop.waited_for(next, self._iterator)
            loop.num_batches += 1
        finally:
            step_s, self._since_s = start_s - self._since_s, perf_counter()
            loop.note(self._since_s - start_s, step_s)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


# The classes of loaders that are watched.

_lock: Final = threading.Lock()
_loops: Final[list[TimedLoop]] = []
_replaced: Final[dict[type, tuple[Callable[[Any], Any], bool]]] = {}


def _watch(loop: TimedLoop) -> None:
    cls = type(loop.loader)
    with _lock:
        if cls not in _replaced:
            before, is_own = cls.__iter__, "__iter__" in vars(cls)
            try:
                cls.__iter__ = _timed_iter(before)
            except TypeError as error:
                raise TypeError(
                    f"loader: expected one whose class is written in Python, such as a DataLoader, "
                    f"found {cls.__name__}"
                ) from error
            _replaced[cls] = before, is_own
        _loops.append(loop)


def _unwatch(loop: TimedLoop) -> None:
    cls = type(loop.loader)
    with _lock:
        _loops.remove(loop)
        if not any(type(other.loader) is cls for other in _loops):
            before, is_own = _replaced.pop(cls)
            if is_own:
                cls.__iter__ = before
            else:
                del cls.__iter__


def _timed_iter(before: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __iter__(self: Any) -> Any:  # noqa: N807 - it takes the place of the class's own
        loop = next((loop for loop in _loops if loop.is_about(self)), None)
        # A loader may iterate over another one with its dataset, which is timed with it.
        if loop is None or loop.is_waiting:
            return before(self)
        start_s = perf_counter()
        return _TimedIterator(loop.waited_for(before, self), loop, start_s)

    return __iter__
