"""Measure how fast a dataset is read, as training would, with each of several numbers of workers.

Stages, bottlenecks and advice are those of `timings`, which watches the loops here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from time import perf_counter
from typing import Any, Final

import torch.utils.data as torch_data

from wids.dataset.collating import collate
from wids.dataset.shard_list import ShardListDataset
from wids.dataset.timing import LABELS, StageTimes, added, timings
from wids.errors import WidsError
from wids.look.text import table
from wids.order.arguments import at_least
from wids.order.samplers import ChunkedSampler
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls

NUM_WORKERS: Final = (0, 1, 2, 4)
BATCH_SIZE: Final = 64
SECONDS: Final = 5.0

_MAX_STATS: Final = 100
"""Shards whose lengths are looked at; others are about as long."""


class SubjectError(WidsError, TypeError):
    """An object that is no dataset and no loader."""


@dataclass(frozen=True)
class BenchmarkRun:
    """What was read with one number of workers.

    Attributes:
        times: Where the time went.
        samples_per_s: Samples that arrived in a second; None if it is not known how many did.
        nbytes_per_s: Bytes of shards that these samples are, a second; None if it is not known.
        is_cached: Whether caches had some of it, since earlier runs had read the same.
        is_collated: Whether batches were collated, and not lists of samples.
    """

    times: StageTimes
    samples_per_s: float | None
    nbytes_per_s: float | None
    is_cached: bool = False
    is_collated: bool = True

    @property
    def stages(self) -> dict[str, tuple[float, float]]:
        """Milliseconds a sample, and the share of all stages: those of `StageTimes.stages`.

        Where the loop does nothing, what workers do between batches is to hand them over.
        """
        stages = self.times.stages
        return stages | {"hand-over": stages.pop(LABELS["between"])}

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "workers": self.times.num_workers,
            "samples_per_s": self.samples_per_s,
            "nbytes_per_s": self.nbytes_per_s,
            "stages": {
                name: {"ms": ms, "share": share} for name, (ms, share) in self.stages.items()
            },
            "bottleneck": self.times.bottleneck,
            "advice": self.times.advice,
            "is_cached": self.is_cached,
            "is_collated": self.is_collated,
            "numbers": self.times.as_dict(),
        }


@dataclass(frozen=True)
class Benchmark:
    """What `benchmark` has measured; ``str`` is a table with a column for each run.

    Attributes:
        runs: The runs, one for each number of workers.
    """

    runs: tuple[BenchmarkRun, ...]

    @property
    def compared(self) -> Sequence[BenchmarkRun]:
        """The runs that can be compared: where servers were read, not those that caches sped up."""
        own = [run for run in self.runs if not run.is_cached]
        return own if any(run.times.counts["nbytes"] for run in own) else self.runs

    @property
    def fastest(self) -> BenchmarkRun:
        """The run with the most samples a second, whose bottleneck remains."""
        return max(self.compared, key=lambda run: run.times.num_batches / (run.times.loop_s or 1.0))

    @property
    def verdict(self) -> StageTimes:
        """The times of the fastest run; more workers are no advice if they were slower."""
        times = self.fastest.times
        if any(run.times.num_workers > times.num_workers for run in self.compared):
            return replace(times, num_processors=0)
        return times

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        times = self.verdict
        return {
            "runs": [run.as_dict() for run in self.runs],
            "num_processors": self.runs[0].times.num_processors,
            "fastest": times.num_workers,
            "bottleneck": times.bottleneck,
            "advice": times.advice,
        }

    def __str__(self) -> str:
        times, num_processors = self.verdict, self.runs[0].times.num_processors
        heads = [count_text(run.times.num_workers, "worker") for run in self.runs]
        stages = [
            (name, *("{:.3f} {:4.0%}".format(*run.stages[name]) for run in self.runs))
            for name in self.runs[0].stages
        ]
        rates = [
            ("samples/s", *(_text(run.samples_per_s, "{:,.0f}".format) for run in self.runs)),
            ("bytes/s", *(_text(run.nbytes_per_s, nbytes_text) for run in self.runs)),
            ("bottleneck", *(run.times.bottleneck for run in self.runs)),
        ]
        lines = [table(["ms a sample", *heads], [*stages, *rates])]
        again = [head for head, run in zip(heads, self.runs, strict=True) if run.is_cached]
        if again:
            lines.append(f"caches had what was read before: {', '.join(again)}")
        if not all(run.is_collated for run in self.runs):
            lines.append("batches were lists: these samples cannot be collated as they are")
        fastest = count_text(times.num_workers, "worker")
        lines.append(f"fastest with {fastest}, on {count_text(num_processors, 'processor')}")
        lines.append(f"bottleneck: {times.bottleneck}: {times.advice}")
        return "\n".join(lines)


def benchmark(
    subject: Any,
    num_workers: Sequence[int] | None = None,
    *,
    batch_size: int | None = None,
    chunksize: int | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    seconds: float = SECONDS,
    num_batches: int | None = None,
) -> Benchmark:
    """Read batches with each number of workers, and return where the time went.

    A run ends when its time is over, or after a number of batches. Each run continues in the order
    of the previous one, and so reads what is in no cache, as long as there is such. The first batch
    of workers is not counted: they start meanwhile.

    Args:
        subject: A dataset, a loader, or a callable that returns one. A `ShardListDataset` is read
            in the order of a `ChunkedSampler`, another dataset in a random order, and a loader as
            it is.
        num_workers: Numbers of workers; None for `NUM_WORKERS`.
        batch_size: Samples in a batch; None for `BATCH_SIZE`.
        chunksize: That of the sampler; None for its default.
        collate_fn: None for `wids.collate`, or for lists of samples that it refuses.
        seconds: Seconds for each run.
        num_batches: Batches after which a run ends; None for no limit.

    Raises:
        SubjectError: The subject is none of these.
        ValueError: It has no samples; or it is a loader, with settings of its own.
    """
    subject = made(subject)
    if not _is_dataset(subject):
        settings = {"num_workers": num_workers, "batch_size": batch_size, "chunksize": chunksize}
        for name, value in settings.items():
            if value is not None:
                raise ValueError(
                    f"{name}: expected a dataset, found a {type(subject).__name__}, which is read "
                    "as it is; pass its dataset"
                )
        return Benchmark((_run(subject, seconds, num_batches),))
    batch_size = at_least(1, BATCH_SIZE if batch_size is None else batch_size, "batch_size")
    order = None if _is_iterable(subject) else _Order(subject, batch_size, chunksize)
    batches: Any = {"batch_size": batch_size} if order is None else {"batch_sampler": order}
    runs: list[BenchmarkRun] = []
    for number in NUM_WORKERS if num_workers is None else num_workers:
        at_least(0, number, "num_workers")
        num_before = 0 if order is None else order.num_dealt
        with warnings.catch_warnings():
            # Of torch, about more workers than processors, which is what is to be measured.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader = torch_data.DataLoader(
                subject, num_workers=number, collate_fn=collate_fn or _Collate(), **batches
            )
            run = _run(loader, seconds, num_batches, batch_size)
        is_cached = bool(runs)
        if order is not None:
            is_cached = num_before + run.times.num_batches > order.num_in_pass
        # Of a shard that was fetched whole, other samples may be left.
        is_fetched = any(earlier.times.counts["nbytes"] for earlier in runs)
        is_cached |= is_fetched and not run.times.counts["nbytes"]
        runs.append(replace(run, is_cached=is_cached))
    return Benchmark(tuple(runs))


class _Order:
    """Batches of a dataset, one pass after another; each iteration continues the previous one.

    Attributes:
        num_dealt: Batches that were iterated over.
        num_in_pass: Batches that have all samples.
    """

    def __init__(self, dataset: Any, batch_size: int, chunksize: int | None) -> None:
        num_samples = len(dataset)
        if not num_samples:
            raise ValueError("expected a dataset with samples, found none")
        self.num_dealt = 0
        self.num_in_pass = -(-num_samples // batch_size)
        sampler: Any
        if isinstance(dataset, ShardListDataset):
            sizes: dict[str, Any] = {} if chunksize is None else {"chunksize": chunksize}
            sampler = ChunkedSampler(dataset, **sizes)
        else:
            sampler = torch_data.RandomSampler(dataset)
        indices = chain.from_iterable(repeat(sampler))
        self._batches = iter(lambda: list(islice(indices, batch_size)), [])

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches:
            self.num_dealt += 1
            yield batch


class _Uncollated(list[Any]):
    """The samples of a batch that cannot be collated."""


class _Collate:
    """`collate`, until it refuses a batch; then batches stay lists of samples."""

    def __init__(self) -> None:
        self._is_refused = False

    def __call__(self, samples: Sequence[Any]) -> Any:
        if not self._is_refused:
            try:
                return collate(samples)
            except (TypeError, ValueError, RuntimeError):
                self._is_refused = True
        return _Uncollated(samples)


def made(subject: Any) -> Any:
    """Return a dataset or a loader, or what a callable returns as one."""
    is_maker = isinstance(subject, type) or not (_is_dataset(subject) or _is_loader(subject))
    result = subject() if is_maker and callable(subject) else subject
    if isinstance(result, type) or not (_is_dataset(result) or _is_loader(result)):
        raise SubjectError(
            "expected a dataset, a loader, or a callable that returns one, found "
            f"{type(result).__name__}"
        )
    return result


def _is_loader(subject: Any) -> bool:
    return hasattr(type(subject), "__iter__") and not isinstance(subject, (str, bytes))


def _is_dataset(subject: Any) -> bool:
    is_sequence = hasattr(subject, "__getitem__") and hasattr(subject, "__len__")
    return _is_iterable(subject) or (is_sequence and not isinstance(subject, (str, bytes)))


def _is_iterable(subject: Any) -> bool:
    return isinstance(subject, torch_data.IterableDataset)


def _run(
    loader: Any, seconds: float, num_batches: int | None, batch_size: int | None = None
) -> BenchmarkRun:
    times, batch = _read(loader, seconds, num_batches)
    batch_size = batch_size or getattr(loader, "batch_size", None)
    num_samples = times.num_batches * batch_size if batch_size else times.counts["samples"]
    speed = num_samples / times.loop_s if num_samples and times.loop_s else None
    nbytes = _mean_nbytes(getattr(loader, "dataset", None))
    rate = None if nbytes is None or speed is None else speed * nbytes
    return BenchmarkRun(times, speed, rate, is_collated=not isinstance(batch, _Uncollated))


def _read(loader: Any, seconds: float, num_batches: int | None) -> tuple[StageTimes, Any]:
    """Read batches until a run ends; return where the time went, and the last batch."""
    batch = None
    with timings(loader) as loop:
        first, end_s = None, perf_counter() + seconds
        for number, batch in enumerate(loader, start=1):  # noqa: B007 - the last one is returned
            if number == num_batches:
                break
            if number == 1 and getattr(loader, "num_workers", False):
                first, end_s = loop.times(), perf_counter() + seconds
            elif perf_counter() >= end_s:
                break
        last = loop.times()
    if not last.num_batches:
        raise ValueError("expected a dataset or loader with batches, found none")
    is_later = first is not None and last.num_batches > first.num_batches
    return added(last, first, -1) if is_later and first is not None else last, batch


def _mean_nbytes(dataset: Any) -> float | None:
    """Return how many bytes of its shard a sample takes on average, or None."""
    if not isinstance(dataset, ShardListDataset):
        return None
    num_samples = nbytes = 0
    for shard in dataset.spec.shards[:_MAX_STATS]:
        length = shard.nbytes
        if length is None and urls.is_local(shard.url):
            with suppress(OSError):  # reading reports it
                length = os.path.getsize(urls.local_path(shard.url))
        if length is None or not shard.num_samples:
            return None
        num_samples, nbytes = num_samples + shard.num_samples, nbytes + length
    return nbytes / num_samples if num_samples else None


def _text(value: float | None, form: Callable[[Any], str]) -> str:
    return "unknown" if value is None else form(round(value))
