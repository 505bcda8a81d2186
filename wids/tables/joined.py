"""Read joined samples: each sample of a dataset with the entry of another side that has its key.

A `JoinedShard` is a `wids.shards.tars.raw_samples.ReadableShard`: samples are read as from another
shard. It holds nothing open: the readers of both sides do.

Positions, shards and keys are those of the first dataset's reader; each query about a shard goes to
both sides. A joined dataset differs from others in its reader alone. Each read copies the values of
a frame, a mapping or a file that a transformation could change in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wids.errors import JoinError, MismatchError, SampleError, ShardFormatError, WidsError
from wids.shards.policy import Wanted
from wids.shards.reader import Group, OpenByNumber, ShardReader
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import Labels, RawSample, ReadableShard, label, read_or_errors
from wids.storage.arrays import FloatArray, IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.storage.transport import urls
from wids.tables.column_values import DecodeMany
from wids.tables.join_fields import Fields, as_bytes, plain_values
from wids.tables.join_keys import PositionMap
from wids.tables.join_sides import KeyedSamples, OtherSide, shards_of


@dataclass(frozen=True, eq=False)
class Joint:
    """What is joined: the samples of a dataset with entries of another side.

    Attributes:
        own: The dataset.
        other: The other side.
        entries: The entry of each sample.
        fills: Whether a sample that is missing on the other side has its fields as None.
    """

    own: KeyedSamples
    other: OtherSide
    entries: PositionMap
    fills: bool

    def read(
        self, positions: IntArray, batch: tuple[Iterable[Group], OpenByNumber] | None = None
    ) -> list[RawSample]:
        """Return joined samples of any shards, read together.

        Args:
            positions: The samples.
            batch: What `ShardReader.of_batch` has returned for the dataset, if it was called.

        Raises:
            JoinError: Both sides have a field of one name, or a sample is not a dict.
            SampleError: The other side does not have a key.
            MismatchError: A shard was written again since the datasets were joined.
        """
        keys, samples = self.own.read(positions, batch)
        entries = self.entries.at(positions)
        present = np.flatnonzero(entries >= 0)
        others = self.other.read(entries[present])
        if len(present) < len(entries):
            found, others = others, [None] * len(entries)
            for place, fields in zip(present.tolist(), found, strict=True):
                others[place] = fields
        return self._joined(positions, keys, samples, others)

    def read_one(self, position: int, wanted: Wanted) -> RawSample:
        """Return one joined sample, as what is wanted of its shard says; see `read`."""
        key, sample = self.own.read_one(position, wanted)
        entry = self.entries.one(position)
        found = self.other.read_one(entry, wanted) if entry >= 0 else None
        return self._joined([position], [key], [sample], [found])[0]

    def _joined(
        self,
        positions: Sequence[int] | IntArray,
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
        self.check_keys(positions, keys, [fields.pop("__key__", None) for fields in others])
        if not self.own.is_plain:
            self.own.check(samples)
        # New dicts, since a transformation may keep what it returns, and return it again.
        joined = [{**sample, **fields} for sample, fields in zip(samples, others, strict=True)]
        if sum(map(len, joined)) != sum(map(len, samples)) + sum(map(len, others)):
            for position, key, sample, fields in zip(positions, keys, samples, others, strict=True):
                if common := sample.keys() & fields:
                    raise self.collision(position, key, sorted(map(str, common)))
        return joined

    def _missing(
        self, place: int, positions: Sequence[int] | IntArray, keys: Sequence[str]
    ) -> Fields:
        """Return the fields of a sample that is missing on the other side."""
        number, _ = self.own.reader.locate(int(positions[place]))
        if self.fills:
            return self.other.missing(number)
        raise SampleError(
            f'{self._name(positions[place])}: sample "{keys[place]}": expected its key on the '
            'other side of the join, found none; pass missing="skip" or missing="none" to join',
            shard=self.own.reader.shards[number].url,
            key=keys[place],
        )

    def check_keys(
        self, positions: Sequence[int] | IntArray, keys: Sequence[str], stored: Sequence[str | None]
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

    def collision(self, position: int, key: str, names: list[str]) -> JoinError:
        """Return the error for a sample with fields that both sides have."""
        return JoinError(
            f'{self._name(position)}: sample "{key}": expected fields with other names on both '
            f"sides, found {', '.join(names[:8])} on both; pass a prefix to join, as in "
            'join(other, prefix="b"), or fields= when the datasets are opened'
        )

    def _name(self, position: int) -> str:
        """Return the shard of a sample, for messages."""
        reader = self.own.reader
        return urls.redact(reader.shards[reader.locate(int(position))[0]].url)

    def entries_of(self, number: int) -> IntArray:
        """Return the entries of the samples of one shard, -1 where there is none."""
        edges = self.own.reader.edges
        return self.entries.at(np.arange(edges[number], edges[number + 1]))

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

    def reader(self) -> JoinedReader:
        """Return the reader of joined samples."""
        return JoinedReader(self)

    @property
    def transformations(self) -> Sequence[Any]:
        """The transformations of both sides, which run before the join."""
        return [step for each in self.datasets for step in each.transformations]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations of both sides."""
        for each in self.datasets:
            each.dataset.set_epoch(epoch)


class JoinedShard(ReadableShard):
    """One shard of a joined dataset; see `wids.shards.tars.raw_samples.ReadableShard`.

    Safe to use from any number of threads.

    Args:
        reader: The reader that it belongs to, which has its index.
        joint: What is joined.
        number: The number of the shard.
        wanted: What is wanted of it.
        batch: The samples that will be read, if they were read together with those of others.
    """

    def __init__(
        self,
        reader: ShardReader,
        joint: Joint,
        number: int,
        wanted: Wanted,
        batch: list[RawSample] | None = None,
    ) -> None:
        self._reader = reader
        self._joint = joint
        self._own = joint.own.reader
        self._number = number
        self._start = reader.starts[number]
        self._wanted = wanted
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
        sample = self._joint.read_one(self._start + local_index, self._wanted)
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
        shard = self._own.open(self._number, self._wanted)
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


_LOOKED_UP: Final = (
    *("ends", "labels", "options", "shards", "starts", "verifies_decoded", "verifies_raw"),
)
"""What each read of a sample looks up; `__getattr__` takes longer."""


class JoinedReader(ShardReader if TYPE_CHECKING else object):  # type: ignore[misc]
    """The shards of a dataset, with fields of another side, for those who ask a `ShardReader`.

    What is not defined here is asked of the reader of the dataset: positions, keys, indexes.

    Args:
        joint: What is joined.

    Attributes:
        joint: As passed.
    """

    has_all_fields = False

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self._inner = inner = joint.own.reader
        self._other = joint.other
        self._needed: dict[int, list[int]] = {}
        for name in _LOOKED_UP:
            setattr(self, name, getattr(inner, name))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __repr__(self) -> str:
        return f"<JoinedReader: {self._inner!r}, and what is joined to its samples>"

    def open(self, number: int, wanted: Wanted = Wanted.FILE) -> JoinedShard:
        """Return a joined shard; the readers of both sides open theirs when samples are read."""
        return JoinedShard(self, self.joint, number, wanted)

    def of_batch(self, positions: IntArray) -> tuple[Iterable[Group], OpenByNumber]:
        """Return the samples of a batch by shards, after reading all of them."""
        try:
            own, open_own = self._inner.of_batch(positions)
            groups = list(own)
            found = self.joint.read(positions, (groups, open_own))
        except WidsError:  # raised again where only the sample that failed is replaced
            return self.groups(positions), self.open
        batches = {number: [found[place] for place in places] for number, places, _ in groups}

        def open_shard(number: int, wanted: Wanted = Wanted.FILE) -> JoinedShard:
            return JoinedShard(self, self.joint, number, wanted, batches[number])

        return groups, open_shard

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
        return self._inner.is_local(number) and all(map(self._other.is_local, needed))

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard, and of what has to be fetched for its samples."""
        sizes = [self._inner.nbytes(number), *map(self._other.nbytes, self._shards_needed(number))]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def field_names(self, stored: Sequence[str]) -> Sequence[str]:
        """Return the fields of shards, and those joined to them, where these are known."""
        names = (*self._inner.field_names(stored), *self._other.fields(None))
        return list(dict.fromkeys(names))  # `stored` may have those that are joined

    def content(self, number: int) -> tuple[Any, ...]:
        """Return values that change when the samples of a shard, or what is joined to them, do."""
        entries = self.joint.entries_of(number)
        return self._inner.content(number), self._other.content(entries)

    def announce_shards(self, numbers: Sequence[int]) -> None:
        """Note that a pass will read shards, and what is joined to them."""
        self._inner.announce_shards(numbers)
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
        self._inner.fetch(number, background)
        for other in self._shards_needed(number):
            self._other.fetch(other, background)

    def only(self, fields: Collection[str] | None) -> JoinedReader:
        """Return a reader that fetches no shard; see `ShardReader.only`."""
        return JoinedReader(self.joint.only(fields))

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
        own, others = self._inner.stored_nbytes(numbers, counted), self._cached_together()[1:]
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
