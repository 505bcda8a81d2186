"""Match the keys of two sides: which entries belong together.

Keys are compared by their hashes, all at once. Code that reads two samples by the result must
compare their keys again. Nothing is stored: a million keys take about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wids.errors import JoinError
from wids.shards.indexes import dataset_index
from wids.shards.indexes.key_tables import text_hashes
from wids.shards.positions import Positions
from wids.shards.reader import ShardReader
from wids.storage.arrays import IntArray, WordArray
from wids.storage.transport import urls
from wids.tables.join_sides import KeyedSamples
from wids.tables.table import in_ascending_order, rows_of_shards

MISSING: Final = -1
"""Stands where the other side does not have the key."""

_BLOCK: Final = 1 << 16
"""Keys that are looked up, or hashed, at a time."""


class KeyTexts(NamedTuple):
    """Some consecutive keys of a side.

    Attributes:
        text: Their bytes, with a byte after each key.
        starts: Where each key begins, and where the next one would.
        rows: Which of them belong to an entry.
    """

    text: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.integer]
    rows: IntArray | slice


class _EqualHashesError(Exception):
    """Two different keys have one hash."""


@dataclass(frozen=True, eq=False)
class DatasetKeys:
    """A dataset or view by its keys, from the indexes of the shards that it touches.

    Attributes:
        samples: All samples of its shards.
        positions: Those of the view, in any order and repeated in any way.
        role: Its name for messages, if it has none.
    """

    samples: KeyedSamples
    positions: Positions
    role: str = "the dataset"
    remedy: ClassVar[str] = "join a view that has each key once"
    _fields: dict[str, None] = field(default_factory=dict, init=False)

    @property
    def reader(self) -> ShardReader:
        """The shards."""
        return self.samples.reader

    @cached_property
    def entries(self) -> IntArray | None:
        """The positions in ascending order, each once; None for all of the dataset."""
        ascending = in_ascending_order(self.positions)
        is_whole = isinstance(ascending, range) and ascending == range(len(self.reader))
        return None if is_whole else np.asarray(ascending, np.int64)

    def texts(self) -> Iterator[KeyTexts]:
        """Yield the keys of each shard that the view touches; see `Keyed`."""
        ascending = in_ascending_order(self.positions)
        for number, rows in rows_of_shards(ascending, self.reader.edges):
            index = self.reader.key_index(number)
            self._fields.update(dict.fromkeys(index.fields))
            nbytes = index.text_stop - index.text_start
            text = np.frombuffer(index.text, np.uint8, nbytes, index.text_start)
            chosen = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
            yield KeyTexts(text, index.key_starts, chosen)

    def key(self, entry: int) -> str:
        """Return the key of a sample."""
        number, local_index = self.reader.locate(entry)
        return self.reader.key_index(number).key(local_index)

    def place(self, entry: int) -> str:
        """Return the shard of a sample and its position there."""
        number, local_index = self.reader.locate(entry)
        return f"{urls.redact(self.reader.shards[number].url)}, position {local_index}"

    @property
    def fields(self) -> list[str]:
        """The fields that the shards store, of those that `texts` has seen."""
        return list(self._fields)

    def __str__(self) -> str:
        return self.samples.access.dataset_name or self.role


@dataclass(frozen=True, eq=False)
class RowKeys:
    """The keys of rows.

    Attributes:
        listed: Returns the keys in the order of the rows.
        name: What the rows are in, for messages.
    """

    listed: Callable[[], Iterator[Any]]
    name: str
    remedy: ClassVar[str] = (
        "keep one of these rows; or, for a list of the values of each key, group them first, as "
        'pandas does: frame.groupby("__key__").agg(list), with the column that you name as on='
    )
    fields: ClassVar[Sequence[str]] = ()
    entries: ClassVar[IntArray | None] = None

    def _blocks(self) -> Iterator[bytes]:
        """Yield the keys as text, each followed by a NUL."""
        keys, start = self.listed(), 0
        while block := list(islice(keys, _BLOCK)):
            try:
                text = "\0".join([*block, ""])
            except TypeError:
                text = ""
            if text.count("\0") != len(block):
                self._refuse(block, start)
            try:
                yield text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:  # a lone surrogate, which no stored key has
                yield b"".join(_encoded(key) + b"\0" for key in block)
            start += len(block)

    def _refuse(self, block: list[Any], start: int) -> None:
        for row, key in enumerate(block, start):
            if not isinstance(key, str) or "\0" in key:
                raise JoinError(
                    f"{self.name}: expected keys that are text, such as '000017', found "
                    f"{type(key).__name__} {key!r:.80} in row {row}; convert them first"
                )

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each key.

        Raises:
            JoinError: A key is not text, or occurs twice.
        """
        keys = list(self.listed())
        self._refuse(keys, 0)
        row_by_key = {key: row for row, key in reversed([*enumerate(keys)])}
        if len(row_by_key) < len(keys):
            second = next(row for row, key in enumerate(keys) if row_by_key[key] != row)
            raise _repeated(self, keys[second], (row_by_key[keys[second]], second))
        return row_by_key

    def texts(self) -> Iterator[KeyTexts]:
        """Yield blocks of keys; see `Keyed`."""
        for block in self._blocks():
            text = np.frombuffer(block, np.uint8)
            yield KeyTexts(text, np.append(0, np.flatnonzero(text == 0) + 1), slice(None))

    def key(self, entry: int) -> str:
        """Return the key of a row."""
        found: str = next(islice(self.listed(), entry, None))
        return found

    def place(self, entry: int) -> str:
        """Return the number of a row."""
        return f"{self.name}, row {entry}"

    def __str__(self) -> str:
        return self.name


Keyed: TypeAlias = DatasetKeys | RowKeys
"""The keys of one side of a join, by the entries of that side."""


def _encoded(key: str) -> bytes:
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return key.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class PositionMap:
    """For each position of a dataset, the entry of the other side that has its key.

    Attributes:
        start: The first position that `targets` has.
        targets: The entries; -1 where the other side does not have the key.
    """

    start: int
    targets: npt.NDArray[np.signedinteger]

    def one(self, position: int) -> int:
        """Return the entry of a position, -1 where there is none."""
        local = position - self.start
        # A hundred times as fast as asking for an array of one.
        return int(self.targets[local]) if 0 <= local < len(self.targets) else -1

    def at(self, positions: npt.NDArray[np.integer]) -> IntArray:
        """Return the entries of positions, -1 where there is none."""
        local = positions - self.start
        if len(local) and (local.min() < 0 or local.max() >= len(self.targets)):
            is_outside = (local < 0) | (local >= len(self.targets))
            inside = self.targets[np.where(is_outside, 0, local)] if len(self.targets) else -1
            return np.where(is_outside, -1, inside).astype(np.int64)
        found: IntArray = self.targets[local].astype(np.int64)
        return found


def match_keys(left: Keyed, right: Keyed) -> PositionMap:
    """Return for each entry of the left side the entry of the right side that has its key.

    Takes at most 40 bytes for a key, where both sides have as many.

    Raises:
        JoinError: A key is not unique on one side.
        FetchError: A remote shard has no index.
    """
    try:
        return _matched(left, right, robust=False)
    except _EqualHashesError:
        return _matched(left, right, robust=True)


def _hashes(side: Keyed, *, robust: bool) -> WordArray:
    """Return the hashes of all keys of a side.

    Args:
        side: The side.
        robust: Whether to use hashes that cannot be made equal on purpose, and that take ten times
            as long.
    """
    parts = [np.empty(0, np.uint64)]
    for text, starts, rows in side.texts():
        if robust:
            cuts = pairwise(starts.tolist())
            keys = (text[start : stop - 1].tobytes() for start, stop in cuts)
            parts.append(np.array(list(map(dataset_index.key_hash, keys)), np.uint64)[rows])
        else:
            parts.append(text_hashes(text, starts)[rows])
    return np.concatenate(parts)


def _matched(left: Keyed, right: Keyed, *, robust: bool) -> PositionMap:
    hashes, entries = _hashes(right, robust=robust), right.entries
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    last = len(hashes) - 1 if entries is None else int(entries[-1]) if len(entries) else 0
    order = (order if entries is None else entries[order]).astype(
        np.int32 if last < 1 << 31 else np.int64
    )
    _check_unique(hashes, order, right)

    wanted, places = _hashes(left, robust=robust), left.entries
    ascending = np.sort(wanted)
    if (ascending[1:] == ascending[:-1]).any():
        at = np.argsort(wanted, kind="stable")
        _check_unique(wanted[at], at if places is None else places[at], left)
    first = 0 if places is None else int(places[0]) if len(places) else 0
    count = len(wanted) if places is None else int(places[-1]) + 1 - first if len(places) else 0
    targets = np.full(count, MISSING, order.dtype)
    for start in range(0, len(wanted) if len(hashes) else 0, _BLOCK):
        block = wanted[start : start + _BLOCK]
        at = np.minimum(hashes.searchsorted(block), len(hashes) - 1)
        found = np.where(hashes[at] == block, order[at], order.dtype.type(MISSING))
        if places is None:
            targets[start : start + len(block)] = found
        else:
            targets[places[start : start + len(block)] - first] = found
    return PositionMap(first, targets)


def _check_unique(ascending: WordArray, entries: npt.NDArray[np.integer], side: Keyed) -> None:
    """Raise if two entries have one key, or different keys with one hash."""
    repeats = np.flatnonzero(ascending[1:] == ascending[:-1])
    if not len(repeats):
        return
    # The first of the pairs, so that the error names what a reader meets first.
    first, second = min(entries[[at, at + 1]].tolist() for at in repeats)
    key = side.key(first)
    if side.key(second) != key:
        raise _EqualHashesError
    more = f", and {len(repeats) - 1:,} more keys" if len(repeats) > 1 else ""
    raise _repeated(side, key, (first, second), more)


def _repeated(side: Keyed, key: str, entries: tuple[int, int], more: str = "") -> JoinError:
    first, second = map(side.place, entries)
    return JoinError(
        f"{side}: expected each key once, found {key!r} twice: {first}; and {second}{more}; "
        f"{side.remedy}"
    )
