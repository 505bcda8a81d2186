"""Find the keys that occur in several shards of a pack.

A lookup finds only the first sample of such a key. The hashes in a pack find the candidates without
reading an index; for those that are named, the keys themselves are compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np

from wids.errors import printable
from wids.publish.problems import Problem
from wids.shards.indexes.pack import LocalPack
from wids.shards.specs.model import ShardSpec
from wids.shards.specs.shard_sequences import dataset_names
from wids.storage.array_types import IntArray, WordArray
from wids.storage.transport import urls

_MAX_NAMED: Final = 3

Named: TypeAlias = tuple[str, ShardSpec, ShardSpec]
"""A key, and the first two shards that have it."""


def repeated_keys(pack: LocalPack, shards: Sequence[ShardSpec]) -> list[Problem]:
    """Return the keys that occur in several shards of a pack, as a list of at most one problem.

    It names the first of them, each with two of its shards. Keys that shards of different datasets
    share do not count, nor do those of a shard that is listed twice.

    Args:
        pack: The pack.
        shards: The shards that were packed, in order.
    """
    ends = np.cumsum(pack.num_samples.astype(np.int64))
    _, datasets = dataset_names(shards, None)
    # Where two tars have one hash, a key of both is not found: one pair of shards in 2**64.
    tars = np.fromiter((hash(shard.url) for shard in shards), np.int64, len(shards))

    def samples(positions: IntArray) -> Iterator[tuple[str, ShardSpec]]:
        numbers = np.searchsorted(ends, positions, side="right")
        starts = ends[numbers] - pack.num_samples[numbers].astype(np.int64)
        for number, local_index in zip(
            numbers.tolist(), (positions - starts).tolist(), strict=True
        ):
            yield _key(pack, number, local_index, shards[number]), shards[number]

    num_keys = 0
    named: list[tuple[int, Named]] = []
    for hashes, positions in pack.repeated_keys():
        numbers = np.searchsorted(ends, positions, side="right")
        order = np.lexsort((positions, datasets[numbers], hashes))
        numbers, in_order = numbers[order], positions[order]
        groups = _groups_with_two(hashes[order], datasets[numbers], tars[numbers])
        num_keys += len(groups)
        # Sorted by first sample, so that the named keys are those that a reader meets first.
        groups = groups[np.argsort(in_order[groups[:, 0]])]
        found = ((int(in_order[a]), _first_repeated(samples(in_order[a:b]))) for a, b in groups)
        first = islice(((at, pair) for at, pair in found if pair is not None), _MAX_NAMED)
        named = sorted([*named, *first], key=itemgetter(0))[:_MAX_NAMED]
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


def _key(pack: LocalPack, number: int, local_index: int, shard: ShardSpec) -> str:
    """Return the key of a sample; one that equals no other if its index is damaged."""
    shard_index = pack.index(number, pack.tar_nbytes(number), shard.key_split or "first")
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
