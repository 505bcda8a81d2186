"""Find problems of datasets as a whole, and remark on them, one line each, without reading a shard.

`field_remarks` counts fields: it reads the indexes in sequence, and keeps a few numbers for each
field. `repeated_keys` finds keys that occur in several shards, of which a lookup finds only the
first: the hashes in a dataset index have the candidates, and the keys of those that are named are
compared.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from operator import itemgetter
from typing import Final, Literal, TypeAlias

import numpy as np

from wids.errors import printable
from wids.shards.fields.codecs import BY_EXTENSION, CHOSEN_KINDS
from wids.shards.indexes.dataset_index import LocalDatasetIndex
from wids.shards.specs.model import ShardSpec
from wids.shards.specs.shard_columns import columns_of
from wids.shards.tars.index import ShardIndex
from wids.storage.arrays import IntArray, WordArray
from wids.storage.sizes import count_text, percent_text
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """Something that is wrong, or worth knowing. ``str`` has both parts in one line.

    Attributes:
        shard: Path or URL of the shard, or of the dataset index; the name of the dataset for what
            is in several shards.
        text: What was expected and what was found.
        severity: ``"error"`` for what a reader would notice as wrong; ``"remark"`` for what may be
            as its author wants it, such as a field that only some samples have.
        keys: Those of all samples that are damaged so that a field cannot be decoded.

    Examples:
        >>> import wids
        >>> problem = wids.Problem("a.tar", "the spec says 8 samples, the shard has 10")
        >>> print(problem)
        a.tar: the spec says 8 samples, the shard has 10
    """

    shard: str
    text: str
    severity: Literal["error", "remark"] = "error"
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.shard}: {self.text}" if self.shard else self.text


def problem_of(shard: str, error: Exception) -> Problem:
    """Return an error as a problem of a shard, whose name the error need not repeat."""
    return Problem(shard, str(error).removeprefix(shard).removeprefix(": "))


def log_problem(problem: Problem) -> None:
    """Log a problem as a warning."""
    _logger.warning("%s", printable(str(problem)))


_MAX_FIELDS: Final = 1000
"""Fields of a dataset that are counted; with more, keys have usually been split at a wrong dot."""
_MAX_FIELDS_NAMED: Final = 10
_MAX_ALTERNATIVES: Final = 32
"""Fields of one role that are compared with one another."""

Role = tuple[str, str]
"""What precedes the extension, and the kind of the extension."""


def field_remarks(
    indexes: LocalDatasetIndex, shards: Sequence[ShardSpec], name: str = ""
) -> list[Problem]:
    """Return remarks on the fields of each dataset.

    Args:
        indexes: The indexes of the shards.
        shards: Its shards, in order.
        name: Name of the dataset of shards without one.
    """
    fields: dict[str, _Fields] = {}
    for number, shard in enumerate(shards):
        found = indexes.index(number, indexes.tar_nbytes(number), shard.key_split or "first")
        if found is not None:
            fields.setdefault(shard.dataset or name, _Fields()).add(found)
        indexes.release()
    return [
        Problem(dataset, text, "remark")
        for dataset, counted in fields.items()
        for text in counted.texts()
    ]


class _Fields:
    """Counts of the fields of one dataset."""

    def __init__(self) -> None:
        self._num_samples = 0
        self._counts: Counter[str] = Counter()
        self._together: set[frozenset[str]] = set()
        self._has_more = False

    def add(self, shard_index: ShardIndex) -> None:
        """Count the fields of a shard."""
        self._num_samples += len(shard_index)
        fields = shard_index.fields
        counts = np.bincount(shard_index.field_ids, minlength=len(fields)).tolist()
        roles: dict[Role, list[int]] = {}
        for number, (field, count) in enumerate(zip(fields, counts, strict=True)):
            if field not in self._counts and len(self._counts) >= _MAX_FIELDS:
                self._has_more = True
                return
            self._counts[field] += count
            roles.setdefault(_role(field), []).append(number)
        for numbers in roles.values():
            if len(numbers) > 1:
                self._add_pairs(shard_index, numbers[:_MAX_ALTERNATIVES])

    def _add_pairs(self, shard_index: ShardIndex, numbers: list[int]) -> None:
        """Note which of these fields a sample has together."""
        bits = np.zeros(len(shard_index.fields), np.uint32)
        bits[numbers] = 1 << np.arange(len(numbers), dtype=np.uint32)
        starts = shard_index.member_starts[:-1].astype(np.int64)
        # Each sample has at least one member, so that no range is empty.
        of_samples = np.bitwise_or.reduceat(bits[shard_index.field_ids], starts)
        for found in np.unique(of_samples).tolist():
            names = [shard_index.fields[n] for bit, n in enumerate(numbers) if found >> bit & 1]
            self._together.update(map(frozenset, combinations(names, 2)))

    def texts(self) -> list[str]:
        """Return the remarks."""
        if self._has_more:
            named = ", ".join(list(self._counts)[:3])
            text = f"more than {_MAX_FIELDS:,} different fields, such as {named}"
            return [f'{text}: if keys have dots, split names at the last dot, key_split="last"']
        mixed, partial = [], []
        for group in self._alternatives():
            if len(group) > 1:
                first, *others = group
                most = f"{first} in {count_text(self._counts[first], 'sample')}"
                others = [f"{field} in {self._counts[field]:,}" for field in others]
                mixed.append(f"formats are mixed: {', '.join([most, *others])}")
            count = sum(self._counts[field] for field in group)
            if count < self._num_samples:
                share = percent_text(count, self._num_samples)
                some = f"only {count:,} of {count_text(self._num_samples, 'sample')} ({share})"
                partial.append(f"{some} {'has' if count == 1 else 'have'} {' or '.join(group)}")
        return [*_first(mixed), *_first(partial)]

    def _alternatives(self) -> list[list[str]]:
        """Return groups of fields of one role that never occur together, most frequent first."""
        groups: dict[Role, list[list[str]]] = {}
        for field, _ in self._counts.most_common():
            of_role = groups.setdefault(_role(field), [])
            for group in of_role:
                if not any(frozenset((field, other)) in self._together for other in group):
                    group.append(field)
                    break
            else:
                of_role.append([field])
        return [group for of_role in groups.values() for group in of_role]


def _role(field: str) -> Role:
    """Return the role of a field: ``.JPG`` and ``.png`` are alike, ``.mask.png`` is another."""
    stem, _, extension = field.removesuffix(".gz").rpartition(".")
    codec = BY_EXTENSION.get(extension.lower())
    if codec is not None and codec.kind in CHOSEN_KINDS:
        return stem, codec.kind
    return stem, extension.lower()


def _first(texts: Iterable[str]) -> list[str]:
    """Return the first texts, and how many there are besides."""
    found = list(texts)
    num_more = len(found) - _MAX_FIELDS_NAMED
    more = [f"{num_more:,} more of this kind"] if num_more > 0 else []
    return found[:_MAX_FIELDS_NAMED] + more


_MAX_KEYS_NAMED: Final = 3

Named: TypeAlias = tuple[str, ShardSpec, ShardSpec]
"""A key, and the first two shards that have it."""


def repeated_keys(indexes: LocalDatasetIndex, shards: Sequence[ShardSpec]) -> list[Problem]:
    """Return the keys that occur in several shards, as a list of at most one problem.

    It names the first of them, each with two of its shards. Keys that shards of different datasets
    share do not count, nor do those of a shard that is listed twice.

    Args:
        indexes: The dataset index.
        shards: Its shards, in order.
    """
    ends = np.cumsum(indexes.num_samples.astype(np.int64))
    _, datasets = columns_of(shards).dataset_names(None)
    # Where two tars have one hash, a key of both is not found: one pair of shards in 2**64.
    tars = np.fromiter((hash(shard.url) for shard in shards), np.int64, len(shards))

    def samples(positions: IntArray) -> Iterator[tuple[str, ShardSpec]]:
        numbers = np.searchsorted(ends, positions, side="right")
        starts = ends[numbers] - indexes.num_samples[numbers].astype(np.int64)
        local = (positions - starts).tolist()
        for number, local_index in zip(numbers.tolist(), local, strict=True):
            yield _key(indexes, number, local_index, shards[number]), shards[number]

    num_keys = 0
    named: list[tuple[int, Named]] = []
    for hashes, positions in indexes.repeated_keys():
        numbers = np.searchsorted(ends, positions, side="right")
        order = np.lexsort((positions, datasets[numbers], hashes))
        numbers, in_order = numbers[order], positions[order]
        groups = _groups_with_two(hashes[order], datasets[numbers], tars[numbers])
        num_keys += len(groups)
        # Sorted by first sample, so that the named keys are those that a reader meets first.
        groups = groups[np.argsort(in_order[groups[:, 0]])]
        found = ((int(in_order[a]), _first_repeated(samples(in_order[a:b]))) for a, b in groups)
        first = islice(((at, pair) for at, pair in found if pair is not None), _MAX_KEYS_NAMED)
        named = sorted([*named, *first], key=itemgetter(0))[:_MAX_KEYS_NAMED]
    if not named:
        return []
    what = "key occurs" if num_keys == 1 else "keys occur"
    texts = [f'"{key}" in {_names(first, second)}' for _, (key, first, second) in named]
    more = ["…"] if num_keys > len(named) else []
    text = printable(
        f"{num_keys} {what} in several shards: {', '.join(texts + more)}; a lookup finds the first "
        "sample only"
    )
    return [Problem(urls.redact(named[0][1][2].url), text)]


def _groups_with_two(hashes: WordArray, datasets: IntArray, tars: IntArray) -> IntArray:
    """Return start and stop of each run of one hash and one dataset with two or more tars."""
    is_first = np.ones(len(hashes), bool)
    is_first[1:] = (hashes[1:] != hashes[:-1]) | (datasets[1:] != datasets[:-1])
    starts = np.flatnonzero(is_first)
    stops = np.append(starts[1:], len(hashes))
    is_other_tar = tars != tars[starts][np.cumsum(is_first) - 1]
    return np.stack([starts, stops], axis=1)[np.logical_or.reduceat(is_other_tar, starts)]


def _key(indexes: LocalDatasetIndex, number: int, local_index: int, shard: ShardSpec) -> str:
    """Return the key of a sample; one that equals no other if its index is damaged."""
    shard_index = indexes.index(number, indexes.tar_nbytes(number), shard.key_split or "first")
    return f"\0{number} {local_index}" if shard_index is None else shard_index.key(local_index)


def _first_repeated(samples: Iterable[tuple[str, ShardSpec]]) -> Named | None:
    """Return the first key that two shards share, with both; keys of one hash may differ."""
    first_shards: dict[str, ShardSpec] = {}
    for key, shard in samples:
        first = first_shards.setdefault(key, shard)
        if first.url != shard.url:
            return key, first, shard
    return None


def _names(first: ShardSpec, second: ShardSpec) -> str:
    names = [os.path.basename(urls.path_of(shard.url)) for shard in (first, second)]
    if names[0] == names[1]:
        names = [urls.redact(shard.url) for shard in (first, second)]
    return " and ".join(names)


def dataset_problems(
    indexes: LocalDatasetIndex, shards: Sequence[ShardSpec], name: str = ""
) -> list[Problem]:
    """Return an error for keys that occur in several shards, and remarks on fields.

    Args:
        indexes: The indexes of the shards.
        shards: Its shards, in order.
        name: Name of the dataset.
    """
    return [*repeated_keys(indexes, shards), *field_remarks(indexes, shards, name)]
