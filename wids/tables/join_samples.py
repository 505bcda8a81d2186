"""Read the samples of a dataset for a join: with their stored keys, labelled and transformed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from wids.errors import JoinError
from wids.shards.reader import Group, OpenByNumber, ShardReader
from wids.shards.sample_access import SampleAccess, required_access
from wids.shards.tars.raw_samples import Labels
from wids.storage.array_types import IntArray


class JoinableDataset(Protocol):
    """What a join asks of a dataset."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples."""

    def only(self, fields: Collection[str] | None) -> JoinableDataset:
        """Return the same samples, fetching no shards, and undecoded if fields are named."""

    def undecoded(self) -> JoinableDataset:
        """Return the same samples as they are stored."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations."""


@dataclass(frozen=True, eq=False)
class KeyedSamples:
    """The samples of a dataset, each with its key as it is stored.

    Attributes:
        dataset: All samples of the shards, which raises where a sample cannot be produced.
        is_compared: Whether samples are compared with checksums although they are not decoded here.
    """

    dataset: JoinableDataset
    is_compared: bool = False

    @cached_property
    def access(self) -> SampleAccess:
        """How the samples are read."""
        return required_access(self.dataset)

    @property
    def reader(self) -> ShardReader:
        """The shards."""
        return self.access.reader

    @property
    def is_plain(self) -> bool:
        """Whether samples are as they are stored."""
        return not (self.access.transformations or self.access.is_overridden)

    def read(
        self, positions: IntArray, batch: tuple[Iterable[Group], OpenByNumber] | None = None
    ) -> tuple[list[str], list[Any]]:
        """Return the keys of samples as they are stored, and the samples.

        Those of a plain dataset are new dicts, with the key. Others have been labelled and
        transformed, and may be anything. Each shard is opened once.

        Args:
            positions: The samples.
            batch: What `ShardReader.of_batch` has returned for them, if it was called.
        """
        keys, samples = [""] * len(positions), [None] * len(positions)
        groups, open_shard = batch or self.reader.of_batch(positions)
        for number, places, local_indices in groups:
            found = zip(places, *self._read_many(open_shard, number, local_indices), strict=True)
            for place, key, sample in found:
                keys[place], samples[place] = key, sample
        return keys, samples

    def _read_many(
        self, open_shard: OpenByNumber, number: int, local_indices: Sequence[int]
    ) -> tuple[list[str], list[Any]]:
        access, reader = self.access, self.reader
        if access.is_overridden:
            start, index = reader.starts[number], reader.key_index(number)
            indices = [start + local_index for local_index in local_indices]
            return list(map(index.key, local_indices)), self.dataset.__getitems__(indices)
        verify, labels = self._settings(number)
        samples: list[Any] = reader.read_from(
            number,
            reader.fetches_for_many,
            lambda shard: shard.read_many(local_indices, verify=verify, labels=labels),
            open_shard,
        )
        keys = [sample["__key__"] for sample in samples]
        if access.transformations:
            samples = access.transformed_together(samples)
        return keys, samples

    def read_one(self, position: int, *, local: bool) -> tuple[str, Any]:
        """Return the key of one sample as it is stored, and the sample; see `read`.

        Args:
            position: The sample.
            local: As for `ShardPool.get`.
        """
        access = self.access
        if access.is_overridden:
            (key,), (sample,) = self.read(np.array([position]))
            return key, sample
        number, local_index = self.reader.locate(position)
        verify, labels = self._settings(number)
        sample = self.reader.read_from(
            number, local, lambda shard: shard.read(local_index, verify, labels)
        )
        key = sample["__key__"]
        return key, access.transformed_together([sample])[0] if access.transformations else sample

    def _settings(self, number: int) -> tuple[bool, Labels | None]:
        """Return whether to compare checksums, and the labels that transformations see."""
        access, reader = self.access, self.reader
        if not access.transformations:
            return reader.verifies_decoded if self.is_compared else reader.verifies_raw, None
        return reader.verifies_decoded, reader.labels(number, access.dataset_name)

    def check(self, samples: list[Any]) -> None:
        """Raise `JoinError` if transformations returned anything but dicts."""
        for sample in samples:
            # The first check nearly always decides, and takes a tenth of the second.
            if type(sample) is not dict and not isinstance(sample, Mapping):
                raise JoinError(
                    f"{self}: expected samples that are dicts, to join their fields, found "
                    f"{type(sample).__name__} {sample!r:.80}; join the datasets first, and then "
                    "use map or to_tuple on the joined dataset"
                )

    @property
    def transformations(self) -> Sequence[Any]:
        """Its transformations, those of joins, and its class if that overrides samples."""
        access = self.access
        own = [type(self.dataset)] if access.is_overridden else []
        return *access.reader.transformations, *access.transformations, *own

    def undecoded(self) -> KeyedSamples:
        """Return the samples as they are stored, compared with their checksums."""
        return KeyedSamples(self.dataset.undecoded(), is_compared=True)

    def only(self, fields: Collection[str] | None) -> KeyedSamples:
        """Return the samples, fetching no shards; see `ShardReader.only`."""
        return KeyedSamples(self.dataset.only(fields))

    def __str__(self) -> str:
        return self.access.dataset_name or "the dataset"
