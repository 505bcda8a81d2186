"""Read joined samples: each sample of a dataset with the entry of another side that has its key.

Both sides read samples as they do alone; a `Joint` puts them together. The reader is that of the
first dataset, with its positions and keys: it asks the joint which shards of the other side the
samples of a shard need, and fetches and counts these too. Where indexes must have all fields,
samples are read first, into a `SampleShard`. Each read copies the values of a frame, a mapping or a
file that a transformation could change in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wids.errors import JoinError, MismatchError, SampleError, ShardFormatError, WidsError
from wids.shards.joined_reader import JoinedReader
from wids.shards.policy import Wanted
from wids.shards.reader import ShardReader
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import RawSample, ReadableShard, label, read_or_errors
from wids.storage.arrays import FloatArray, IntArray
from wids.storage.transport import urls
from wids.tables.join_fields import Fields, as_bytes
from wids.tables.join_keys import PositionMap
from wids.tables.join_sides import KeyedSamples, OtherSide, shards_of


@dataclass(frozen=True, eq=False)
class Joint:
    """What is joined: the samples of a dataset with entries of another side.

    Attributes:
        own: The dataset.
        other: The other side.
        entries: The entry of each sample; None if it is the position of the sample.
        fills: Whether a sample that is missing on the other side has its fields as None.
    """

    own: KeyedSamples
    other: OtherSide
    entries: PositionMap | None
    fills: bool
    _needed: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process finds the shards that it needs.
        return Joint, (self.own, self.other, self.entries, self.fills)

    def read(self, positions: IntArray, wanted: Wanted = Wanted.SAMPLES) -> list[RawSample]:
        """Return joined samples of any shards, read together, with the labels of the dataset.

        Args:
            positions: The samples.
            wanted: What is wanted of the shard of a single sample.

        Raises:
            JoinError: Both sides have a field of one name, or a sample is not a dict.
            SampleError: The other side does not have a key.
            MismatchError: A shard was written again since the datasets were joined.
        """
        keys, samples = self.own.read(positions, wanted)
        places = positions.tolist()
        # For a single one in a hundredth of the time that arrays need.
        entries = places
        if self.entries is not None:
            is_one = len(places) == 1
            entries = [self.entries.one(*places)] if is_one else self.entries.at(positions).tolist()
        present = [entry for entry in entries if entry >= 0]
        found = iter(self.other.read(np.array(present), wanted) if present else ())
        others = [next(found) if entry >= 0 else None for entry in entries]
        return self._joined(places, keys, samples, others)

    def _joined(
        self,
        positions: list[int],
        keys: list[str],
        samples: list[Any],
        found: list[Fields | None],
    ) -> list[RawSample]:
        # In a few steps for all samples together: a batch should cost little more than the two
        # batches that it is made of.
        others = [
            self._missing(place, positions, keys) if fields is None else fields
            for place, fields in enumerate(found)
        ]
        self._check_keys(positions, keys, [fields.pop("__key__", None) for fields in others])
        if not self.own.is_plain:
            self.own.check(samples)
        # New dicts, since a transformation may keep what it returns, and return it again.
        joined = [{**sample, **fields} for sample, fields in zip(samples, others, strict=True)]
        if sum(map(len, joined)) != sum(map(len, samples)) + sum(map(len, others)):
            for position, key, sample, fields in zip(positions, keys, samples, others, strict=True):
                if common := sample.keys() & fields:
                    raise self._collision(position, key, sorted(map(str, common)))
        if not self.own.is_plain:  # otherwise they have labels
            reader, name = self.own.reader, self.own.access.dataset_name
            for position, sample in zip(positions, joined, strict=True):
                number, local_index = reader.locate(position)
                label(sample, local_index, reader.labels(number, name))
        return joined

    def _missing(self, place: int, positions: list[int], keys: Sequence[str]) -> Fields:
        """Return the fields of a sample that is missing on the other side."""
        number, _ = self.own.reader.locate(positions[place])
        if self.fills:
            return self.other.missing(number)
        raise SampleError(
            f'{self._name(positions[place])}: sample "{keys[place]}": expected its key on the '
            'other side of the join, found none; pass missing="skip" or missing="none" to join',
            shard=self.own.reader.shards[number].url,
            key=keys[place],
        )

    def _check_keys(
        self, positions: list[int], keys: Sequence[str], stored: Sequence[str | None]
    ) -> None:
        """Raise unless entries came with the keys of their samples; None for no entry.

        No sample has the fields of another, whatever was stored or replaced.

        Raises:
            MismatchError: A key differs.
        """
        if stored == keys:
            return
        for position, expected, found in zip(positions, keys, stored, strict=True):
            if found is not None and found != expected:
                raise MismatchError(
                    f"{self._name(position)}: expected the key {expected!r} on both sides, as when "
                    f"the datasets were joined, found {found!r} on the other side; a shard of one "
                    "of them was written again since: open both datasets and join them again"
                )

    def _collision(self, position: int, key: str, names: list[str]) -> JoinError:
        """Return the error for a sample with fields that both sides have."""
        return JoinError(
            f'{self._name(position)}: sample "{key}": expected fields with other names on both '
            f"sides, found {', '.join(names[:8])} on both; pass a prefix to join, as in "
            'join(other, prefix="b"), or fields= when the datasets are opened'
        )

    def _name(self, position: int) -> str:
        """Return the shard of a sample, for messages."""
        reader = self.own.reader
        return urls.redact(reader.shards[reader.locate(position)[0]].url)

    def entries_of(self, number: int) -> IntArray:
        """Return the entries of the samples of one shard, -1 where there is none."""
        edges = self.own.reader.edges
        positions = np.arange(edges[number], edges[number + 1])
        return positions if self.entries is None else self.entries.at(positions)

    @property
    def datasets(self) -> list[KeyedSamples]:
        """The datasets on both sides."""
        return [self.own] if self.other.dataset is None else [self.own, self.other.dataset]

    def only(self, fields: Collection[str] | None) -> Joint:
        """Return the joint of both sides that fetch no shards; see `ShardReader.only`."""
        return replace(self, own=self.own.only(fields), other=self.other.only(fields))

    def undecoded(self) -> Joint:
        """Return the joint of samples as they are stored."""
        return replace(self, own=self.own.undecoded(), other=self.other.undecoded())

    def reader(self) -> ShardReader:
        """Return the shards of the dataset, which are fetched with what is joined to them."""
        return JoinedReader(self)

    def needed(self, number: int) -> list[int]:
        """Return the shards of the other side that the samples of a shard need."""
        if number not in self._needed:
            self._needed[number] = self._found_needed(number).tolist()
        return self._needed[number]

    def _found_needed(self, number: int) -> IntArray:
        """Return what `needed` does, without storing it."""
        return shards_of(self.entries_of(number), self.other.edges)

    def announce(self, numbers: Sequence[int]) -> None:
        """Note that a pass will read what is joined to shards."""
        if self.other.dataset is None:
            return
        needed: Sequence[int] = range(len(self.other.edges) - 1)
        if 2 * len(numbers) < len(self.own.reader.shards):  # otherwise nearly all
            needed = sorted({other for number in numbers for other in self.needed(number)})
        self.other.dataset.reader.announce_shards(needed)

    def stored_nbytes(self, numbers: IntArray, counted: set[str]) -> FloatArray:
        """Return the bytes that the cache stores for both sides; see `ShardReader.stored_nbytes`.

        Bytes of the other side that several shards need are divided among them.
        """
        reader, dataset = self.own.reader, self.other.dataset
        own = reader.stored_nbytes(numbers, counted)
        if dataset is None or dataset.reader.cache_folder != reader.cache_folder:
            return own
        other = dataset.reader
        shares = np.zeros(len(other.shards))
        if not other.stored_nbytes(np.arange(len(shares)), set(counted)).any():
            return own  # nothing is looked up
        # Twice, since the pairs of shards, in random order nearly all, may not fit into memory.
        users = np.zeros(len(shares), np.int64)
        for number in numbers.tolist():
            users[self._found_needed(number)] += 1
        needed = np.flatnonzero(users)
        shares[needed] = other.stored_nbytes(needed, counted) / users[needed]
        sums = [shares[self._found_needed(number)].sum() for number in numbers.tolist()]
        found: FloatArray = own + sums
        return found

    def of_samples(
        self,
        number: int,
        local_indices: Sequence[int] | IntArray,
        on_damage: Callable[[WidsError], object] | None = None,
    ) -> SampleShard:
        """Return some samples of a shard, undecoded, as a shard whose index has all their fields.

        Args:
            number: The number of the shard.
            local_indices: The samples, ascending.
            on_damage: Takes the error of a damaged sample, which then has no fields; None to raise
                it.
        """
        joint, reader = self.undecoded(), self.own.reader
        places = np.asarray(local_indices, np.int64)
        positions = places + reader.starts[number]
        if on_damage is None:
            found: list[Any] = joint.read(positions)
        else:
            found = read_or_errors(joint.read, positions, ShardFormatError)
            for each in found:
                if isinstance(each, WidsError):
                    on_damage(each)
        samples = [{} if isinstance(each, WidsError) else each for each in found]
        name = urls.redact(reader.shards[number].url)
        return SampleShard(name, reader.key_index(number), places, samples)

    @property
    def transformations(self) -> Sequence[Any]:
        """The transformations of both sides, which run before the join."""
        return [step for each in self.datasets for step in each.transformations]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations of both sides."""
        for each in self.datasets:
            each.dataset.set_epoch(epoch)


class SampleShard(ReadableShard):
    """Some samples of a shard that were read, whose index has their fields.

    Args:
        name: The shard in messages.
        index: Its index; that of the samples has the keys of the others too.
        local_indices: The samples, ascending.
        samples: Their fields.
    """

    def __init__(
        self,
        name: str,
        index: ShardIndex,
        local_indices: IntArray,
        samples: Iterable[Mapping[str, Any]],
    ) -> None:
        self.name = name
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
            index,
            member_starts=np.searchsorted(
                np.array([each for each, _, _ in members], np.int64), range(len(index) + 1)
            ),
            sizes=np.array([len(as_bytes(value)) for value in self._values], np.int64),
            field_ids=np.array([numbers[field] for _, field, _ in members], np.int64),
            blocks=nothing,
            head_blocks=nothing,
            head_crcs=nothing[:0],
            payload_crcs=nothing[:0],
            fields=names,
        )

    def read_values(self, members: IntArray) -> list[Any]:
        """Return values as they are."""
        return [self._values[member] for member in members.tolist()]
