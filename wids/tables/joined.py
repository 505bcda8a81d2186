"""Read joined samples: each sample of a dataset with the entry of another side that has its key.

Both sides read samples as they do alone; a `Joint` puts them together. `JoinedShards` are those of
the first dataset, with its positions and keys: for both sides they answer what is local and how
long it is, and fetch it. Where indexes must have all fields, samples are read first, into a
`SampleShard`. Each read copies the values of a frame, a mapping or a file that a transformation
could change in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from wids.errors import JoinError, MismatchError, SampleError, ShardFormatError, WidsError
from wids.shards.key_lookup import KeyLookup
from wids.shards.policy import Wanted
from wids.shards.reader import ShardReader
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import RawSample, ReadableShard, TarShard, label, read_or_errors
from wids.storage.arrays import FloatArray, IntArray
from wids.storage.cache.store import BackgroundFetch
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

    def reader(self) -> JoinedShards:
        """Return the shards of the dataset, which are fetched with what is joined to them."""
        return JoinedShards(self)

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


class JoinedShards(ShardReader):
    """The shards of a dataset, which are fetched and counted with what is joined to their samples.

    Args:
        joint: What is joined.

    Attributes:
        joint: As passed.
    """

    joint: Joint

    def __init__(self, joint: Joint) -> None:
        own = joint.own.reader
        vars(self).update(vars(own))
        vars(self).pop("all_stored_nbytes", None)  # that of both sides is another
        self._own = own
        self.joint = joint
        self._other = joint.other
        self._needed: dict[int, list[int]] = {}

    # Its own reader opens the shards, and counts how often.

    def open(self, number: int, wanted: Wanted = Wanted.FILE) -> TarShard:
        """Return a shard of the dataset by its number; see `ShardReader.open`."""
        return self._own.open(number, wanted)

    def usage(self) -> tuple[int, int]:
        """Return how often shards of the dataset were asked for, and opened."""
        return self._own.usage()

    def num_read_here(self) -> int:
        """Return how often shards of the dataset were asked for in this process."""
        return self._own.num_read_here()

    def _key_lookup(self) -> KeyLookup:
        return self._own._key_lookup()  # noqa: SLF001 - of the same shards

    # Both sides.

    def _shards_needed(self, number: int) -> list[int]:
        """Return the shards of the other side that the samples of a shard need."""
        if number not in self._needed:
            self._needed[number] = self._found_needed(number).tolist()
        return self._needed[number]

    def _found_needed(self, number: int) -> IntArray:
        """Return what `_shards_needed` does, without storing it."""
        return shards_of(self.joint.entries_of(number), self._other.edges)

    def is_local(self, number: int) -> bool:
        """Whether a shard, and what is joined to its samples, can be read without fetching."""
        needed = self._shards_needed(number)
        return self._own.is_local(number) and all(map(self._other.is_local, needed))

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard, and of what has to be fetched for its samples."""
        sizes = [self._own.nbytes(number), *map(self._other.nbytes, self._shards_needed(number))]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def field_names(self, stored: Sequence[str]) -> Sequence[str]:
        """Return the fields of shards, and those joined to them, where these are known."""
        names = (*self._own.field_names(stored), *self._other.fields(None))
        return list(dict.fromkeys(names))  # `stored` may have those that are joined

    def content(self, number: int) -> tuple[Any, ...]:
        """Return values that change when the samples of a shard, or what is joined to them, do."""
        entries = self.joint.entries_of(number)
        return self._own.content(number), self._other.content(entries)

    def announce_shards(self, numbers: Sequence[int]) -> None:
        """Note that a pass will read shards, and what is joined to them."""
        self._own.announce_shards(numbers)
        for each in self.joint.datasets[1:]:
            needed: Sequence[int] = range(len(each.reader.shards))
            if 2 * len(numbers) < len(self.shards):  # otherwise nearly all, without a look-up
                needed = sorted({other for n in numbers for other in self._shards_needed(n)})
            each.reader.announce_shards(needed)

    def let_ahead(self, part: float) -> None:
        """Let batches read shards of both sides by range; see `ShardReader.let_ahead`."""
        for each in self.joint.datasets:
            each.reader.let_ahead(part)

    def fetch(self, number: int, background: BackgroundFetch | None = None) -> None:
        """Fetch a shard, and what is joined to its samples; see `ShardReader.fetch`."""
        self._own.fetch(number, background)
        for other in self._shards_needed(number):
            self._other.fetch(other, background)

    def only(self, fields: Collection[str] | None) -> JoinedShards:
        """Return a reader that fetches no shard; see `ShardReader.only`."""
        return JoinedShards(self.joint.only(fields))

    def pass_over_broken(self) -> None:
        """Note broken shards of both sides; see `ShardReader.pass_over_broken`."""
        for each in self.joint.datasets:
            each.reader.pass_over_broken()

    @property
    def num_broken(self) -> int:
        """Number of shards of both sides that were noted as broken."""
        return sum(each.reader.num_broken for each in self.joint.datasets)

    def _cached_together(self) -> list[ShardReader]:
        """Return the readers of both sides that store shards in the cache folder of the first."""
        readers = [each.reader for each in self.joint.datasets]
        return [reader for reader in readers if reader.cache_folder == self.cache_folder]

    @property
    def cache_nbytes(self) -> int | None:
        """The lower of the cache limits of both sides; see `ShardReader.cache_nbytes`."""
        limits = [reader.cache_nbytes for reader in self._cached_together()]
        return min((limit for limit in limits if limit is not None), default=None)

    @cached_property
    def all_stored_nbytes(self) -> FloatArray:
        """What `stored_nbytes` returns for all shards."""
        return self.stored_nbytes(np.arange(len(self.shards)), set())

    def stored_nbytes(self, numbers: IntArray, counted: set[str]) -> FloatArray:
        """Return the bytes that the cache stores for the samples of shards, of both sides.

        Bytes of the other side that several shards need are divided among them.
        """
        own, others = self._own.stored_nbytes(numbers, counted), self._cached_together()[1:]
        if not others:
            return own
        (other,) = others
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

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process finds the shards that it needs.
        return type(self), (self.joint,)

    def close(self) -> None:
        """Release the open shards of both sides; the next read opens them again."""
        for each in self.joint.datasets:
            each.reader.close()
