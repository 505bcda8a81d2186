"""Time a training loop around any loader, and say what bounds it and which setting to change.

Trainers iterate over the loader that they were passed, and Python looks ``__iter__`` up on its
class. So this replaces ``__iter__`` of that class while a loop is timed (decision 0105).
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Final

from wids.dataset.collating import collate as own_collate
from wids.errors import warn
from wids.storage import stages
from wids.storage.files import fastest_crc32
from wids.storage.stages import COUNTS, SECONDS

READY: Final = 0.1
"""A loop that waits for a smaller part of its time is bound by itself."""
_CHECK_SHARE: Final = 0.1
"""From this share of all stages on, quicker checksums are worth their installation."""

LABELS: Final = {
    "fetch": "network",
    "open": "opening shards",
    "read": "disk",
    "check": "check",
    "decode": "decode",
    "transform": "transform",
    "collate": "collate",
    "between": "between batches",
}
"""What tables call the stages."""

ADVICE: Final = {
    "loop": "batches are ready when the loop wants them; nothing here would make it faster",
    "network": "fetch shards ahead with wids.Prefetcher, let more workers wait at the same time "
    "(num_workers), read only the fields that are needed (fields=), or copy the shards nearer",
    "disk": "move the shards to a faster disk, read only the fields that are needed (fields=), or "
    "read shard by shard (wids.ChunkedSampler), so that the system can read ahead",
    "index": "store indexes beside the shards (`wids create`), so that none is made when a shard "
    "is opened",
    "check": 'install wids[fast], whose checksums are quicker, or compare none: verify="never"',
    "decode": "install wids[turbo], which decodes JPEGs faster, or decode pictures no larger than "
    "needed (Decoder(at_least=…)), leave fields out that are not needed (fields=), or store "
    "smaller ones (wids.rewrite)",
    "transform": "make the transformations faster, or do their first part once and store the "
    "result (wids.rewrite)",
    "collate": "use wids.collate, which shares the memory of large tensors, and make samples "
    "smaller before they are collated",
    "workers": "use more workers (num_workers): there are processors without one",
    "cache": 'make cache_size larger, or chunks smaller (chunksize="auto"): '
    "copies were evicted while the loop ran",
    "chunk": "make chunks smaller (chunksize), or lru_size larger: shards were closed and opened "
    "again while the loop ran",
    "hand-over": "workers wait though the loop does too: send smaller batches (wids.collate shares "
    "the memory of large tensors), or look into the dataset around the wids.ShardListDataset",
}
"""What to change, by what bounds a loop. `wids bench` has the same names and advice."""

_PACKAGES: Final = {"check": "zlib_ng", "decode": "simplejpeg"}
"""What the extras install that some advice begins with."""


def usable_processors() -> int:
    """Return how many processors a rank can use."""
    try:
        num_processors = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        num_processors = os.cpu_count() or 1
    stated = os.environ.get("LOCAL_WORLD_SIZE", "")
    num_ranks = int(stated) if stated.isascii() and stated.isdecimal() else 1
    return max(1, num_processors // max(1, num_ranks))


@dataclass(frozen=True, repr=False)
class StageTimes:
    """Where the time of a training loop went, over all of its workers.

    Attributes:
        seconds: Seconds by stage, as docs/slow.md explains them, summed over the processes that
            read; ``"between"`` is what workers do between two batches.
        counts: The counts of ``dataset.stats()``.
        loop_s: Seconds of the loop.
        wait_s: Seconds that it waited for a batch.
        num_batches: Batches that it received.
        num_workers: Workers of the loader; 0 if the loop itself reads.
        num_processors: Processors that a rank can use.
        num_ranks: Ranks whose numbers are summed here; seconds of the loop are summed too.
    """

    seconds: Mapping[str, float]
    counts: Mapping[str, float]
    loop_s: float
    wait_s: float
    num_batches: int
    num_workers: int = 0
    num_processors: int = field(default_factory=usable_processors)
    num_ranks: int = 1

    @property
    def wait_share(self) -> float:
        """The share of its time that the loop waited for data."""
        return self.wait_s / self.loop_s if self.loop_s > 0 else 0.0

    @property
    def bottleneck(self) -> str:
        """What bounds the loop: a key of `ADVICE`."""
        if self.wait_share < READY:
            return "loop"
        busy = {name: self.seconds[name] for name in SECONDS if name != "between"}
        largest, all_s = max(busy, key=lambda name: busy[name]), sum(busy.values())
        if not all_s or (self.num_workers and self.seconds["between"] > all_s):
            return "hand-over"
        if largest in ("fetch", "open") and self.counts["evictions"]:
            return "cache"
        if largest == "open":
            is_again = 2 * self.counts["reopenings"] > self.counts["openings"]
            return "chunk" if is_again else "index"
        if largest in ("check", "decode", "transform") and self.num_workers < self.num_processors:
            return "workers"
        return LABELS[largest]

    @property
    def advice(self) -> str:
        """Which setting to change."""
        text, check = ADVICE[self.bottleneck], self.stages["check"][1]
        package = _PACKAGES.get(self.bottleneck)
        if package and find_spec(package):
            # What is installed is no advice. That it is missing comes first, and ends with "or".
            text = text.partition(" or ")[2]
        is_slow = self.bottleneck not in ("loop", "check") and check >= _CHECK_SHARE
        if not is_slow or fastest_crc32() is not zlib.crc32:
            return text
        return f"install wids[fast]: checksums are {check:.0%} of all stages; {text}"

    def as_dict(self) -> dict[str, float]:
        """Return all numbers by name, for monitoring.

        Example:
            >>> times = StageTimes(dict.fromkeys(SECONDS, 0.5), dict.fromkeys(COUNTS, 8), 9, 3, 2)
            >>> times.as_dict()["decode_s"], round(times.as_dict()["wait_share"], 2)
            (0.5, 0.33)
        """
        return {
            "loop_s": self.loop_s,
            "wait_s": self.wait_s,
            "wait_share": self.wait_share,
            "batches": self.num_batches,
            **{f"{name}_s": self.seconds[name] for name in SECONDS},
            **self.counts,
        }

    @property
    def stages(self) -> dict[str, tuple[float, float]]:
        """Milliseconds a sample, and the share of all stages, by what tables call a stage."""
        num_samples, all_s = max(1.0, self.counts["samples"]), sum(self.seconds.values())
        return {
            LABELS[name]: (1e3 * seconds / num_samples, seconds / all_s if all_s else 0.0)
            for name, seconds in self.seconds.items()
        }

    def __repr__(self) -> str:
        stages = self.stages.items()
        table = [f"{label:<16}{each:>12.3f}{share:>8.0%}" for label, (each, share) in stages]
        whose = "the loop" if self.num_ranks == 1 else f"the loops of {self.num_ranks} ranks"
        waited = f"{whose} waited {self.wait_share:.0%} of {self.loop_s:.1f} s"
        return "\n".join(
            (
                f"{'stage':<16}{'ms a sample':>12}{'share':>8}",
                *table,
                f"{waited}: {self.num_batches} batches, {self.counts['samples']:.0f} samples",
                f"bottleneck: {self.bottleneck}: {self.advice}",
            )
        )


def added(times: StageTimes, other: StageTimes, sign: int = 1) -> StageTimes:
    """Return the sum of the numbers of two loops; with -1 for ``sign`` their difference."""

    def total(numbers: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
        return {name: number + sign * others[name] for name, number in numbers.items()}

    return replace(
        times,
        seconds=total(times.seconds, other.seconds),
        counts=total(times.counts, other.counts),
        loop_s=times.loop_s + sign * other.loop_s,
        wait_s=times.wait_s + sign * other.wait_s,
        num_batches=times.num_batches + sign * other.num_batches,
    )


def stage_times(
    counted: Mapping[str, float], own_between_s: float = 0.0, **about: Any
) -> StageTimes:
    """Return the `StageTimes` of numbers as `stages.counted` returns them.

    Args:
        counted: The numbers.
        own_between_s: Seconds between batches of the process that runs the loop, which belong to
            the loop.
        about: What else there is to say of the loop.
    """
    seconds = {name: counted[f"{name}_s"] for name in SECONDS}
    seconds["between"] -= own_between_s
    return StageTimes(seconds, {name: counted[name] for name in COUNTS}, **about)


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
            stages.own_between_s(),
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
