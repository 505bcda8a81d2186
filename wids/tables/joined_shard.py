"""Read the samples of one shard of a joined dataset, with the fields of the other side.

A `JoinedShard` is a `wids.shards.tars.readable_shard.ReadableShard`, so that samples are
read as from any other shard. It holds nothing open: the readers of both sides do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from wids.errors import JoinError, MismatchError, SampleError
from wids.shards.reader import OpenByNumber, ShardReader
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import Labels, RawSample, label, missing_field_error, position
from wids.storage.array_types import IntArray
from wids.storage.transport import urls
from wids.tables.column_values import DecodeMany
from wids.tables.join_parts import Part
from wids.tables.join_sides import Fields, Side


class JoinedShard:
    """One shard of a joined dataset; see `wids.shards.tars.readable_shard.ReadableShard`.

    Safe to use from any number of threads.

    Args:
        reader: The reader that it belongs to, which has its index.
        side: The dataset.
        open_own: Opens the shards of the dataset.
        part: What is joined to it.
        number: The number of the shard.
        local: As for `ShardPool.get`.
        fills: Whether a sample that is missing on the other side has its fields as None.
        batch: The fields of the samples that will be read, if they were already read together
            with those of other shards.
    """

    is_spent: ClassVar[bool] = False

    def __init__(
        self,
        reader: ShardReader,
        side: Side,
        open_own: OpenByNumber,
        part: Part,
        number: int,
        *,
        local: bool,
        fills: bool,
        batch: list[Fields | None] | None = None,
    ) -> None:
        self._reader = reader
        self._side = side
        self._open_own = open_own
        self._part = part
        self._number = number
        self._local = local
        self._fills = fills
        self._batch = batch

    @property
    def name(self) -> str:
        """The shard, for messages."""
        return urls.redact(self._reader.shards[self._number].url)

    def __repr__(self) -> str:
        return f"<JoinedShard: {self.name}, and what is joined to its samples>"

    @property
    def index(self) -> ShardIndex:
        """The index of the joined samples.

        Raises:
            JoinError: A shard of the other side would have to be fetched to know its fields.
        """
        index = self._reader.index(self._number)
        if index is None:
            raise JoinError(f"{self.name}: a shard that is joined to it has no index")
        return index

    @property
    def nbytes(self) -> int:
        """Length of the dataset's own shard in bytes."""
        return self._side.reader.open(self._number, local=self._local).nbytes

    @property
    def is_local(self) -> bool:
        """Whether all that its samples need is on this machine."""
        return self._reader.is_local(self._number)

    def __len__(self) -> int:
        edges = self._reader.edges
        return int(edges[self._number + 1] - edges[self._number])

    def __getitem__(self, local_index: int) -> RawSample:
        return self.read(position(local_index, len(self), self.name))

    def __iter__(self) -> Iterator[RawSample]:
        return map(self.read, range(len(self)))

    def read(
        self, local_index: int, verify: bool = False, labels: Labels | None = None
    ) -> RawSample:
        """Return one sample; each side compares checksums as its own settings say."""
        if self._batch is not None:
            return self.read_many([local_index], verify=verify, labels=labels)[0]
        number, local = self._number, self._local
        key, sample = self._side.read_one(self._open_own, number, local_index, local=local)
        place = self._reader.starts[number] + local_index
        found = self._part.read_one(number, place, key, local=local)
        return self._joined([local_index], [key], [sample], [found], labels)[0]

    def read_many(
        self,
        local_indices: Sequence[int],
        *,
        verify: bool = False,  # noqa: ARG002 - each side has a setting of its own
        labels: Labels | None = None,
    ) -> list[RawSample]:
        """Return samples in the order of ``local_indices``.

        Raises:
            JoinError: Both sides have a field of one name, or a sample is not a dict.
            SampleError: The other side does not have a key.
            MismatchError: A shard was written again since the datasets were joined.
        """
        number, side = self._number, self._side
        keys, samples = side.read(self._open_own, number, local_indices, local=self._local)
        found = self._batch
        if found is None:
            start = self._reader.starts[number]
            positions = [start + local_index for local_index in local_indices]
            found = self._part.read(number, positions, keys, local=self._local)
        return self._joined(local_indices, keys, samples, found, labels)

    def _joined(
        self,
        local_indices: Sequence[int],
        keys: list[str],
        samples: list[Any],
        found: list[Fields | None],
        labels: Labels | None,
    ) -> list[RawSample]:
        """Return samples with the fields that were found for them, and with labels."""
        side, others = self._side, self._others(found, keys)
        # In a few steps for all samples together: a batch should cost little more than the two
        # batches that it is made of.
        stored = [fields.pop("__key__", key) for fields, key in zip(others, keys, strict=True)]
        if stored != keys:  # never a row beside the wrong sample, whatever was stored or replaced
            raise _mismatch_error(self.name, keys, stored)
        if not side.is_plain:
            side.check(samples)
        num_fields = sum(map(len, samples)) + sum(map(len, others))
        if side.is_plain:
            for sample, fields in zip(samples, others, strict=True):
                sample.update(fields)
            joined = samples
        else:  # a transformation may keep what it returns, and return it again
            joined = [{**s, **fields} for s, fields in zip(samples, others, strict=True)]
        if sum(map(len, joined)) != num_fields:
            raise self._collision(local_indices, others)
        if labels is not None:
            for local_index, sample in zip(local_indices, joined, strict=True):
                label(sample, local_index, labels)
        return joined

    def _others(self, found: list[Fields | None], keys: list[str]) -> list[Fields]:
        """Return the fields of the other side, also for samples that are missing there."""
        if all(found):
            return cast("list[Fields]", found)
        return [
            self._missing(key) if fields is None else fields
            for fields, key in zip(found, keys, strict=True)
        ]

    def _missing(self, key: str) -> Fields:
        """Return the fields of a sample that is missing on the other side."""
        if self._fills:
            return dict.fromkeys(self._part.fields(self._number))
        raise _missing_error(self.name, key, self._reader.shards[self._number].url)

    def _collision(self, local_indices: Sequence[int], others: list[Fields]) -> JoinError:
        """Return the error for fields that both sides have, of the first such sample."""
        # Read again, since the samples have the other fields by now.
        side = self._side
        keys, samples = side.read(side.reader.open, self._number, local_indices, local=self._local)
        common = (
            sorted(map(str, s.keys() & o.keys())) for s, o in zip(samples, others, strict=True)
        )
        return _collision_error(
            self.name, *next(pair for pair in zip(keys, common, strict=True) if pair[1])
        )

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return bytes of one field, from a start to a stop; fewer where the field ends.

        Raises:
            KeyError: The sample does not have the field.
        """
        index = self._side.reader.index(self._number)
        if index is None:
            raise missing_field_error(self.name, f"number {local_index}", field)
        if index.member(local_index, field) is not None:
            shard = self._side.reader.open(self._number, local=self._local)
            return shard.read_part(local_index, field, start, stop)
        place = int(self._reader.starts[self._number]) + local_index
        key = index.key(local_index)
        stored, read = self._part.read_part(self._number, place, key, field)
        if [stored] != [key]:
            raise _mismatch_error(self.name, [key], [stored])
        return read(start, stop)

    def read_values(self, members: IntArray, decode: DecodeMany) -> list[Any]:
        """Return the values of members of the joined index that are of one field, and ascend.

        Raises:
            JoinError: Both sides have the field.
            MismatchError: A shard was written again since the datasets were joined.
        """
        index, number, local = self.index, self._number, self._local
        field, samples = _field_of(index, members)
        keys = list(map(index.key, samples.tolist()))
        if (both := _first_on_both(index, field, samples)) is not None:
            raise _collision_error(self.name, keys[both], [field])
        stored, places, own = self._side.values(number, samples, field, decode, local=local)
        if stored != keys:
            raise _mismatch_error(self.name, keys, stored)
        others = np.setdiff1d(np.arange(len(members)), places)
        positions = (samples[others] + self._reader.starts[number]).tolist()
        wanted = [keys[place] for place in others]
        stored, found = self._part.values(number, positions, wanted, field, decode, local=local)
        if stored != wanted:
            raise _mismatch_error(self.name, wanted, stored)
        # In the order of the members.
        values, order = [*own, *found], np.argsort(np.concatenate([places, others]))
        return [values[at] for at in order.tolist()]

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

    def find(self, key: str) -> int:
        """Return the local index of a key, or -1."""
        return self._side.reader.key_index(self._number).find(key)

    def check(self) -> None:
        """Do nothing: what is open is checked when it is read."""

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def __enter__(self) -> JoinedShard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mismatch_error(name: str, keys: list[str], stored: list[str]) -> MismatchError:
    """Return the error for a sample that would have the fields of another."""
    expected, key = next(pair for pair in zip(keys, stored, strict=True) if pair[0] != pair[1])
    return MismatchError(
        f"{name}: expected the key {expected!r} on both sides, as when the datasets were joined, "
        f"found {key!r} on the other side; a shard of one of them was written again since: open "
        "both datasets and join them again"
    )


def _missing_error(name: str, key: str, shard: str) -> SampleError:
    return SampleError(
        f'{name}: sample "{key}": expected its key on the other side of the join, found none; pass '
        'missing="skip" or missing="none" to join',
        shard=shard,
        key=key,
    )


def _collision_error(name: str, key: str, names: list[str]) -> JoinError:
    return JoinError(
        f'{name}: sample "{key}": expected fields with other names on both sides, found '
        f"{', '.join(names[:8])} on both; pass a prefix to join, as in "
        'join(other, prefix="b"), or fields= when the datasets are opened'
    )


def _field_of(index: ShardIndex, members: IntArray) -> tuple[str, IntArray]:
    """Return the field that members are, and their samples."""
    field = index.fields[index.field_ids[members[0]]]
    return field, np.searchsorted(index.member_starts, members, side="right") - 1


def _first_on_both(index: ShardIndex, field: str, samples: IntArray) -> int | None:
    """Return the place of the first sample that has the field on both sides; None if none has."""
    having, _ = index.members_of(field)
    is_on_both = np.isin(samples, having[1:][having[1:] == having[:-1]])
    return int(is_on_both.argmax()) if is_on_both.any() else None
