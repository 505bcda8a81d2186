"""Define the interface of the other side of a join: fields for the samples of a dataset.

`wids.tables.join_datasets` implements it for a second dataset, and `value_part` for values, which
are rows in memory or files beside the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, Protocol

from wids.shards.tars.index import ShardIndex
from wids.storage.array_types import FloatArray, IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.tables.column_values import DecodeMany
from wids.tables.join_sides import Fields

UNKNOWN: Final = -1
"""Stands where a checksum is not known."""


class Members(NamedTuple):
    """Fields of the samples of one shard, for its index.

    Attributes:
        samples: The sample of each field, shape ``(num_members,)``.
        sizes: Its length in bytes.
        field_ids: Its name, as a position in ``names``.
        crcs: The CRC-32 of its bytes, or `UNKNOWN`.
        names: The names in joined samples.
    """

    samples: IntArray
    sizes: IntArray
    field_ids: IntArray
    crcs: IntArray
    names: tuple[str, ...]


class Part(Protocol):
    """The other side of a join: fields for the samples of a dataset, shard by shard.

    Names of fields are those in joined samples.
    """

    def read(
        self, number: int, positions: Sequence[int], keys: Sequence[str], *, local: bool
    ) -> list[Fields | None]:
        """Return the fields of samples of one shard, in new dicts; None for a missing sample.

        Fields that came with a key have it under ``__key__``, to be compared.

        Args:
            number: The shard of the dataset.
            positions: Positions of its samples.
            keys: Their keys.
            local: As for `ShardPool.get`.
        """

    def read_one(self, number: int, position: int, key: str, *, local: bool) -> Fields | None:
        """Return what `read` returns for one sample."""

    def read_batch(self, positions: Sequence[int] | IntArray) -> list[Fields | None] | None:
        """Return the fields of samples of any shards, read together; None if it cannot."""

    def values(
        self,
        number: int,
        positions: Sequence[int],
        keys: Sequence[str],
        field: str,
        decode: DecodeMany,
        *,
        local: bool,
    ) -> tuple[list[str], list[Any]]:
        """Return one field of samples of one shard as items of a column; None where it is missing.

        Args:
            number: The shard of the dataset.
            positions: Positions of its samples, which ascend.
            keys: Their keys.
            field: The field.
            decode: Returns the values of bytes.
            local: As for `ShardPool.get`.

        Returns:
            The keys that the fields came with, to be compared, and the values.
        """

    def fields(self, number: int | None = None) -> Sequence[str]:
        """Return the fields that samples of one shard can have, or those of all with None.

        They are those known before transformations, and without reading samples.
        """

    def members(self, number: int, index: ShardIndex) -> Members | None:
        """Return what an index says of the samples of one shard; None if it is not available.

        Args:
            number: The shard of the dataset.
            index: Its own index.
        """

    def content(self, number: int, index: ShardIndex) -> tuple[Any, ...]:
        """Return values that change when the fields for the samples of one shard do.

        Args:
            number: The shard of the dataset.
            index: An index with its keys.
        """

    def read_part(
        self, number: int, position: int, key: str, field: str
    ) -> tuple[str, Callable[..., bytes]]:
        """Return the key stored with a field, and what returns its bytes from start to stop.

        Raises:
            KeyError: The sample does not have the field.
        """

    def is_local(self, number: int) -> bool:
        """Whether the fields of the samples of one shard can be read without fetching."""

    def nbytes(self, number: int) -> int | None:
        """Return how many bytes have to be fetched for the samples of one shard, if known."""

    def cache_nbytes(self, folder: str) -> int | None:
        """Return the limit of the cache in a folder, as `ShardReader.cache_nbytes`."""

    def stored_nbytes(
        self, folder: str, numbers: IntArray, counted: set[str]
    ) -> FloatArray | float:
        """Return the bytes that the cache in a folder stores for the samples of shards.

        NaN where they are not known. Bytes that several shards need are divided among them, so that
        the sum is right.

        Args:
            folder: The folder.
            numbers: The shards of the dataset.
            counted: The URLs that other sides have; see `ShardReader.stored_nbytes`.
        """

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Fetch what the samples of one shard need."""

    def only(self, fields: Collection[str] | None) -> Part:
        """Return the part that has only these fields, undecoded, and fetches no shards."""

    @property
    def transformations(self) -> Sequence[Any]:
        """The transformations of its samples."""

    def undecoded(self) -> Part:
        """Return the part whose samples are as they are stored."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations."""

    def close(self) -> None:
        """Release what is open."""
