"""A pack and its shards → the keys that occur in several shards.

A lookup finds only the first sample of such a key. The hashes in a pack find the candidates without
reading an index, and the keys themselves are compared for those that are named. Knows nothing of
how the shards were read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from wids.errors import printable
from wids.specs.model import ShardSpec
from wids.tars.archive import IntArray
from wids.tars.pack import LocalPack
from wids.transport import urls

_MAX_NAMED: Final = 3


@dataclass(frozen=True)
class RepeatedKeys:
    """Keys that occur in several shards of a dataset. ``str`` names up to three of them.

    Attributes:
        num_keys: How many keys.
        named: The first of them, each with two of its shards.
    """

    num_keys: int
    named: tuple[tuple[str, ShardSpec, ShardSpec], ...]

    def __str__(self) -> str:
        what = "key occurs" if self.num_keys == 1 else "keys occur"
        named = [f'"{key}" in {_names(first, second)}' for key, first, second in self.named]
        more = ["…"] if self.num_keys > len(named) else []
        return printable(
            f"{self.num_keys} {what} in several shards: {', '.join(named + more)}; a lookup finds "
            "the first sample only"
        )


def find_repeated_keys(pack: LocalPack, shards: Sequence[ShardSpec]) -> RepeatedKeys | None:
    """Return the keys that occur in several shards of a pack, or None if there are none.

    What shards of different datasets have in common does not count, nor what a shard that is listed
    twice has in common with itself.

    Args:
        pack: The pack.
        shards: The shards that were packed, in order.
    """
    hashes, positions = pack.repeated_hashes()
    if not len(hashes):
        return None
    ends = np.cumsum(pack.num_samples.astype(np.int64))
    numbers = np.searchsorted(ends, positions, side="right")
    datasets = _numbered(shard.dataset for shard in shards)[numbers]
    tars = _numbered(shard.url for shard in shards)[numbers]
    order = np.lexsort((positions, datasets, hashes))
    groups = _groups_with_two(hashes[order], datasets[order], tars[order])
    # By their first sample, so that what is named is what a reader meets first.
    groups = groups[np.argsort(positions[order][groups[:, 0]])]

    def samples(group: IntArray) -> Iterator[tuple[str, ShardSpec]]:
        for row in order[slice(*group)].tolist():
            number, position = int(numbers[row]), int(positions[row])
            local_index = position - int(ends[number]) + int(pack.num_samples[number])
            yield _key(pack, number, local_index, shards[number]), shards[number]

    found = (_first_repeated(samples(group)) for group in groups)
    named = tuple(islice((pair for pair in found if pair is not None), _MAX_NAMED))
    return RepeatedKeys(len(groups), named) if named else None


def _numbered(items: Iterable[str | None]) -> IntArray:
    """Return a number for each item, equal for equal items."""
    numbers: dict[str | None, int] = {}
    return np.array([numbers.setdefault(item, len(numbers)) for item in items], np.int64)


def _groups_with_two(hashes: IntArray, datasets: IntArray, tars: IntArray) -> IntArray:
    """Return start and stop of each run of one hash and one dataset with two or more tars."""
    is_first = np.ones(len(hashes), bool)
    is_first[1:] = (hashes[1:] != hashes[:-1]) | (datasets[1:] != datasets[:-1])
    starts = np.flatnonzero(is_first)
    stops = np.append(starts[1:], len(hashes))
    is_other_tar = tars != tars[starts][np.cumsum(is_first) - 1]
    return np.stack([starts, stops], axis=1)[np.logical_or.reduceat(is_other_tar, starts)]


def _key(pack: LocalPack, number: int, local_index: int, shard: ShardSpec) -> str:
    """Return the key of a sample; one that nothing equals if its index is damaged."""
    shard_index = pack.index(number, pack.tar_nbytes(number), shard.key_split or "first")
    return f"\0{number} {local_index}" if shard_index is None else shard_index.key(local_index)


def _first_repeated(
    samples: Iterable[tuple[str, ShardSpec]],
) -> tuple[str, ShardSpec, ShardSpec] | None:
    """Return the first key that two shards have, and the two: equal hashes are not equal keys."""
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
