"""Hold the shards of a dataset in columns: a sequence without an object for each shard.

A shard becomes a `ShardSpec` when it is asked for. Forked processes share the columns, of about 50
bytes a shard, and spawned ones get them in a pickle.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, cycle, groupby, islice
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from wids.errors import SpecError
from wids.shards.specs.entries import shard_of
from wids.shards.specs.model import ShardSpec
from wids.shards.tars.headers import KeySplit
from wids.storage.arrays import FloatArray, IntArray
from wids.storage.transport import urls

Shards: TypeAlias = Sequence[ShardSpec]

Numbers: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""Integers of as few bytes as hold them."""

_T = TypeVar("_T")

_BLOCK_LENGTH: Final = 4096
"""Shards that become columns at once, and whose URLs begin and end alike."""
_MAX_MADE: Final = 1024
"""Shards to keep as objects, for those that are read."""
_SHA256: Final = re.compile("[0-9a-f]{64}")
_NUM_DIGITS: Final = 64
_NO_DIGEST: Final = bytes(32)


class Common(NamedTuple):
    """What many shards have in common.

    Attributes:
        prefix, suffix: How their URLs begin and end.
        is_local: Whether they are local.
        dataset, key_split: As in `ShardSpec`.
    """

    prefix: str
    suffix: str
    is_local: bool
    dataset: str | None
    key_split: KeySplit | None


@dataclass(frozen=True, eq=False, repr=False)
class ShardColumns(Sequence[ShardSpec]):
    """Shards, each of which is made when it is asked for.

    It is equal to another sequence, or a tuple, of equal shards. Can be used by any number of
    threads and after a fork.

    Attributes:
        commons: What shards have in common.
        common_of: The number of what is common, for each shard.
        offsets: Where the text of each shard begins, and the end of all.
        text: For each shard the middle of its URL; if there is more to say of it, a NUL and a JSON
            object with other fields of its `ShardSpec`.
        counts: Numbers of samples, -1 where none is stated.
        lengths: Lengths in bytes, -1 where none is stated.
        sha256: SHA-256 digests, zeros where none is stated; empty if none is.
    """

    commons: tuple[Common, ...]
    common_of: Numbers
    offsets: Numbers
    text: bytes
    counts: Numbers
    lengths: Numbers
    sha256: bytes
    _made: dict[Any, ShardSpec] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, index: int) -> ShardSpec: ...
    @overload
    def __getitem__(self, index: slice) -> ShardColumns: ...
    def __getitem__(self, index: int | slice) -> ShardSpec | ShardColumns:
        try:
            return self._made[index]  # each sample that is read asks for its shard
        except (KeyError, TypeError):  # a slice has no hash
            number = range(len(self))[index]
        if isinstance(number, range):
            return self._part(number)
        made = self._shard(number)
        if len(self._made) >= _MAX_MADE:
            self._made.clear()  # one atomic step, as other threads may read
        self._made[number] = made
        return made

    def __iter__(self) -> Iterator[ShardSpec]:
        return map(self._shard, range(len(self)))

    def url(self, number: int) -> str:
        """Return the URL of a shard, in a third of the time that the shard takes."""
        return self._url(number)[0]

    def key_split(self, number: int) -> KeySplit | None:
        """Return the rule for the names of a shard, as `ShardSpec` has it."""
        common: Common = self.commons[self.common_of[number]]
        return common.key_split

    def _url(self, number: int) -> tuple[str, bytes]:
        """Return the URL of a shard, and its other fields as JSON; empty if it has none."""
        common = self.commons[self.common_of[number]]
        start, stop = self.offsets[number : number + 2].tolist()
        name, _, rest = self.text[start:stop].partition(b"\0")
        return common.prefix + name.decode("utf-8", "surrogatepass") + common.suffix, rest

    def _shard(self, number: int) -> ShardSpec:
        common = self.commons[self.common_of[number]]
        url, rest = self._url(number)
        more = json.loads(rest) if rest else {}
        count, nbytes = int(self.counts[number]), int(self.lengths[number])
        digest = self.sha256[32 * number : 32 * (number + 1)]
        return ShardSpec(
            url,
            None if count < 0 else count,
            None if nbytes < 0 else nbytes,
            more.get("md5sum"),
            digest.hex() if digest.strip(b"\0") else more.get("sha256"),
            common.dataset,
            common.key_split,
            more.get("index"),
            more.get("extras", {}),
        )

    def _part(self, numbers: range) -> ShardColumns:
        """Return some of the shards."""
        start, stop = numbers.start, numbers.stop
        if numbers.step != 1 or not numbers:
            return columns_of(map(self._shard, numbers))
        used, codes = np.unique(self.common_of[start:stop], return_inverse=True)
        offsets = self.offsets[start : stop + 1]
        return ShardColumns(
            tuple(self.commons[code] for code in used),
            _narrow(codes),
            offsets - offsets[0],
            self.text[offsets[0] : offsets[-1]],
            self.counts[start:stop],
            self.lengths[start:stop],
            self.sha256[32 * start : 32 * stop],
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, tuple | ShardColumns):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as of a tuple of shards, which have dicts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"

    def __reduce__(self) -> tuple[Any, ...]:  # without what is made of the columns
        columns = (self.commons, self.common_of, self.offsets, self.text)
        return ShardColumns, (*columns, self.counts, self.lengths, self.sha256)

    @cached_property
    def edges(self) -> IntArray | None:
        """Where shards begin, and the end of the last one; None if a count is not stated.

        None too if the counts add up to 2**63 or more.
        """
        counts = self.counts
        if counts.min(initial=0) < 0:
            return None
        # Nearly always the first tells that they fit.
        if int(counts.max(initial=0)) * len(counts) >= 1 << 63 and sum(counts.tolist()) >= 1 << 63:
            return None
        edges = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=edges[1:])
        return edges

    @property
    def nbytes(self) -> FloatArray:
        """The length of each shard, NaN where it is not stated."""
        return np.where(self.lengths < 0, np.nan, self.lengths)

    @property
    def remote_nbytes(self) -> FloatArray:
        """The length of each remote shard, NaN where it is not stated, 0 for local ones."""
        is_local = np.array([common.is_local for common in self.commons], bool)
        return np.where(is_local[self.common_of], 0, self.nbytes)

    @property
    def has_remote(self) -> bool:
        """Whether any shard is remote."""
        return not all(common.is_local for common in self.commons)

    def dataset_names(self, default: _T) -> tuple[list[str | _T], IntArray]:
        """Return the datasets of shards in their order, and the number of that of each shard.

        Args:
            default: The name of shards that state none.
        """
        _, firsts = np.unique(self.common_of, return_index=True)
        numbers: dict[str | _T, int] = {}
        number_of = np.zeros(len(self.commons), np.int64)
        for code in self.common_of[np.sort(firsts)].tolist():
            name = self.commons[code].dataset or default
            number_of[code] = numbers.setdefault(name, len(numbers))
        return list(numbers), number_of[self.common_of]

    def with_defaults(self, dataset: str | None, key_split: KeySplit | None) -> ShardColumns:
        """Return these shards with a dataset and a rule for those that state none."""
        commons = tuple(
            each._replace(dataset=each.dataset or dataset, key_split=each.key_split or key_split)
            for each in self.commons
        )
        return replace(self, commons=commons)


def columns_of(shards: Iterable[ShardSpec]) -> ShardColumns:
    """Return shards as columns.

    Raises:
        SpecError: A shard has a value that no document can have.
    """
    if isinstance(shards, ShardColumns):
        return shards
    left, parts = iter(shards), []
    while block := list(islice(left, _BLOCK_LENGTH)):
        values = zip(*map(attrgetter(*ShardSpec.__slots__), block), strict=True)
        names, counts, lengths, md5sums, digests, datasets, rules, indexes, extras = values
        rests = [
            {key: value for key, value in zip(_RESTS, rest, strict=True) if value not in (None, {})}
            for rest in zip(md5sums, indexes, map(dict, extras), strict=True)
        ]
        counted, measured = _numbers(counts), _numbers(lengths)
        if counted is None or measured is None:
            raise SpecError(
                f"{urls.redact(names[0])} to {urls.redact(names[-1])}: expected numbers of samples "
                "and bytes from 0 to 2**63 - 1, found others"
            )
        shared = list(zip(datasets, rules, strict=True))
        parts.append(_block(names, counted, measured, digests, shared, rests))
    return joined(parts)


def named(names: Sequence[str]) -> ShardColumns:
    """Return shards of which nothing but the URL is known.

    Raises:
        SpecError: A name has a NUL in it.
    """
    if any("\0" in name for name in names):
        return columns_of(map(ShardSpec, names))
    parts = []
    for start in range(0, len(names), _BLOCK_LENGTH):
        block = names[start : start + _BLOCK_LENGTH]
        absent = np.full(len(block), -1, np.int8)
        parts.append(_block(block, absent, absent, [None] * len(block), [(None, None)]))
    return joined(parts)


_RESTS: Final = ("md5sum", "index", "extras")


def listed(
    entries: Sequence[Any], label: str, join: Callable[[str], str], key_split: KeySplit | None
) -> ShardColumns:
    """Return the shards of a shardlist.

    Args:
        entries: Its entries.
        label: The document, in messages.
        join: Resolves a reference.
        key_split: The rule of shards that state none.

    Raises:
        SpecError: An entry is malformed, or names what it must not name.
    """
    parts = []
    for start in range(0, len(entries), _BLOCK_LENGTH):
        block = entries[start : start + _BLOCK_LENGTH]
        # One by one, entries take three times as long.
        parts.append(
            _plain_block(block, join, key_split)
            or columns_of(
                shard_of(entry, f"{label}: shardlist[{number}]", join, key_split)
                for number, entry in enumerate(block, start)
            )
        )
    return joined(parts)


_PLAIN_KEYS: Final = ("url", "nsamples", "filesize", "sha256")


def _plain_block(
    entries: Sequence[Any], join: Callable[[str], str], key_split: KeySplit | None
) -> ShardColumns | None:
    """Return the shards of plain names with the usual values alone; None for others."""
    if {*map(type, entries)} != {dict} or {*map(len, entries)} != {len(entries[0])}:
        return None
    try:
        columns = {key: [*map(itemgetter(key), entries)] for key in entries[0]}
    except KeyError:
        return None
    absent = [None] * len(entries)
    names, counts, lengths, digests = (columns.pop(key, absent) for key in _PLAIN_KEYS)
    if columns or {*map(type, names)} != {str} or not {*map(type, digests)} <= {str, NoneType}:
        return None
    if not {*map(type, counts), *map(type, lengths)} <= {int, NoneType}:
        return None
    counted, measured = _numbers(counts), _numbers(lengths)
    # So are all names with slashes between them, if each is one.
    if counted is None or measured is None or not urls.is_plain("/".join(names)):
        return None
    start = _common_prefix([join("a"), join("b")])
    end = join("a")[len(start) + 1 :]
    return _block(names, counted, measured, digests, [(None, key_split)], around=(start, end))


def _block(
    names: Sequence[str],
    counts: Numbers,
    lengths: Numbers,
    digests: Sequence[str | None],
    shared: Sequence[tuple[str | None, KeySplit | None]],
    rests: Sequence[dict[str, Any]] = (),
    around: tuple[str, str] = ("", ""),
) -> ShardColumns:
    """Return the columns of some shards.

    Args:
        names: Their URLs, or the parts of them that differ.
        counts: Their numbers of samples, as a column.
        lengths: Their lengths, as a column.
        digests: Their SHA-256 digests.
        shared: The dataset and the rule of each; one item if all have the same.
        rests: Other fields of each; empty if none has any.
        around: What is before and after each name in its URL.
    """
    start = _common_prefix(names)
    end = _common_end(names[0][len(start) :], names[-1][len(start) :])
    if not all(name.endswith(end, len(start)) for name in names):
        end = ""
    middles = [name[len(start) : len(name) - len(end)] for name in names]
    prefix, suffix = around[0] + start, end + around[1]
    # All have the scheme of a prefix that ends it.
    is_alike = prefix.startswith("/") or "://" in prefix
    are_local = [urls.is_local(url) for url in ([prefix] if is_alike else names)]
    num_keys = max(len(are_local), len(shared))
    keys = list(zip(islice(cycle(are_local), num_keys), cycle(shared), strict=False))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    codes = np.array([numbers[key] for key in keys]).repeat(len(names) // num_keys)
    stored, others = _digest_bytes(digests)
    if rests or others:
        rests = [dict(rest) for rest in rests or [{}] * len(names)]
        for number, digest in others.items():
            rests[number]["sha256"] = digest
        middles = list(map(_with_rest, middles, rests, names))
    text = "".join(middles).encode("utf-8", "surrogatepass")
    sizes: Iterable[int] = map(len, middles)
    if not text.isascii():
        sizes = (len(middle.encode("utf-8", "surrogatepass")) for middle in middles)
    return ShardColumns(
        tuple(Common(prefix, suffix, is_local, *both) for is_local, both in numbers),
        _narrow(codes),
        _narrow(np.array([*accumulate(sizes, initial=0)])),
        text,
        counts,
        lengths,
        stored,
    )


def _common_prefix(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    differ = (n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return first[: next(differ, len(first))]


def _common_end(one: str, other: str) -> str:
    """Return what two texts end with, from a point on: an extension, and maybe a query."""
    end = _common_prefix([one[::-1], other[::-1]])[::-1]
    return end[end.find(".") :] if "." in end else ""


def _digest_bytes(digests: Sequence[str | None]) -> tuple[bytes, dict[int, str]]:
    """Return the bytes of digests, empty if none is stated, and texts that are none, by number."""
    some_digests = [digest for digest in digests if digest is not None]
    if not some_digests:
        return b"", {}
    is_usual = len(some_digests) == len(digests) and {*map(len, some_digests)} == {_NUM_DIGITS}
    if is_usual and _NO_DIGEST.hex() not in some_digests:
        text = "".join(some_digests)
        with suppress(ValueError):
            if (data := bytes.fromhex(text)).hex() == text:
                return data, {}
    others: dict[int, str] = {}
    found = [_NO_DIGEST] * len(digests)
    for number, digest in enumerate(digests):
        if digest is not None and _SHA256.fullmatch(digest) and digest != _NO_DIGEST.hex():
            found[number] = bytes.fromhex(digest)
        elif digest is not None:
            others[number] = digest
    return b"".join(found), others


def _with_rest(name: str, rest: Mapping[str, Any], url: str) -> str:
    """Return the text of a shard: the middle of its URL, and other fields."""
    if "\0" in url:
        raise SpecError(f"{urls.redact(url)!r}: expected a path or URL, found a NUL in it")
    if not rest:
        return name
    try:
        return f"{name}\0{json.dumps(rest, separators=(',', ':'), default=operator.index)}"
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{urls.redact(url)}: expected extras that JSON can hold, found others ({error})"
        ) from error


def _numbers(values: Sequence[int | None]) -> Numbers | None:
    """Return numbers that shards state as a column; None if one is negative or too large."""
    is_stated = None
    if None in values:
        is_stated = np.array([value is not None for value in values])
        values = [0 if value is None else value for value in values]
    try:
        column = np.array(values, np.int64)
    except OverflowError:
        return None
    if column.min(initial=0) < 0:
        return None
    return _narrow(column if is_stated is None else np.where(is_stated, column, -1))


def _narrow(values: npt.NDArray[Any]) -> Numbers:
    """Return integers in the smallest type that holds them."""
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    return values.astype(np.min_scalar_type(min(least, ~most)))


def joined(parts: Iterable[Shards]) -> ShardColumns:
    """Return several sequences of shards as one."""
    columns: list[ShardColumns] = []
    # Shards that a caller lists one by one become columns together.
    for are_columns, group in groupby(parts, lambda part: isinstance(part, ShardColumns)):
        found = list(group)
        columns += map(columns_of, found if are_columns else [chain.from_iterable(found)])
    if len(columns) == 1:
        return columns[0]
    commons: dict[Common, int] = {}
    codes, offsets, end = [], [np.zeros(1, np.int64)], 0
    has_sha256 = any(part.sha256 for part in columns)
    for part in columns:
        numbers = [commons.setdefault(common, len(commons)) for common in part.commons]
        codes.append(np.array(numbers, np.int64)[part.common_of])
        offsets.append(part.offsets[1:].astype(np.int64) + end)
        end += len(part.text)
    return ShardColumns(
        tuple(commons),
        _narrow(_concatenated(codes)),
        _narrow(np.concatenate(offsets)),
        b"".join(part.text for part in columns),
        _concatenated([part.counts for part in columns]),
        _concatenated([part.lengths for part in columns]),
        b"".join(part.sha256 or bytes(has_sha256 * 32 * len(part)) for part in columns),
    )


def _concatenated(arrays: Sequence[Numbers]) -> Numbers:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int8)
