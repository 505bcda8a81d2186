"""Join the samples of a dataset with the entries of another side that have their keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wids.errors import JoinError, MismatchError, SampleError
from wids.shards.reader import Group, OpenByNumber
from wids.shards.tars.raw_samples import RawSample
from wids.storage.array_types import IntArray
from wids.storage.transport import urls
from wids.tables.join_names import Fields
from wids.tables.join_samples import KeyedSamples
from wids.tables.join_sides import OtherSide
from wids.tables.join_store import PositionMap


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

    def read_one(self, position: int, *, local: bool) -> RawSample:
        """Return one joined sample; see `read`. ``local`` is as for `ShardPool.get`."""
        key, sample = self.own.read_one(position, local=local)
        entry = self.entries.one(position)
        found = self.other.read_one(entry, local=local) if entry >= 0 else None
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
        self,
        positions: Sequence[int] | IntArray,
        keys: Sequence[str],
        stored: Sequence[str | None],
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
