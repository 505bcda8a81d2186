"""Return a rank's samples in the order of a sampler, as a torch ``IterableDataset``.

The workers of a DataLoader share the order among themselves, batch by batch.

Persistent workers have copies of the sampler. They see here the epoch that the main process sets,
and a pass is complete when each of them has read its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple
from itertools import chain, islice
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np
import torch  # noqa: F401 - whole, before its parts: threads must not import both at once
from torch.utils.data import IterableDataset, get_worker_info

from wids.dataset.prefetch import Prefetcher
from wids.errors import StateError
from wids.order.arguments import at_least
from wids.order.elastic import EpochPart, EpochPlace, History
from wids.order.passes import Epochs, EpochSampler
from wids.storage.shared_numbers import SharedArray

_NUM_SLOTS: Final = 1024
"""Maximum number of workers of one loader. The array is made before their number is known."""

_MOST_PARTS: Final = 1024
"""Maximum number of times that the ranks of a stream may change in an epoch."""

_SHARED: Final = np.dtype(
    [
        *((name, np.int64) for name in ("number", "since", "is_fixed", "begun", "start")),
        *((name, np.int64) for name in ("is_rest", "restored", "position", "num_parts", "after")),
        ("num_restored", np.int64),
        ("parts", np.int64, (_MOST_PARTS, 3)),
        ("passes", np.int64, _NUM_SLOTS),
    ]
)
"""What they share: the epoch that was set, after how many passes, and whether it is fixed; the pass
that began last, its start, and whether it is the rest of an epoch; the place that was restored,
with its parts; after how many passes, and how often that was. And the passes that each worker has
completed."""


class SharedEpochs(Epochs):
    """The epoch of a sampler whose passes are read by workers.

    Each worker notes the passes that it has completed. The slowest one counts, so a pass that a
    program left early is not complete, even if some workers have read ahead to its end.

    Args:
        epochs: The epoch to start with.
        place: Where its next pass starts.
    """

    def __init__(self, epochs: Epochs, place: EpochPlace) -> None:
        self._array = SharedArray("q", _SHARED.itemsize // 8)
        vars(self).update(
            {k: v for k, v in vars(epochs).items() if k not in ("number", "is_fixed")}
        )
        self.number, self.is_fixed = epochs.number, epochs.is_fixed
        self.begin(EpochPlace(epochs.number))
        self._note_place(place)

    def restore(self, number: int, *, is_fixed: bool, place: EpochPlace | None = None) -> None:
        """Restore the epoch of a state and its place; None if only the epoch is set."""
        super().restore(number, is_fixed=is_fixed)
        # A restored position counts only in its own epoch, also in persistent workers (ORDER-11).
        if place is not None or number != self._shared["restored"]:
            self._note_place(place or EpochPlace(number))
        # Workers that read ahead may still end a pass that began before: it counts no more.
        self._shared["num_restored"] += place is not None

    def _note_place(self, place: EpochPlace) -> None:
        if len(place.history) > _MOST_PARTS:
            raise StateError(
                f"the state has {len(place.history):,} changes of the number of ranks in one "
                f"epoch, and a stream continues after at most {_MOST_PARTS:,}; pass the dataset "
                "and the sampler to the loader instead"
            )
        shared, num_parts = self._shared, len(place.history)
        shared["parts"][:num_parts] = np.array(list(map(astuple, place.history))).reshape(-1, 3)
        shared["restored"], shared["position"] = place.epoch, place.position
        shared["num_parts"], shared["after"] = num_parts, self.num_passes

    def place(self, number: int) -> EpochPlace:
        """Return where a pass of an epoch starts: its start, or a restored place, for one pass."""
        shared = self._shared
        if (shared["restored"], shared["after"]) != (number, self.num_passes):
            return EpochPlace(number)
        return EpochPlace(number, int(shared["position"]), self._history())

    def _history(self) -> History:
        parts = self._shared["parts"][: self._shared["num_parts"]]
        return tuple(EpochPart(*part) for part in parts.tolist())

    @property
    def _shared(self) -> Any:
        return np.frombuffer(self._array.values, _SHARED)[0]

    @property
    def number(self) -> int:
        """The epoch of the next pass."""
        shared = self._shared
        num_since = 0 if shared["is_fixed"] else self.num_passes - shared["since"]
        return int(shared["number"] + num_since)

    @number.setter
    def number(self, number: int) -> None:
        self._shared["number"], self._shared["since"] = number, self.num_passes

    @property
    def is_fixed(self) -> bool:
        """Whether ``set_epoch`` was called, so that the epoch does not advance by itself."""
        return bool(self._shared["is_fixed"])

    @is_fixed.setter
    def is_fixed(self, is_fixed: bool) -> None:
        self._shared["is_fixed"] = is_fixed

    @property
    def num_passes(self) -> int:
        """Number of passes that all workers have completed."""
        return int(self._shared["passes"].min())

    @property
    def begun(self) -> EpochPlace:
        """Where the latest pass that began started."""
        shared = self._shared
        history = self._history() if shared["is_rest"] else ()
        return EpochPlace(int(shared["begun"]), int(shared["start"]), history)

    def begin(self, place: EpochPlace) -> None:
        """Note that a pass begins. All workers note the same."""
        shared = self._shared
        shared["begun"], shared["start"] = place.epoch, place.position
        shared["is_rest"] = bool(place.history)  # which is that of the restored epoch
        self._pass = self.num_passes + 1, int(shared["num_restored"])

    def complete(self) -> None:
        """Note that this worker has read its share of the pass to the end."""
        num_passes, num_restored = self._pass
        if num_restored == self._shared["num_restored"]:
            number, num_workers = worker()  # which divide the places that are left over
            self._shared["passes"][number::num_workers] = num_passes


def worker() -> tuple[int, int]:
    """Return the number of this worker and of all workers; ``(0, 1)`` in the main process.

    Raises:
        ValueError: The loader has more workers than can share an epoch.
    """
    info = get_worker_info()
    if info is None:
        return 0, 1
    if info.num_workers > _NUM_SLOTS:
        raise ValueError(
            f"num_workers: expected at most {_NUM_SLOTS:,} workers for a stream, found "
            f"{info.num_workers:,}; pass the dataset and the sampler to the loader instead"
        )
    return info.id, info.num_workers


_READ_AHEAD: Final = 64
"""Fewest samples to read at a time, since a call for each would cost more than the samples."""


class Batches(Protocol):
    """What a stream needs of a dataset."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Read several samples."""


def stream(
    dataset: Batches,
    sampler: EpochSampler[int] | Prefetcher[int],
    *,
    batch_size: int = 1,
    webdataset: bool = False,
) -> SampleStream:
    """Return the samples of a rank in the order of a sampler, for pipelines that iterate.

    Pass it to a DataLoader in place of a dataset, or use it as the first stage of a
    ``webdataset.DataPipeline``. The workers of a DataLoader share the order: each sample is read
    once, and with the same ``batch_size`` for both the batches are those that a DataLoader makes of
    the dataset and the sampler, whatever the number of workers. There is nothing to split by node
    or by worker.

    Args:
        dataset: A `ShardListDataset` or a view.
        sampler: One of wids' samplers of indices, over the dataset; or a `Prefetcher` around one.
            Each worker then fetches the shards of its share ahead; it waits for what another one
            fetches.
        batch_size: Number of consecutive samples that one worker reads: that of the DataLoader.
        webdataset: True to return samples as webdataset's stages expect them: names without their
            leading dot, and ``__url__``. The dataset should leave fields undecoded,
            ``transformations=[]`` and ``raw="bytes"``.

    Raises:
        TypeError: ``sampler`` is not one of wids' samplers of indices, or ``dataset`` has no
            batches.
        ValueError: ``batch_size`` is less than 1.

    Example:
        >>> import wids
        >>> from torch.utils.data import DataLoader
        >>> with wids.TarWriter("train.tar") as writer:
        ...     for n in range(6):
        ...         _ = writer.write({"__key__": f"{n:06d}", "cls": n})
        >>> dataset = wids.ShardListDataset("train.tar")
        >>> samples = wids.stream(dataset, wids.ChunkedSampler(dataset, seed=1), batch_size=2)
        >>> [batch[".cls"].tolist() for batch in DataLoader(samples, batch_size=2)]
        [[5, 1], [0, 4], [2, 3]]
        >>> dataset.close()
    """
    return SampleStream(dataset, sampler, batch_size=batch_size, webdataset=webdataset)


class SampleStream(IterableDataset[Any]):
    """The samples of a rank in order; made by `stream`.

    ``len`` is that of the sampler. Not safe to share between threads.

    Args:
        dataset, sampler, batch_size, webdataset: As for `stream`.
    """

    def __init__(
        self,
        dataset: Batches,
        sampler: EpochSampler[int] | Prefetcher[int],
        *,
        batch_size: int,
        webdataset: bool,
    ) -> None:
        order: Any = sampler.sampler if isinstance(sampler, Prefetcher) else sampler
        if not isinstance(order, EpochSampler) or not order.yields_indices:
            raise TypeError(
                "sampler: expected one of wids' samplers of indices, such as "
                f"wids.ChunkedSampler(dataset), or a Prefetcher around one, found "
                f"{type(order).__name__}"
            )
        if not callable(getattr(dataset, "__getitems__", None)):
            raise TypeError(
                f"dataset: expected a wids.ShardListDataset, found {type(dataset).__name__}"
            )
        self.dataset = dataset
        self.sampler = order
        self.prefetcher = sampler if isinstance(sampler, Prefetcher) else None
        if not isinstance(order._epochs, SharedEpochs):
            order._epochs = SharedEpochs(order._epochs, order._place_of(order.epoch))
        self.epochs: SharedEpochs = order._epochs
        self.batch_size = at_least(1, batch_size, "batch_size")
        self.webdataset = bool(webdataset)
        # Samples that this process has returned in its pass, with those that failed before them.
        self._num_returned = 0
        # Where the latest pass started, and how often an epoch had been set.
        self._pass: tuple[EpochPlace, int] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        # torchdata takes a state between this call and the first sample: that of the pass to come.
        self._pass = None
        return self._samples()

    def _samples(self) -> Iterator[Any]:
        self.sampler._note_second_dealing()
        start, num_before = self._begin(), 0
        for group in self._groups(start):
            samples = self.dataset.__getitems__(group)
            for number, sample in enumerate(samples, start=1):
                # Before the sample is returned: the state is asked for after that. Which of a group
                # have failed is not known before its end.
                self._num_returned = num_before + (number if number < len(samples) else len(group))
                yield _without_dots(sample) if self.webdataset else sample
            num_before += len(group)
        self._num_returned = num_before
        self.epochs.complete()
        self.sampler._rewind()

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next passes, in the workers of a DataLoader too."""
        self.sampler.set_epoch(epoch)

    def _begin(self) -> EpochPlace:
        """Begin a pass; return where it starts."""
        number = self.epochs.number
        place = self.epochs.place(number)
        self.epochs.begin(place)
        if self.sampler._tell_epoch is not None:
            self.sampler._tell_epoch(number, self.sampler._replica()[1])
        self._pass, self._num_returned = (place, self.epochs.num_set), 0
        return place

    def _groups(self, start: EpochPlace) -> Iterator[list[int]]:
        """Yield the indices that this worker reads, several batches at a time."""
        share, num_workers = worker()
        length = -(-_READ_AHEAD // self.batch_size)

        def groups() -> Iterator[list[int]]:
            indices = chain.from_iterable(self.sampler._blocks(start))
            batches = iter(lambda: list(islice(indices, self.batch_size)), [])
            own = islice(batches, share, None, num_workers)
            return iter(lambda: list(chain.from_iterable(islice(own, length))), [])

        if self.prefetcher is None:
            return groups()
        return self.prefetcher.fetching(chain.from_iterable(groups()), groups(), Lock())

    # The state.

    def state_dict(self, num_consumed: int | None = None) -> dict[str, Any]:
        """Return the state of the sampler, for the rest of the latest pass; JSON-able.

        In the main process. What its workers have read is more than what training has used, and
        only the caller knows that: with a plain DataLoader, pass ``num_consumed``.

        Args:
            num_consumed: Number of samples in the latest pass that training on this rank has
                consumed. None for what this process has returned; if ``on_error="skip"`` has left
                out samples just before, as many may come again.

        Raises:
            StateError: A worker is asked, as those of torchdata's ``StatefulDataLoader`` are. It
                takes the dataset and the sampler instead.
        """
        if num_consumed is not None:
            begun = self.epochs.begun
            return self.sampler._state_at(
                begun + self.sampler._checked_consumed(num_consumed, begun)
            )
        _check_is_main()
        if self._pass is not None:
            place, num_set = self._pass
            if self.epochs.is_kept(place.epoch, num_set):
                return self.sampler._state_at(place + self._num_returned)
        return self.sampler._state_at(self.epochs.place(self.epochs.number))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, of the stream or of its sampler: the next pass is the rest.

        Raises:
            StateError: The state is damaged, or belongs to another dataset or other settings; or it
                is restored in a worker.
        """
        _check_is_main()
        self.sampler.load_state_dict(state)
        self._pass = None
        self.epochs.begin(self.epochs.place(self.epochs.number))

    def __repr__(self) -> str:
        return f"<stream of {self.dataset!r} by {type(self.sampler).__name__}>"


def _check_is_main() -> None:
    """Raise StateError in a worker, which knows only its share."""
    if get_worker_info() is not None:
        raise StateError(
            "stream: expected state_dict or load_state_dict in the main process, found it in a "
            "worker, which knows only its share; pass the dataset and the sampler to a "
            "StatefulDataLoader in place of a stream, or save state_dict(num_consumed)"
        )


def _without_dots(sample: Any) -> Any:
    """Return a sample with webdataset's names."""
    if not isinstance(sample, dict):
        return sample
    renamed = {name.removeprefix("."): value for name, value in sample.items()}
    return {**renamed, "__url__": sample.get("__shard__", "")}
