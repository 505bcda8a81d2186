"""Define what other packages may ask of a dataset, by protocol, and its keys and fields.

A `ReadableDataset` is what pages and notebooks show: a dataset, a view, or the beginning of a shard
without an index. An `IndexedDataset` is a dataset or a view: tables, joins and rewriting need one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol, overload, runtime_checkable

import numpy as np

from wids.errors import WidsError, printable
from wids.shards.capacity import Capacity
from wids.shards.policy import Wanted
from wids.shards.positions import Positions, as_index, first_index_of, from_start, in_turn, select
from wids.shards.reader import ShardReader
from wids.shards.specs.model import DatasetSpec
from wids.shards.tars.headers import to_text
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import ReadableShard

MAX_SHARDS: Final = 16
"""Shards whose indexes are used for statistics of fields."""
_NUM_READ: Final = 4
"""Samples of a shard to read for statistics, where its index does not have all their fields."""
_MAX_MEMBERS: Final = 20_000
"""Members that suffice for statistics, since each further index may have to be downloaded."""


class ReadableShards(Protocol):
    """The shards of a dataset; see `wids.shards.reader.ShardReader`."""

    @property
    def cache_folder(self) -> str:
        """The folder of copies and indexes."""

    @property
    def joint(self) -> Any:
        """What is joined to the samples; None if the indexes have all their fields."""

    def is_local(self, number: int) -> bool:
        """Whether a shard can be read without fetching it."""

    def index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard; None if the shard would have to be fetched to build it."""

    def open(self, number: int, wanted: Wanted = Wanted.FILE) -> ReadableShard:
        """Open a shard, as what is wanted of it says."""


class ReadableDataset(Protocol):
    """A dataset that can be read."""

    spec: DatasetSpec
    dataset_name: str

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int) -> Any:
        """Read one sample, transformed."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read several samples, transformed."""

    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of a sample's shard, and the sample's index in that shard."""

    @property
    def reader(self) -> ReadableShards:
        """The shards of the dataset: which are local, and what their indexes say."""

    def only(self, fields: Sequence[str] | None) -> AbstractContextManager[ReadableDataset]:
        """Return the same samples, never downloading shards.

        With `fields`, samples have only these fields, undecoded; with None they are transformed as
        usual.
        """

    def find_key(self, key: str) -> int:
        """Return the index of the sample with a key."""

    @property
    def lengths(self) -> list[int]:
        """The number of samples in each shard."""

    @property
    def is_view(self) -> bool:
        """Whether the dataset has only some samples of its shards."""


@runtime_checkable
class IndexedDataset(ReadableDataset, Protocol):
    """A dataset whose samples have positions in shards with indexes: all, or those of a view."""

    @property
    def reader(self) -> ShardReader:
        """The shards of the dataset."""

    @property
    def positions(self) -> Positions:
        """Positions of the samples in the whole dataset."""

    @property
    def sample_access(self) -> SampleAccess:
        """How the samples are read."""

    def only(self, fields: Collection[str] | None) -> Any:
        """Return the same samples; see `ReadableDataset.only`."""

    def undecoded(self) -> Any:
        """Return the same samples as they are stored."""

    def map(self, function: Callable[..., Any]) -> Any:
        """Return the same samples, passed through a function."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations."""


class SampleAccess(Protocol):
    """How the samples of a dataset are read; see `wids.dataset.access.Access`."""

    @property
    def reader(self) -> ShardReader:
        """The shards."""

    @property
    def dataset_name(self) -> str:
        """The label of samples whose shard names no dataset."""

    @property
    def transformations(self) -> list[Any]:
        """The transformations that a sample passes through."""

    @property
    def steps(self) -> list[Any]:
        """All transformations that samples pass through, beginning with those of joined sides."""

    @property
    def is_overridden(self) -> bool:
        """Whether a subclass of the dataset decides what a sample is."""

    def shard_number(self, index: int) -> int:
        """Return the number of the shard that has a sample; the index must not be negative."""

    def transformed_together(self, samples: list[Any]) -> list[Any]:
        """Apply the transformations to labelled samples."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def before_steps(self, *, is_verified: bool) -> SampleAccess:
        """Return the same samples before they are transformed."""

    def read(self, position: int, number: int, wanted: Wanted) -> Any:
        """Read one sample of a shard, transformed."""

    def with_on_error(self, on_error: Any) -> SampleAccess:
        """Return the same samples, with another policy for those that cannot be produced."""

    def in_next_shard(self, index: int) -> int:
        """Return the index of a sample in the next shard, in place of one of this shard."""

    def batch(self, indices: Any) -> list[Any]:
        """Read several samples."""

    def in_turn(self) -> Iterator[Any]:
        """Read all samples."""


def access_of(dataset: Any) -> SampleAccess | None:
    """Return how the samples of a dataset are read; None for a dataset of another library."""
    # By a public name, which wrappers around a dataset pass on; checked, since other classes may
    # have an attribute of that name.
    found = getattr(dataset, "sample_access", None)
    return found if hasattr(found, "shard_number") else None


def required_access(dataset: Any) -> SampleAccess:
    """Return how the samples of a dataset are read.

    Raises:
        TypeError: It is a dataset of another library.
    """
    access = access_of(dataset)
    if access is None:
        raise TypeError(
            f"dataset: expected a wids.ShardListDataset or a view of one, found "
            f"{type(dataset).__name__}; pass the dataset inside it"
        )
    return access


def capacity_of(reader: ShardReader, lengths: Sequence[int]) -> Capacity:
    """Return what this machine can hold of a view.

    Args:
        reader: The shards.
        lengths: Number of samples of the view in each shard; a single number if the order of the
            view does not follow the shards, so that they count as one.
    """
    cache_nbytes, nbytes = reader.cache_nbytes, np.zeros(len(reader.shards))
    if cache_nbytes is not None:
        nbytes = reader.all_stored_nbytes
    if len(lengths) != len(reader.shards):
        nbytes = nbytes.sum(keepdims=True)
    counts = np.array(lengths, np.int64)
    return Capacity(counts, np.where(counts > 0, nbytes, 0), cache_nbytes, reader.max_open)


@dataclass(frozen=True)
class FieldStats:
    """How frequent and how large one field is in some shards.

    Attributes:
        field: The name of the field, with the leading dot.
        share: The share of samples that have the field, from 0 to 1.
        median_nbytes: The median length in bytes.
        max_nbytes: The greatest length in bytes.
    """

    field: str
    share: float
    median_nbytes: int
    max_nbytes: int


def compute_field_stats(indexes: Iterable[ShardIndex]) -> list[FieldStats]:
    """Return the fields of some shards, most frequent first."""
    sizes: dict[str, list[np.ndarray]] = {}
    num_samples = 0
    for index in indexes:
        num_samples += np.count_nonzero(np.diff(index.member_starts))  # others were not read
        field_ids, lengths = np.asarray(index.field_ids), np.asarray(index.sizes)
        for field_id, field in enumerate(index.fields):
            sizes.setdefault(field, []).append(lengths[field_ids == field_id])
    stats = []
    for field, parts in sizes.items():
        lengths = np.concatenate(parts)
        if len(lengths):
            share = len(lengths) / num_samples
            stats.append(FieldStats(field, share, int(np.median(lengths)), int(lengths.max())))
    return sorted(stats, key=lambda field_stats: -field_stats.share)


def field_stats(dataset: ReadableDataset) -> list[FieldStats]:
    """Return the fields of a dataset or view, from the indexes of some of its shards."""
    return compute_field_stats(_spread_indexes(dataset))


_MAX_LOCATED: Final = 1000
"""Samples of a view whose shards are looked up."""


def _spread_indexes(dataset: ReadableDataset) -> Iterator[ShardIndex]:
    numbers: Sequence[int] = range(len(dataset.spec.shards))
    if dataset.is_view and len(dataset):
        spread = range(0, len(dataset), -(-len(dataset) // _MAX_LOCATED))
        numbers = sorted({dataset.locate(index)[0] for index in spread})
    count = min(len(numbers), MAX_SHARDS)
    num_members = 0
    for step in range(count):
        if num_members > _MAX_MEMBERS:
            return
        try:
            # Spread over the dataset: of several that are one, the first shards would show the
            # fields of the first one only.
            index = index_of(dataset, numbers[step * len(numbers) // count])
        except WidsError:  # the error of a broken shard is shown in place of its samples
            continue
        if index is not None:
            num_members += len(index.sizes)
            yield index


def index_of(
    dataset: ReadableDataset, number: int, local_indices: Sequence[int] | None = None
) -> ShardIndex | None:
    """Return an index with all fields of some samples, or of the first; None if there is none."""
    index = dataset.reader.index(number)
    if index is None or dataset.reader.joint is None:
        return index
    with dataset.only(None) as selection:
        joint, some = selection.reader.joint, local_indices or range(len(index))[:_NUM_READ]
        found: ShardIndex = joint.of_samples(number, some).index
        return found


_PART: Final = 8
"""If less than one in this many of a shard's keys is wanted, they are decoded one by one."""


class Keys(Sequence[str]):
    """The keys of a dataset or view, in the order of its samples.

    ``key in keys`` and ``keys.index(key)`` take constant time, as `find_key` does. A slice, a list
    of indices or a mask selects the keys of that view. Nothing is stored: each pass reads the
    indexes of the shards.

    Raises:
        FetchError: When keys are read: a remote shard has no index.
    """

    def __init__(self, shards: ShardReader, positions: Positions) -> None:
        self._shards = shards
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: Any) -> Keys: ...
    def __getitem__(self, index: Any) -> str | Keys:
        try:
            index = as_index(index)
        except TypeError:
            return Keys(self._shards, select(self._positions, index))
        position = int(self._positions[from_start(index, len(self))])
        number, local_index = self._shards.locate(position)
        return self._shards.key_index(number).key(local_index)

    def __iter__(self) -> Iterator[str]:
        places = map(self._shards.locate, in_turn(self._positions))
        for number, run in groupby(places, operator.itemgetter(0)):
            shard_index, local_indices = self._shards.key_index(number), [i for _, i in run]
            if len(local_indices) * _PART < len(shard_index):
                yield from map(shard_index.key, local_indices)
            else:
                stored = shard_index.stored_keys()
                yield from (to_text(stored[local_index]) for local_index in local_indices)

    def __reversed__(self) -> Iterator[str]:
        return iter(self[::-1])

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) >= 0

    def index(self, key: str, start: int = 0, stop: int | None = None) -> int:
        """Return the index of the first sample with a key.

        Raises:
            ValueError: No sample has the key.
        """
        if start == 0 and stop is None:
            index = self._find(key)
            if index < 0:
                raise ValueError(f"{key!r} is not among these {len(self)} keys")
            return index
        start, stop, _ = slice(start, stop).indices(len(self))
        return start + self[start:stop].index(key)

    def _find(self, key: str) -> int:
        return first_index_of(self._positions, self._shards.find(key))

    def __repr__(self) -> str:
        text = f"<Keys of {len(self)} samples"
        try:
            shown = [repr(self[index]) for index in range(min(len(self), 2))]
        except WidsError:  # an index that is not available, or damaged
            shown = []
        more = ", …" if len(self) > len(shown) > 0 else ""
        return printable(f"{text}: {', '.join(shown)}{more}>" if shown else f"{text}>")
