"""Read the bytes and values of small fields of some samples of one open shard.

Members that are damaged or too long are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.errors import DecodeError, ShardFormatError
from wids.look.preview import Browsable
from wids.shards.tars.readable_shard import ReadableShard, read_or_errors
from wids.tables.column_paths import ColumnPath
from wids.tables.column_reader import members_among, members_that_count
from wids.tables.column_values import decoder_of, is_compressed, parts_of

Rows = npt.NDArray[np.int64]
"""Positions of samples in a shard, ascending."""

MAX_VALUE_NBYTES: Final = 1_000_000
"""Longer fields are not read for a filter or a search, also when decompressed.

No more bytes than these are decoded at a time: as values they take a hundred times as much memory.
"""
_MAX_READ_NBYTES: Final = 8_000_000
"""Bytes to read at a time."""
_NUM_READ: Final = 64
"""Samples to read at a time."""


class ShardRows:
    """The small fields of the samples of an open shard.

    Args:
        shard: The shard.

    Attributes:
        left_out: How many fields were left out so far: ``"unreadable"``, which were damaged or
            could not be decoded, and ``"too_long"``.
    """

    def __init__(self, shard: ReadableShard) -> None:
        self._shard = shard
        self._members: dict[str, tuple[Rows, Rows]] = {}
        self._decoders: dict[str, Callable[[Sequence[bytes]], list[Any]]] = {}
        self.left_out: Counter[str] = Counter()

    def of(self, rows: Rows) -> tuple[ShardRows, Rows]:
        """Return the fields of some samples, and those samples; the first of them if all are read.

        Samples are read where the index of their shard does not have all their fields.
        """
        few, damage = rows[:_NUM_READ], Counter[str]()
        shard = self._shard.of_samples(few, lambda _: damage.update(["unreadable"]))
        if shard is self._shard:
            return self, rows
        found = ShardRows(shard)
        found.left_out = damage
        return found, few

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that occurs in the shard."""
        return self._shard.index.fields

    def key(self, row: int) -> str:
        """Return the key of a sample."""
        return self._shard.index.key(row)

    def members(self, field: str, rows: Rows) -> tuple[Rows, Rows]:
        """Return which of some samples have a field, as positions in ``rows``, and its members."""
        if field not in self._members:
            self._members[field] = members_that_count(self._shard.index, field)
        return members_among(*self._members[field], rows)

    def read(
        self, fields: Sequence[str], rows: Rows, max_nbytes: int
    ) -> Iterator[tuple[int, str, bytes]]:
        """Yield the sample, the name and the bytes of fields that are not longer than a limit."""
        found = [self.members(field, rows) for field in fields]
        samples = np.concatenate([np.empty(0, np.int64), *(rows[each[0]] for each in found)])
        members = np.concatenate([np.empty(0, np.int64), *(each[1] for each in found)])
        names = np.repeat(np.arange(len(fields)), [len(each[0]) for each in found])
        sizes = np.asarray(self._shard.index.sizes)[members]
        # In the order of the shard, so that near fields of a remote one are read together.
        order = np.argsort(members, kind="stable")
        order = order[sizes[order] <= max_nbytes]
        self.left_out["too_long"] += len(members) - len(order)
        groups = np.cumsum(sizes[order], dtype=np.int64) // _MAX_READ_NBYTES
        for at in np.split(order, np.flatnonzero(np.diff(groups)) + 1):
            datas = self._read(members[at])
            for row, name, data in zip(samples[at].tolist(), names[at], datas, strict=True):
                if isinstance(data, ShardFormatError):
                    self.left_out["unreadable"] += 1
                else:
                    yield row, fields[name], data

    def _read(self, members: Rows) -> list[bytes | ShardFormatError]:
        if not len(members):
            return []
        shard = self._shard  # one that has changed has no values at all
        return read_or_errors(
            shard.read_members, members, ShardFormatError, lambda _: shard.check()
        )

    def affordable(self, rows: Rows, fields: Sequence[str]) -> Rows:
        """Return the first of some samples, as many as can be read at a time for `values`."""
        nbytes = np.zeros(len(rows), np.int64)
        for field in fields:
            at, members = self.members(field, rows)
            sizes = self._shard.index.sizes[members].astype(np.int64)
            # Longer values are not decoded.
            nbytes[at] += np.where(sizes > MAX_VALUE_NBYTES, 0, sizes)
        count = int(np.searchsorted(np.cumsum(nbytes), MAX_VALUE_NBYTES, side="right"))
        return rows[: max(count, 1)]

    def values(self, path: ColumnPath, rows: Rows) -> Iterator[list[Any]]:
        """Yield the values at a path in samples, a few at a time; None where there is none.

        Args:
            path: The path.
            rows: The samples, of which `affordable` has returned all.
        """
        read = self.read([path.field], rows, MAX_VALUE_NBYTES)
        found = {row: data for row, _, data in read}
        # All are read at once, since each read of a remote shard is a request.
        count = 1 if is_compressed(path.field) else max(len(rows), 1)
        for start in range(0, len(rows), count):
            few = rows[start : start + count].tolist()
            yield self._decoded(path, few, {row: found[row] for row in few if row in found})

    def _decoded(self, path: ColumnPath, rows: list[int], datas: dict[int, bytes]) -> list[Any]:
        decode = self._decoders.setdefault(path.field, decoder_of(path.field, MAX_VALUE_NBYTES))
        values = decode(list(datas.values()))
        self.left_out["unreadable"] += sum(isinstance(value, DecodeError) for value in values)
        values = [None if isinstance(value, DecodeError) else value for value in values]
        by_row = dict(zip(datas, parts_of(values, path.steps).values, strict=True))
        return [by_row.get(row) for row in rows]


@contextmanager
def opened_rows(dataset: Browsable, number: int) -> Iterator[ShardRows]:
    """Provide the fields of a shard of a dataset, which is not downloaded.

    Raises:
        ValueError: The shard has no index.
    """
    if dataset.reader.index(number) is None:
        raise ValueError(f"shard {number} has no index to search; `wids create` makes an index")
    with dataset.only(None) as selection:
        yield ShardRows(selection.reader.open(number, local=False))
