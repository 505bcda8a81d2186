"""Read the samples of one shard of a joined dataset, with the fields of the other side.

A `JoinedShard` is a `wids.shards.tars.readable_shard.ReadableShard`, so that samples are
read as from any other shard. It holds nothing open: the readers of both sides do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wids.errors import JoinError
from wids.shards.reader import ShardReader
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import Labels, RawSample, label, missing_field_error
from wids.shards.tars.readable_shard import ReadableShard
from wids.storage.array_types import IntArray
from wids.storage.transport import urls
from wids.tables.column_values import DecodeMany
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
        """The index of the joined samples.

        Raises:
            JoinError: A shard of the other side would have to be fetched to know its fields.
        """
        index = self._reader.index(self._number)
        if index is None:
            raise JoinError(f"{self.name}: a shard that is joined to it has no index")
        return index

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

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return bytes of one field, from a start to a stop; fewer where the field ends.

        Raises:
            KeyError: The sample does not have the field.
        """
        index, place = self._own.index(self._number), self._start + local_index
        if index is None:
            raise missing_field_error(self.name, f"number {local_index}", field)
        if field in index.members(local_index):
            shard = self._own.open(self._number, local=self._local)
            return shard.read_part(local_index, field, start, stop)
        key, entry = index.key(local_index), self._joint.entries.one(place)
        found = None if entry < 0 else self._joint.other.read_part(entry, field, start, stop)
        if found is None:
            raise missing_field_error(self.name, key, field)
        self._joint.check_keys([place], [key], [found[0]])
        return found[1]

    def read_values(self, members: IntArray, decode: DecodeMany) -> list[Any]:
        """Return the values of members of the joined index that are of one field, and ascend.

        Raises:
            JoinError: Both sides have the field.
            MismatchError: A shard was written again since the datasets were joined.
        """
        joint, index, local = self._joint, self.index, self._local
        field = index.fields[index.field_ids[members[0]]]
        samples = np.searchsorted(index.member_starts, members, side="right") - 1
        positions, keys = samples + self._start, list(map(index.key, samples.tolist()))
        having, _ = index.members_of(field)
        on_both = np.isin(samples, having[1:][having[1:] == having[:-1]])
        if on_both.any():
            at = int(on_both.argmax())
            raise joint.collision(positions[at], keys[at], [field])
        own_index = self._own.index(self._number)
        is_own = np.isin(samples, own_index.members_of(field)[0] if own_index else ())
        entries = joint.entries.at(positions[~is_own])
        own = zip(*joint.own.column(positions[is_own], field, decode, local=local), strict=True)
        other = zip(*joint.other.column(entries, field, decode, local=local), strict=True)
        found = [next(own) if each else next(other) for each in is_own.tolist()]
        joint.check_keys(positions, keys, [key for key, _ in found])
        return [value for _, value in found]

    def read_members(
        self,
        members: IntArray,
        *,
        verify: bool = False,  # noqa: ARG002 - parts of fields are not compared
    ) -> list[bytes]:
        """Return the bytes of members of the joined index, one by one."""
        index = self.index
        samples = np.searchsorted(index.member_starts, members, side="right") - 1
        return [
            self.read_part(sample, index.fields[field], 0, size)
            for sample, field, size in zip(
                samples.tolist(),
                index.field_ids[members].tolist(),
                index.sizes[members].tolist(),
                strict=True,
            )
        ]

    def check(self) -> None:
        """Do nothing: what is open is checked when it is read."""
