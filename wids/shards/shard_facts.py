"""Hold what every way of opening a shard needs, and compare the shard with the count in its spec.

A shard that is missing, incomplete, not a tar, or not what the spec says is noted once in all
processes of a dataset, with one warning. It is not opened again: a download that fails would be
repeated for each of its samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from wids.errors import (
    Line,
    MismatchError,
    NotFoundError,
    ShardFormatError,
    WidsError,
    user_line,
    warn,
)
from wids.shards.read_options import ReadOptions
from wids.shards.sidecars import DatasetIndexes
from wids.shards.specs.model import COUNTS_FROM, ShardSpec
from wids.shards.specs.shard_columns import Numbers
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.shard import FindIndex, Shard
from wids.storage.arrays import IntArray
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.store import Cache
from wids.storage.shared_numbers import SharedArray
from wids.storage.transport import urls
from wids.storage.transport.stream import PastEndError

if TYPE_CHECKING:
    from wids.shards.remote_shard import RangeBudget, RemoteShard

AnyShard = TypeVar("AnyShard", Shard, "RemoteShard")


class BrokenShards:
    """The broken shards of a dataset. None is noted before `begin` is called.

    Forked and spawned processes share them; another pickle is a copy. A server that is away breaks
    no shard: its errors are only raised.

    Args:
        shards: The shards of the dataset.
    """

    def __init__(self, shards: Sequence[ShardSpec]) -> None:
        self._shards = shards
        self._flags: SharedArray | None = None
        self._line: Line | None = None
        self._errors: dict[int, tuple[type[WidsError], str]] = {}

    @property
    def are_noted(self) -> bool:
        """Whether shards are noted: some reader passes over broken ones."""
        return self._flags is not None

    def begin(self) -> None:
        """Note broken shards from now on; call it before processes are started."""
        if self._flags is None:
            self._flags = SharedArray("B", max(1, len(self._shards)))
            self._line = user_line()

    @property
    def numbers(self) -> IntArray:
        """The numbers of the shards that were noted."""
        flags = b"" if self._flags is None else self._flags.values
        numbers: IntArray = np.flatnonzero(np.frombuffer(flags, np.uint8))
        return numbers

    def share(self, edges: IntArray) -> float:
        """Return the share of samples in broken shards; those not counted are as long as others.

        Args:
            edges: Where shards begin, and the end of the last one.
        """
        counts, numbers = np.diff(edges).astype(float), self.numbers
        uncounted = numbers[counts[numbers] == 0]
        if len(uncounted):
            counts[uncounted] = counts.sum() / max(1, len(counts) - len(uncounted))
        return float(counts[numbers].sum() / max(1.0, counts.sum()))

    def first_error(self) -> WidsError:
        """Return the error of the first broken shard."""
        return self.error(int(self.numbers[0]))

    @contextmanager
    def watch(self, number: int) -> Iterator[None]:
        """Note the shard if the block raises an error that concerns all of it.

        Raises:
            WidsError: The error that was noted for this shard before.
        """
        if self._flags is None:
            yield
            return
        if self._flags.values[number]:
            raise self.error(number)
        try:
            yield
        except (NotFoundError, PastEndError, ShardFormatError, MismatchError) as error:
            self._note(self._flags.values, number, error)
            raise

    def error(self, number: int) -> WidsError:
        """Return the error of a shard that was noted."""
        elsewhere = (
            f"{urls.redact(self._shards[number].url)}: expected a shard that can be read; another "
            "process found that it cannot, and warned why"
        )
        kind, message = self._errors.get(number, (ShardFormatError, elsewhere))
        error = kind(message)
        error.is_of_shard = True
        return error

    def _note(self, flags: Any, number: int, error: WidsError) -> None:
        error.is_of_shard = True
        # Not the error itself, whose traceback keeps the frames of the reader.
        self._errors[number] = type(error), str(error)
        if flags[number]:
            return
        flags[number] = 1
        warn(
            f"{error}; on_error passes over this shard, and dataset.num_failed_shards counts such "
            "shards",
            self._line,
        )


@dataclass(frozen=True)
class ShardFacts:
    """The shards of a dataset, and how they are opened.

    Attributes:
        shards: What the spec states of each.
        counts: Number of samples in each shard, None where it is not known yet.
        dataset_indexes: Dataset indexes that may have their indexes.
        store: Copies of remote files.
        options: How to open shards.
        broken: The shards that cannot be opened, or are not what the spec says.
        budget: How many bytes of each shard are read by range; None if the options alone decide.
        refetched: Shards whose damaged copies were fetched again.
    """

    shards: Sequence[ShardSpec]
    counts: list[int | None] | Numbers
    dataset_indexes: DatasetIndexes
    store: Cache
    options: ReadOptions
    broken: BrokenShards
    budget: RangeBudget | None = None
    refetched: set[int] = field(default_factory=set)

    def key_split(self, number: int) -> KeySplit:
        """Return the rule for a shard: the caller's, or the spec's, or else the first dot."""
        return self.options.key_split or self.shards[number].key_split or "first"

    def takes(self, number: int, shard_nbytes: int, nbytes: int) -> bool:
        """Whether to read bytes of a shard by range; see `RangeBudget.takes`."""
        budget = self.budget
        return budget is None or budget.takes(number, shard_nbytes, nbytes)

    def open_file(self, path: str, find_index: FindIndex, file: FileIO | None = None) -> Shard:
        """Open a tar on this machine, as the options say."""
        options = self.options
        return Shard(
            path, fields=options.fields, raw=options.raw, find_index=find_index, handle=file
        )

    def checked(self, number: int, shard: AnyShard) -> AnyShard:
        """Return a shard that was just opened; close it if it has another number of samples.

        Raises:
            MismatchError: The number of samples is not the known one.
        """
        expected = self.counts[number]
        if expected is not None and len(shard) != expected:
            with shard:  # close it now: a stored error should not keep a file open
                message = _count_message(
                    self.shards[number], shard, expected, self.key_split(number)
                )
            raise MismatchError(message)
        return shard


def remote_file(shard_spec: ShardSpec) -> RemoteFile:
    """Return what the cache has to know about a remote shard."""
    return RemoteFile(shard_spec.url, shard_spec.nbytes, shard_spec.md5sum, shard_spec.sha256)


def _count_message(
    shard_spec: ShardSpec, shard: Shard | RemoteShard, expected: int, key_split: KeySplit
) -> str:
    """Return the message for a shard with another number of samples, with the likely cause."""
    url = urls.redact(shard_spec.url)
    stated = shard_spec.num_samples
    if stated is None:
        return (
            f"{url}: expected {expected} samples as when the dataset was opened, found "
            f"{len(shard)}; it was written again since: open the dataset again"
        )
    # The two most common mistakes: the other rule, and counting files.
    other: KeySplit = "last" if key_split == "first" else "first"
    source = shard_spec.extras.get(COUNTS_FROM)
    message = f"{url}: {source or 'the spec'} says {stated} samples, the shard has {len(shard)}"
    if isinstance(shard, Shard):
        with Shard(shard.path, key_split=other) as split_otherwise:
            if len(split_otherwise) == stated:
                return (
                    f"{message}, but {stated} when names are split at their {other} dot; pass "
                    f'key_split="{other}"'
                )
    if source is not None:
        members = stated == shard.index.num_files
        return (
            f"{message}{', and as many members' if members else ''}; correct or remove that file, "
            "or describe the shards with `wids create` and open that spec"
        )
    if stated == shard.index.num_files:
        return (
            f"{message}, and {stated} is its number of members: the spec counts files; pass "
            "spec.without_counts() to count samples when the dataset is opened, or make a correct "
            "spec with `wids create`"
        )
    return (
        f"{message}; if the spec is wrong, pass spec.without_counts(), or make a correct spec with "
        "`wids create`; otherwise fetch or write the shard again"
    )
