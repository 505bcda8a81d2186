"""Match the keys of two sides, and store which entries belong together.

Keys are compared by their hashes, all at once. Code that reads two samples by the result must
compare their keys again.

The stored result is complete or absent, and checked when it is loaded: a file that is damaged, of
another version or of other keys counts as missing. specs/joins.md describes it byte by byte.
"""

from __future__ import annotations

import os
import struct
import zlib
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
from wids.storage.cache.cache_names import indexes_folder, save_quietly
from wids.storage.files import read_or_map
from wids.storage.transport import urls
from wids.tables.table import Rows, in_ascending_order, rows_of_shards

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
    """The keys of a dataset or view, from the indexes of the shards that it touches.

    Attributes:
        reader: The shards.
        positions: The samples of the view, in any order and repeated in any way.
        name: The name of the dataset, for messages.
    """

    reader: ShardReader
    positions: Positions
    name: str
    remedy: ClassVar[str] = "join a view that has each key once"
    _fields: dict[str, None] = field(default_factory=dict, init=False)

    @cached_property
    def entries(self) -> IntArray | None:
        """The positions in ascending order, each once; None for all of the dataset."""
        ascending = in_ascending_order(self.positions)
        is_whole = isinstance(ascending, range) and ascending == range(len(self.reader))
        return None if is_whole else np.asarray(ascending, np.int64)

    def _shards(self) -> list[tuple[int, Rows]]:
        """Return the shards that the view touches, each with its samples there."""
        return list(rows_of_shards(in_ascending_order(self.positions), self.reader.edges))

    def digest(self) -> bytes:
        """Return a digest of the shards that the view touches, and of its positions."""
        shards = [(number, self.reader.identity(number)) for number, _ in self._shards()]
        entries = self.entries
        text = repr((shards, len(self.reader), entries is None)).encode("utf-8", "backslashreplace")
        return digest_of(text, self.reader.edges.tobytes(), b"" if entries is None else entries)

    def texts(self) -> Iterator[KeyTexts]:
        """Yield the keys of each shard; see `Keyed`."""
        for number, rows in self._shards():
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
        return self.name


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
        found = {key: row for row, key in reversed([*enumerate(keys)])}
        if len(found) < len(keys):
            second = next(row for row, key in enumerate(keys) if found[key] != row)
            raise _repeated(self, keys[second], (found[keys[second]], second))
        return found

    def digest(self) -> bytes:
        """Return a digest of all keys in order."""
        return digest_of(*self._blocks())

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


def digest_of(*parts: Any) -> bytes:
    """Return a digest of several byte strings."""
    import hashlib

    digest = hashlib.sha256()
    for part in parts:
        view = memoryview(part).cast("B")
        digest.update(len(view).to_bytes(8, "little"))
        digest.update(view)
    return digest.digest()


def match_keys(left: Keyed, right: Keyed) -> tuple[int, npt.NDArray[np.signedinteger]]:
    """Return for each entry of the left side the entry of the right side that has its key.

    Takes at most 40 bytes for a key, where both sides have as many.

    Returns:
        The first entry that has a place, and the array of places from there on: entries of the
        right side, or `MISSING`, which also stands for entries that the left side does not have.

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


def _matched(
    left: Keyed, right: Keyed, *, robust: bool
) -> tuple[int, npt.NDArray[np.signedinteger]]:
    hashes, entries = _hashes(right, robust=robust), right.entries
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    last = len(hashes) - 1 if entries is None else int(entries[-1]) if len(entries) else 0
    order = (order if entries is None else entries[order]).astype(
        np.int32 if last < 1 << 31 else np.int64
    )
    _check_unique(hashes, lambda at: int(order[at]), right)

    wanted, places = _hashes(left, robust=robust), left.entries
    _check_unique_hashes(wanted, places, left)
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
    return first, targets


def _check_unique_hashes(hashes: WordArray, entries: IntArray | None, side: Keyed) -> None:
    ascending = np.sort(hashes)
    if (ascending[1:] == ascending[:-1]).any():
        order = np.argsort(hashes, kind="stable")
        entry_of = order if entries is None else entries[order]
        _check_unique(hashes[order], lambda at: int(entry_of[at]), side)


def _check_unique(ascending: WordArray, entry_at: Callable[[int], int], side: Keyed) -> None:
    """Raise if two entries have one key, or different keys with one hash."""
    repeats = np.flatnonzero(ascending[1:] == ascending[:-1]).tolist()
    if not repeats:
        return
    # The first of the pairs, so that the error names what a reader meets first.
    first, second = min((entry_at(at), entry_at(at + 1)) for at in repeats)
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


_MAGIC: Final = b"wids-joi"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQQQII32s")
_CRC_START: Final = 16  # the CRC covers all bytes from here on


@dataclass(frozen=True, eq=False)
class PositionMap:
    """For each position of a dataset, the entry of the other side that has its key.

    Attributes:
        start: The first position that `targets` has.
        targets: The entries; -1 where the other side does not have the key.
        fields: All fields that the shards of the entries store. Which of them are read is not part
            of the digest; the reader decides.
    """

    start: int
    targets: npt.NDArray[np.signedinteger]
    fields: tuple[str, ...]

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


class EveryPosition(PositionMap):
    """Maps each position to itself."""

    def __init__(self) -> None:
        super().__init__(0, np.empty(0, np.int64), ())

    def one(self, position: int) -> int:
        """Return the position."""
        return position

    def at(self, positions: npt.NDArray[np.integer]) -> IntArray:
        """Return the positions."""
        return positions.astype(np.int64, copy=False)


def map_path(cache_folder: str, digest: bytes) -> str:
    """Return the path of the file for two sides with a digest."""
    return os.path.join(indexes_folder(cache_folder), f"{digest.hex()[:32]}-keys.join")


def save(path: str, digest: bytes, positions: PositionMap) -> None:
    """Store a map if possible."""
    fields = b"\0".join(name.encode("utf-8", "surrogateescape") for name in positions.fields)
    targets = positions.targets
    body = targets.astype(targets.dtype.newbyteorder("<")).tobytes() + fields
    header = (len(body) + _HEADER.size, positions.start, len(targets), targets.itemsize, 0, digest)
    rest = _HEADER.pack(_MAGIC, _VERSION, 0, *header)[_CRC_START:] + body
    start = struct.pack("<8sII", _MAGIC, _VERSION, zlib.crc32(rest))
    save_quietly(path, start + rest)


def load(path: str, digest: bytes) -> PositionMap | None:
    """Return the map that this user stored for two sides; None if there is no valid one."""
    data = read_or_map(path, is_own=True)
    if data is None or len(data) < _HEADER.size:
        return None
    # Copied, since a mapped file that is truncated later would kill the process.
    blob = data[:]
    magic, version, crc, nbytes, start, count, width, _, found = _HEADER.unpack_from(blob, 0)
    if (magic, version, nbytes, found) != (_MAGIC, _VERSION, len(blob), digest):
        return None
    stop = _HEADER.size + count * width
    if zlib.crc32(memoryview(blob)[_CRC_START:]) != crc or width not in (4, 8) or stop > nbytes:
        return None
    dtype: np.dtype[Any] = np.dtype(f"<i{width}")
    targets = np.frombuffer(blob, dtype, count, _HEADER.size)
    fields = blob[stop:].decode("utf-8", "surrogateescape").split("\0") if stop < nbytes else []
    return PositionMap(start, targets, tuple(fields))
