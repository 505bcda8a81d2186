"""Fetch, count and release the shards of a dataset together with what is joined to its samples.

Samples are read by the joint itself (`wids.tables.joined`). A joint may be of joints.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from wids.shards.reader import ShardReader
from wids.storage.arrays import FloatArray, IntArray
from wids.storage.download import Report


class JoinedReader(ShardReader):
    """The shards of a dataset with what is joined to their samples.

    Its numbers, positions, keys and open shards are those of the dataset.

    Args:
        joint: What is joined, a `wids.tables.joined.Joint`.
    """

    def __init__(self, joint: Any) -> None:
        vars(self).update(vars(joint.own.reader), joint=joint)
        vars(self).pop("all_stored_nbytes", None)  # of the dataset alone

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedReader, (self.joint,)

    @property
    def _own(self) -> ShardReader:
        own: ShardReader = self.joint.own.reader
        return own

    @property
    def _sides(self) -> list[ShardReader]:
        """The readers of the dataset, and of the other side if it is one."""
        return [side.reader for side in self.joint.datasets]

    def only(self, fields: Collection[str] | None) -> ShardReader:
        """Return a reader that fetches no shards of both sides; see `ShardReader.only`."""
        return self.joint.only(fields).reader()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Release the open shards of both sides."""
        for side in self._sides:
            side.close()

    def announce_shards(self, numbers: Sequence[int]) -> None:
        """Note that a pass will read shards, and what is joined to them."""
        self._own.announce_shards(numbers)
        self.joint.announce(numbers)

    def let_ahead(self, part: float) -> None:
        """Let batches read both sides by range while they are being fetched."""
        for side in self._sides:
            side.let_ahead(part)

    def is_local(self, number: int) -> bool:
        """Whether a shard, and what is joined to its samples, can be read without fetching."""
        needed = self.joint.needed(number)
        return self._own.is_local(number) and all(map(self.joint.other.is_local, needed))

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard, and of what has to be fetched with it; None if unknown."""
        needed = self.joint.needed(number)
        sizes = [self._own.nbytes(number), *map(self.joint.other.nbytes, needed)]
        return None if None in sizes else sum(sizes)

    def fetch(self, number: int, report: Report = lambda *_: None) -> None:
        """Fetch a shard and what is joined to it; see `ShardReader.fetch`."""
        self._own.fetch(number, report)
        for other in self.joint.needed(number):
            self.joint.other.fetch(other, report)

    def field_names(self, stored: Sequence[str]) -> Sequence[str]:
        """Return the fields of samples from shards that store these fields, with joined ones."""
        own = self._own.field_names(stored)
        return list(dict.fromkeys([*own, *self.joint.other.fields(None)]))

    def content(self, number: int) -> tuple[Any, ...]:
        """Return facts that change when the samples of a shard change, or what is joined to them.

        See `ShardReader.content`.
        """
        entries = self.joint.entries_of(number)
        return self._own.content(number), self.joint.other.content(entries)

    def pass_over_broken(self) -> None:
        """Note broken shards of both sides from now on."""
        for side in self._sides:
            side.pass_over_broken()

    @property
    def num_broken(self) -> int:
        """Number of shards of both sides that were noted as broken."""
        return sum(side.num_broken for side in self._sides)

    @property
    def cache_nbytes(self) -> int | None:
        """Most bytes in the cache that both sides use; see `ShardReader.cache_nbytes`."""
        limits = [s.cache_nbytes for s in self._sides if s.cache_folder == self.cache_folder]
        return min((limit for limit in limits if limit is not None), default=None)

    @cached_property
    def all_stored_nbytes(self) -> FloatArray:
        """What `stored_nbytes` returns for all shards."""
        return self.stored_nbytes(np.arange(len(self.shards)), set())

    def stored_nbytes(self, numbers: IntArray, counted: set[str]) -> FloatArray:
        """Return the bytes that the cache needs for both sides; see `ShardReader.stored_nbytes`."""
        return self.joint.stored_nbytes(numbers, counted)  # type: ignore[no-any-return]
