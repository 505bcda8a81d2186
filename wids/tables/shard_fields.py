"""Read fields of the samples of an open shard in bulk: their bytes, or the values of a column.

Tables and searches read by the same rules: which member of a field counts, how much is read at a
time, and what stands for a member that is damaged, too long, or cannot be decoded: its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from wids.errors import ShardFormatError
from wids.shards.fields.picture_headers import HEAD_NBYTES, picture_facts
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import ReadableShard, read_or_errors
from wids.storage.arrays import IntArray
from wids.tables.column_values import DecodeMany, decoder_of, is_picture
from wids.tables.join_fields import plain_values

Rows: TypeAlias = "range | IntArray"
"""Samples of a shard: consecutive ones, or ascending positions in the shard."""
SomeRows = TypeVar("SomeRows", range, IntArray, Rows)

_MAX_MEMBERS: Final = 4096
_MAX_NBYTES: Final = 8 << 20
"""The maximum number of members, and of their bytes, to read at a time."""


@runtime_checkable
class ValuedShard(Protocol):
    """A shard with fields that are values, such as those of rows that were joined to it."""

    def read_values(self, members: IntArray) -> list[Any]:
        """Return the values of members."""


class TooLongError(ValueError):
    """A field is longer than what is read."""


class ShardFields:
    """The fields of the samples of an open shard.

    Args:
        shard: The shard.
        verify: Whether to compare members with checksums, if there are any.
        on_damage: Called with the error of a read of several members, before they are read one by
            one; raises if none can be read.

    Attributes:
        shard: As passed.
    """

    def __init__(
        self,
        shard: ReadableShard,
        *,
        verify: bool = False,
        on_damage: Callable[[ShardFormatError], object] = lambda _: None,
    ) -> None:
        self.shard = shard
        self._values = shard.read_values if isinstance(shard, ValuedShard) else None
        self._read_members = self._values or partial(shard.read_members, verify=verify)
        self._on_damage = on_damage
        self._members_of = lru_cache(None)(partial(_members_that_count, shard.index))
        self._decoder_of = lru_cache(None)(decoder_of)

    def members(self, field: str, rows: Rows) -> tuple[IntArray, IntArray]:
        """Return which of some samples have a field, as positions in ``rows``, and its members."""
        samples, members = self._members_of(field)
        if not len(rows):
            return samples[:0], members[:0]
        first, last = np.searchsorted(samples, (rows[0], rows[-1] + 1)).tolist()
        samples, members = samples[first:last], members[first:last]
        if isinstance(rows, range):
            return samples - rows.start, members
        at = np.searchsorted(rows, samples)
        is_wanted = rows[at] == samples
        return at[is_wanted], members[is_wanted]

    def blocks(
        self,
        fields: Sequence[str],
        rows: SomeRows,
        block_nbytes: int = _MAX_NBYTES,
        max_nbytes: int | None = None,
    ) -> Iterator[SomeRows]:
        """Cut samples into blocks whose fields are read at a time, of at least one sample each.

        Args:
            fields: The fields.
            rows: The samples.
            block_nbytes: The bytes of a block, unless a single sample has more.
            max_nbytes: As for `read`.
        """
        nbytes, counts = np.zeros((2, len(rows)), np.int64)
        for field in fields:
            at, members = self.members(field, rows)
            sizes = self.shard.index.sizes[members].astype(np.int64)
            if self._has_headers(field):
                sizes = np.minimum(sizes, HEAD_NBYTES[0])
            nbytes[at] += sizes if max_nbytes is None else np.where(sizes > max_nbytes, 0, sizes)
            counts[at] += 1
        ends, num_members, first = np.cumsum(nbytes), np.cumsum(counts), 0
        while first < len(rows):
            before = (ends[first - 1], num_members[first - 1]) if first else (0, 0)
            stops = (
                np.searchsorted(ends, before[0] + block_nbytes, side="right"),
                np.searchsorted(num_members, before[1] + _MAX_MEMBERS, side="right"),
            )
            last = max(first + 1, int(min(stops)))
            yield rows[first:last]
            first = last

    def read(
        self, fields: Sequence[str], rows: Rows, max_nbytes: int | None = None
    ) -> list[tuple[IntArray, list[Any]]]:
        """Return for each field the positions in ``rows`` that have it, and what it has there.

        That are bytes, or the error for which they cannot be read; of a picture what its header
        states; of a joined field its value. Members are read in the order of the shard, so that
        near ones of a remote shard share a request.

        Args:
            fields: The fields.
            rows: The samples.
            max_nbytes: Longer fields are not read as a whole; None to read all.
        """
        found = [(*self.members(field, rows), self._has_headers(field)) for field in fields]
        others = [members for _, members, has_headers in found if not has_headers]
        datas = iter(self._read(np.concatenate([np.empty(0, np.int64), *others]), max_nbytes))
        return [
            (at, self._headers(field, members, max_nbytes))
            if has_headers
            else (at, list(islice(datas, len(at))))
            for field, (at, members, has_headers) in zip(fields, found, strict=True)
        ]

    def decoded(self, field: str, datas: list[Any], max_nbytes: int | None = None) -> list[Any]:
        """Return the values of what was read of a field; an error for what has none.

        Args:
            field: The field.
            datas: What was read of it.
            max_nbytes: The maximum length of a value, decompressed; None for no limit.
        """
        if self._has_headers(field):
            return datas
        decode: DecodeMany = self._decoder_of(field, max_nbytes)
        return decode(datas) if self._values is None else plain_values(datas, decode)

    def _has_headers(self, field: str) -> bool:
        return is_picture(field) and self._values is None

    def _headers(self, field: str, members: IntArray, max_nbytes: int | None) -> list[Any]:
        """Return what the headers of pictures state, of first bytes where these are enough."""
        values: list[Any] = [None] * len(members)
        unread_places = list(range(len(members)))
        for nbytes in HEAD_NBYTES:
            read = partial(self.shard.read_starts, nbytes=nbytes)
            for place, start in zip(
                unread_places, self._or_errors(read, members[unread_places]), strict=True
            ):
                with suppress(Exception):  # of Pillow; all bytes show whether it is damaged
                    values[place] = picture_facts(start)
            unread_places = [place for place in unread_places if values[place] is None]
        rest = self._decoder_of(field)(self._read(members[unread_places], max_nbytes))
        for place, value in zip(unread_places, rest, strict=True):
            values[place] = value
        return values

    def _read(self, members: IntArray, max_nbytes: int | None) -> list[Any]:
        places = np.arange(len(members))
        if max_nbytes is not None:
            places = np.flatnonzero(np.asarray(self.shard.index.sizes)[members] <= max_nbytes)
        places = places[np.argsort(members[places], kind="stable")]
        datas: list[Any] = [_TOO_LONG] * len(members)
        read = self._or_errors(self._read_members, members[places])
        for place, data in zip(places.tolist(), read, strict=True):
            datas[place] = data
        return datas

    def _or_errors(self, read: Callable[[IntArray], list[Any]], members: IntArray) -> list[Any]:
        if not len(members):
            return []
        return read_or_errors(read, members, ShardFormatError, self._damaged)

    def _damaged(self, error: ShardFormatError) -> None:
        self._on_damage(error)
        self.shard.check()  # a shard that has changed has no values at all


_TOO_LONG: Final = TooLongError()


def _members_that_count(index: ShardIndex, field: str) -> tuple[IntArray, IntArray]:
    """Return the samples that have a field, and the member of each."""
    samples, members = index.members_of(field)
    # An index from elsewhere can repeat a field; the last one counts, as in a tar.
    is_last = np.ones(len(samples), np.bool_)
    is_last[:-1] = samples[1:] != samples[:-1]
    return samples[is_last], members[is_last]
