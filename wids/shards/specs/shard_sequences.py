"""Provide the shards of a spec as a sequence whose items are made when they are asked for.

A short shardlist is a tuple. A long one is `LazyShards` over a mapped file (`spec_tables`), and a
dataset that consists of others may be `JoinedShards`. What a dataset asks of all shards at once it
asks the functions here, which read columns instead of making an object for each shard.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

from wids.shards.specs.model import ShardSpec, shard_spec
from wids.shards.tars.headers import KeySplit
from wids.storage.arrays import FloatArray, IntArray
from wids.storage.transport import urls

Shards: TypeAlias = Sequence[ShardSpec]

_T = TypeVar("_T")


class LazyShards(Sequence[ShardSpec]):
    """A sequence of shards that makes an item when it is asked for.

    It is equal to another sequence with equal items.
    """

    dataset: str | None = None
    """The dataset of shards that state none."""

    @property
    def are_remote(self) -> frozenset[bool]:
        """Whether shards are remote: one value if all are, or none is."""
        raise NotImplementedError

    @property
    def edges(self) -> IntArray | None:
        """Where shards begin, and the end of the last one; None if a count is not stated."""
        raise NotImplementedError

    @property
    def nbytes(self) -> FloatArray:
        """The length of each shard, NaN where it is not stated."""
        raise NotImplementedError

    def has_key(self, key: str) -> bool:
        """Whether any entry may state a key."""
        raise NotImplementedError

    def with_defaults(self, dataset: str | None, key_split: KeySplit | None) -> LazyShards:
        """Return these shards with a dataset and a rule for those that state none."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, tuple | LazyShards):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of a tuple of shards, which have dicts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"


class JoinedShards(LazyShards):
    """The shards of several sequences, one after the other.

    Args:
        parts: The sequences.
    """

    def __init__(self, parts: Sequence[Shards]) -> None:
        self.parts = tuple(parts)
        self._stops = list(accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self._stops[-1]

    def __iter__(self) -> Iterator[ShardSpec]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> ShardSpec: ...
    @overload
    def __getitem__(self, index: slice) -> Shards: ...
    def __getitem__(self, index: int | slice) -> ShardSpec | Shards:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(len(self))[index])
        number = range(len(self))[index]
        part = bisect_right(self._stops, number)
        return self.parts[part][number - self._stops[part]]

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedShards, (self.parts,)


def joined(parts: Iterable[Shards]) -> Shards:
    """Return several sequences of shards as one: a tuple, unless there is a table among them."""
    flat = [part for part in parts if len(part)]
    flat = [piece for part in flat for piece in _pieces(part)]
    if len(flat) == 1:
        return flat[0] if isinstance(flat[0], LazyShards) else tuple(flat[0])
    if not any(isinstance(part, LazyShards) for part in flat):
        return tuple(chain.from_iterable(flat))
    return JoinedShards([p if isinstance(p, LazyShards) else tuple(p) for p in flat])


def with_defaults(shards: Shards, dataset: str | None, key_split: KeySplit | None) -> Shards:
    """Return shards with a dataset and a rule for those that state none."""
    if isinstance(shards, JoinedShards):
        return joined(with_defaults(part, dataset, key_split) for part in shards.parts)
    if isinstance(shards, LazyShards):
        return shards.with_defaults(dataset, key_split)
    return tuple(
        shard_spec(*first, stated or dataset, rule or key_split, index, extras)
        for *first, stated, rule, index, extras in map(attrgetter(*ShardSpec.__slots__), shards)
    )


class StatedCounts:
    """The number of samples of each shard, where a table states all of them.

    Args:
        shards: The shards.
        edges: Their `edges_of`.
    """

    def __init__(self, shards: Shards, edges: IntArray) -> None:
        self._shards, self.edges = shards, edges

    def __getitem__(self, number: int) -> int:
        return int(self.edges[number + 1]) - int(self.edges[number])

    def __reduce__(self) -> tuple[Any, ...]:  # the edges are those of the table
        return counts_of, (self._shards,)


def counts_of(shards: Shards) -> list[int | None] | StatedCounts:
    """Return the stated number of samples of each shard; a list to complete, or all of them."""
    edges = edges_of(shards) if isinstance(shards, LazyShards) else None
    if edges is None:
        return [shard.num_samples for shard in shards]
    return StatedCounts(shards, edges)


def edges_of(shards: Shards) -> IntArray | None:
    """Return where shards begin, and the end of the last one; None if a count is not stated.

    Of a whole table these are its mapped bytes, which processes share.
    """
    parts = []
    for part in _pieces(shards):
        if isinstance(part, LazyShards):
            if (edges := part.edges) is None:
                return None
            parts.append(edges)
            continue
        counts = [shard.num_samples for shard in part]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts) or sum(known) >= 1 << 63:
            return None
        parts.append(np.concatenate(([0], np.cumsum(np.array(known, np.int64)))))
    if len(parts) == 1:
        return parts[0]
    if sum(int(edges[-1]) for edges in parts) >= 1 << 63:
        return None
    firsts = np.cumsum([0, *(int(edges[-1]) for edges in parts)])
    moved = (edges[1:] + first for edges, first in zip(parts, firsts[:-1], strict=True))
    return np.concatenate([[0], *moved])


def nbytes_of(shards: Shards) -> FloatArray:
    """Return the length of each shard, NaN where it is not stated."""
    parts = []
    for part in _pieces(shards):
        if isinstance(part, LazyShards):
            parts.append(part.nbytes)
        else:
            parts.append(
                np.array([np.nan if shard.nbytes is None else shard.nbytes for shard in part])
            )
    return np.concatenate(parts)


def remote_nbytes_of(shards: Shards) -> FloatArray:
    """Return the length of each remote shard, NaN where it is not stated, 0 for local ones."""
    parts = []
    for part in _pieces(shards):
        if isinstance(part, LazyShards) and len(part.are_remote) == 1:
            parts.append(nbytes_of(part) if True in part.are_remote else np.zeros(len(part)))
        else:
            is_local = np.array([urls.is_local(shard.url) for shard in part], bool)
            parts.append(np.where(is_local, 0, nbytes_of(part)))
    return np.concatenate(parts)


def dataset_names(shards: Shards, default: _T) -> tuple[list[str | _T], IntArray]:
    """Return the datasets of shards in their order, and the number of the dataset of each shard.

    Args:
        shards: The shards.
        default: The name of shards that state none.
    """
    numbers: dict[str | _T, int] = {}
    parts = []
    for part in _pieces(shards):
        if isinstance(part, LazyShards) and not part.has_key("dataset"):
            number = numbers.setdefault(part.dataset or default, len(numbers))
            parts.append(np.full(len(part), number))
        else:
            parts.append(
                np.array([numbers.setdefault(s.dataset or default, len(numbers)) for s in part])
            )
    return list(numbers), np.concatenate(parts)


def has_remote(shards: Shards) -> bool:
    """Whether any shard is remote."""
    return any(
        True in part.are_remote
        if isinstance(part, LazyShards)
        # The first test decides for nearly all paths, and there may be a hundred thousand.
        else any(":" in shard.url and not urls.is_local(shard.url) for shard in part)
        for part in _pieces(shards)
    )


def _pieces(shards: Shards) -> Sequence[Shards]:
    return shards.parts if isinstance(shards, JoinedShards) else (shards,)
