"""Read the samples of one shard of a joined dataset, with the fields of the other side.

A `JoinedShard` is a `wids.shards.tars.readable_shard.ReadableShard`, so that samples are
read as from any other shard. It holds nothing open: the readers of both sides do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wids.errors import ShardFormatError, WidsError
from wids.shards.reader import ShardReader
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import Labels, RawSample, label
from wids.shards.tars.readable_shard import ReadableShard, read_or_errors
from wids.storage.array_types import IntArray
from wids.storage.transport import urls
from wids.tables.column_values import DecodeMany
from wids.tables.join_values import as_bytes, plain_values
from wids.tables.joint import Joint


class JoinedShard(ReadableShard):
    """One shard of a joined dataset; see `wids.shards.tars.readable_shard.ReadableShard`.

    Safe to use from any number of threads.

    Args:
        reader: The reader that it belongs to, which has its index.
        joint: What is joined.
        number: The number of the shard.
        local: As for `ShardPool.get`.
        batch: The samples that will be read, if they were read together with those of others.
    """

    def __init__(
        self,
        reader: ShardReader,
        joint: Joint,
        number: int,
        local: bool,
        batch: list[RawSample] | None = None,
    ) -> None:
        self._reader = reader
        self._joint = joint
        self._own = joint.own.reader
        self._number = number
        self._start = reader.starts[number]
        self._local = local
        self._batch = batch

    # Found when they are asked for: such a shard is made for each batch.

    @property
    def name(self) -> str:  # type: ignore[override]
        """The shard, for messages."""
        return urls.redact(self._reader.shards[self._number].url)

    def __repr__(self) -> str:
        return f"<JoinedShard: {self.name}, and what is joined to its samples>"

    @property
    def index(self) -> ShardIndex:  # type: ignore[override]
        """The index of the samples as the first side stores them."""
        return self._own.key_index(self._number)

    def read(
        self,
        local_index: int,
        verify: bool = False,  # noqa: ARG002 - each side has a setting of its own
        labels: Labels | None = None,
    ) -> RawSample:
        """Return one sample; see `Joint.read`."""
        sample = self._joint.read_one(self._start + local_index, local=self._local)
        if labels is not None:
            label(sample, local_index, labels)
        return sample

    def read_many(
        self,
        local_indices: Sequence[int],
        *,
        verify: bool = False,  # noqa: ARG002 - each side has a setting of its own
        labels: Labels | None = None,
    ) -> list[RawSample]:
        """Return samples in the order of ``local_indices``; see `Joint.read`."""
        samples = self._batch
        if samples is None:
            samples = self._joint.read(np.array(local_indices, np.int64) + self._start)
        if labels is not None:
            for local_index, sample in zip(local_indices, samples, strict=True):
                label(sample, local_index, labels)
        return samples

    def of_samples(
        self,
        local_indices: Sequence[int] | IntArray,
        on_damage: Callable[[WidsError], object] | None = None,
    ) -> ReadableShard:
        """Return samples of both sides as they are stored; see `ReadableShard.of_samples`."""
        joint, places = self._joint.undecoded(), np.asarray(local_indices, np.int64)
        if on_damage is None:
            return SampleShard(self, places, joint.read(places + self._start))
        found = read_or_errors(joint.read, places + self._start, ShardFormatError)
        for each in found:
            if isinstance(each, WidsError):
                on_damage(each)
        return SampleShard(self, places, [{} if isinstance(e, WidsError) else e for e in found])

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return bytes of a field of the first side."""
        shard = self._own.open(self._number, local=self._local)
        return shard.read_part(local_index, field, start, stop)

    def check(self) -> None:
        """Do nothing: what is open is checked when it is read."""


class SampleShard(ReadableShard):
    """Some samples of a shard that were read, whose index has their fields.

    Args:
        shard: The shard.
        local_indices: The samples in it, ascending. The index has the keys of the others too.
        samples: Their fields.
    """

    def __init__(
        self, shard: ReadableShard, local_indices: IntArray, samples: Iterable[Mapping[str, Any]]
    ) -> None:
        self.name = shard.name
        members = [
            (local_index, field, value)
            for local_index, sample in zip(local_indices.tolist(), samples, strict=True)
            for field, value in sample.items()
            if not field.startswith("__")
        ]
        names = tuple(dict.fromkeys(field for _, field, _ in members))
        numbers = {name: number for number, name in enumerate(names)}
        self._values = [value for _, _, value in members]
        nothing = np.zeros(len(members), np.uint8)
        self.index = replace(
            shard.index,
            member_starts=np.searchsorted(
                np.array([each for each, _, _ in members], np.int64), range(len(shard.index) + 1)
            ),
            sizes=np.array([len(as_bytes(value)) for value in self._values], np.int64),
            field_ids=np.array([numbers[field] for _, field, _ in members], np.int64),
            blocks=nothing,
            head_blocks=nothing,
            head_crcs=nothing[:0],
            payload_crcs=nothing[:0],
            fields=names,
        )

    def read_members(self, members: IntArray, *, verify: bool = False) -> list[bytes]:  # noqa: ARG002 - done
        """Return values as bytes."""
        return [as_bytes(self._values[member]) for member in members.tolist()]

    def read_values(self, members: IntArray, decode: DecodeMany) -> list[Any]:
        """Return values as items of a column."""
        return plain_values([self._values[member] for member in members.tolist()], decode)
