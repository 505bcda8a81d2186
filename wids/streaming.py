"""A dataset and a sampler → the rank's samples in order, as a torch ``IterableDataset``.

The workers of a DataLoader share the order among themselves, batch by batch. What an order is, and
how samples are read, is up to the sampler and the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, Protocol

from torch.utils.data import IterableDataset, get_worker_info

from wids.errors import StateError
from wids.sampling.arguments import at_least
from wids.sampling.passes import EpochSampler
from wids.sampling.shared_epochs import SharedEpochs, worker

_READ_AHEAD: Final = 64
"""Fewest samples to read at a time, since a call for each would cost more than the samples."""


class Batches(Protocol):
    """What a stream asks of a dataset."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Read several samples."""


def stream(
    dataset: Batches,
    sampler: EpochSampler[int],
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
        sampler: One of wids' samplers of indices, over the dataset.
        batch_size: Number of consecutive samples that one worker reads; that of the DataLoader.
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
        self, dataset: Batches, sampler: EpochSampler[int], *, batch_size: int, webdataset: bool
    ) -> None:
        if not isinstance(sampler, EpochSampler) or not sampler.yields_indices:
            raise TypeError(
                "sampler: expected one of wids' samplers of indices, such as "
                f"wids.ChunkedSampler(dataset), found {type(sampler).__name__}"
            )
        if not callable(getattr(dataset, "__getitems__", None)):
            raise TypeError(
                f"dataset: expected a wids.ShardListDataset, found {type(dataset).__name__}"
            )
        self.dataset = dataset
        self.sampler = sampler
        if not isinstance(sampler.epochs, SharedEpochs):
            sampler.epochs = SharedEpochs(sampler.epochs)
        self.epochs: SharedEpochs = sampler.epochs
        self.batch_size = at_least(1, batch_size, "batch_size")
        self.webdataset = bool(webdataset)
        # Passes that were complete when a position was restored, which counts for one pass only.
        self._restored_after = 0
        # Groups of samples that this worker has returned in its pass, and samples of the next one;
        # and those that it returned before the state was saved.
        self._consumed = self._resume = (0, 0)
        self._pass: tuple[int, int] | None = None
        self._restored_epoch: int | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        self._rewind_if_complete()
        # A worker that was restored knows its epoch. Others may not have been restored yet.
        epoch = self.epochs.number if self._restored_epoch is None else self._restored_epoch
        start = self.sampler.resume_position(epoch)
        self.epochs.begin(epoch, start)
        if self.sampler.tell_epoch is not None:
            self.sampler.tell_epoch(epoch)
        self._pass, self._restored_epoch = (epoch, start), None
        first, num_returned = self._consumed = self._resume
        self._resume = (0, 0)
        for number, group in enumerate(
            islice(self._groups(epoch, start), first, None), start=first
        ):
            samples = self.dataset.__getitems__(group)
            for place in range(num_returned, len(samples)):
                # Before the sample is returned: the state is asked for after that.
                self._consumed = (number, place + 1)
                sample = samples[place]
                yield _without_dots(sample) if self.webdataset else sample
            num_returned = 0
        self._consumed, self._pass = (0, 0), None
        self.epochs.complete(epoch)
        self.sampler.rewind()

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next passes, in the workers of a DataLoader too."""
        self.sampler.set_epoch(epoch)

    def _groups(self, epoch: int, start: int) -> Iterator[list[int]]:
        """Yield the indices that this worker reads, many at a time."""
        indices = chain.from_iterable(self.sampler.blocks(epoch, start))
        batches = iter(lambda: list(islice(indices, self.batch_size)), [])
        number, num_workers = worker()
        own = islice(batches, number, None, num_workers)
        num_batches = -(-_READ_AHEAD // self.batch_size)
        return iter(lambda: list(chain.from_iterable(islice(own, num_batches))), [])

    def _rewind_if_complete(self) -> None:
        """Forget a restored position after the pass that started there."""
        if self.epochs.num_passes != self._restored_after:
            self.sampler.rewind()
            self._restored_after = self.epochs.num_passes

    # The state.

    def state_dict(self, num_consumed: int | None = None) -> dict[str, Any]:
        """Return what `load_state_dict` needs to resume; JSON-able.

        torchdata's ``StatefulDataLoader`` asks each worker for its own. With a plain DataLoader
        that has workers, only the caller knows how many samples were consumed.

        Args:
            num_consumed: Number of samples in the latest pass that training on this rank has
                consumed; the state is then that of the sampler. None for what this process has
                returned.
        """
        if num_consumed is not None:
            epoch, start = self.epochs.begun
            return self.sampler.state_at(epoch, start + at_least(0, num_consumed, "num_consumed"))
        number, num_workers = worker()
        epoch, start = self._pass or (self.epochs.own_number, 0)
        return {
            "sampler": self.sampler.state_at(epoch, start),
            "consumed": list(self._consumed),
            "shares": [number, num_workers, self.batch_size],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, of the stream or of its sampler: the next pass is the rest.

        Raises:
            StateError: The state is damaged, or belongs to another dataset, other settings or
                another number of workers.
        """
        own: Mapping[str, Any] = state
        if "sampler" not in state:
            own = {"sampler": state, "consumed": (0, 0)}
        shares = [*worker(), self.batch_size]
        if own.get("shares", shares) != shares:
            raise StateError(
                "state: expected worker, number of workers and batch_size "
                f"{shares}, found {own.get('shares')!r:.80}; resume with the same loader, or save "
                "state_dict(num_consumed) in the main process"
            )
        try:
            num_groups, num_returned = (at_least(0, n, "consumed") for n in own["consumed"])
        except (TypeError, ValueError, KeyError) as error:
            raise StateError(f"state: expected consumed to be two numbers: {error}") from error
        self.sampler.load_state_dict(own["sampler"])
        self._restored_after = self.epochs.num_passes
        self._consumed = self._resume = (num_groups, num_returned)
        epoch = self.epochs.own_number
        if get_worker_info() is None:
            self.epochs.begin(epoch, self.sampler.resume_position(epoch))
        else:
            # Other workers may have completed their share of this epoch, or not be restored yet.
            self._restored_epoch = epoch

    def __repr__(self) -> str:
        return f"<stream of {self.dataset!r} by {type(self.sampler).__name__}>"


def _without_dots(sample: Any) -> Any:
    """Return a sample with webdataset's names."""
    if not isinstance(sample, dict):
        return sample
    renamed = {name.removeprefix("."): value for name, value in sample.items()}
    return {**renamed, "__url__": sample.get("__shard__", "")}
