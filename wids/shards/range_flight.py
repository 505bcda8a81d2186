"""Read what a batch needs of all its remote shards with requests that are sent together.

First the indexes of those shards that are not open, then all ranges, are requested at once, so that
a batch takes two round trips, whatever the number of its shards and samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from wids.errors import WidsError
from wids.shards.opener import ShardOpener
from wids.shards.remote_shard import MemberRange, RemoteShard, Value
from wids.shards.shard_pool import ShardPool
from wids.shards.tars.raw_samples import PooledShard
from wids.storage.ranges import Arrived, read_all
from wids.storage.reading_threads import in_threads

T = TypeVar("T")

ShardsOrErrors: TypeAlias = "dict[int, RemoteShard | WidsError]"
"""Shards by number that have the bytes of samples, or why they could not be opened."""


def fly(
    pool: ShardPool, opener: ShardOpener, wanted: Mapping[int, Sequence[int]]
) -> ShardsOrErrors:
    """Read samples of remote shards by range, where that is better than fetching the shards.

    Args:
        pool: The open shards.
        opener: Opens the others.
        wanted: The samples to read, by the number of their shard.

    Returns:
        The shards that were read. Reading one of these samples returns the bytes that arrived, or
        raises the error of their request.
    """
    found: ShardsOrErrors = {}
    ranges: list[tuple[RemoteShard, int, MemberRange]] = []
    for number, shard in _opened(pool, opener, list(wanted)).items():
        if isinstance(shard, WidsError):
            found[number] = shard
        elif isinstance(shard, RemoteShard):
            try:
                own = shard.ranges(wanted[number])
            except WidsError as error:
                found[number] = error
                continue
            if shard.takes(sum(each.stop - each.start for each in own)):
                found[number] = shard
                ranges += [(shard, number, each) for each in own]
    arrived: dict[int, dict[int, Value]] = {number: {} for number in found}

    def use(place: int, data: Arrived) -> None:
        shard, number, each = ranges[place]
        try:
            arrived[number].update(shard.members_of(each, data))
        except WidsError as error:
            arrived[number].update(dict.fromkeys(each.members, error))

    read_all([shard.to_read(each) for shard, _, each in ranges], use)
    return {
        number: shard.with_values(arrived[number]) if isinstance(shard, RemoteShard) else shard
        for number, shard in found.items()
    }


def _opened(
    pool: ShardPool, opener: ShardOpener, numbers: Sequence[int]
) -> dict[int, PooledShard | WidsError | None]:
    """Return the open shards, the error of each that cannot be opened, or None for one to fetch."""

    def open_by_range(number: int) -> PooledShard | None:
        # Without an index, it would be fetched.
        is_known = opener.facts.options.access == "range" or opener.has_index(number)
        return pool.get(number, local=False) if is_known else None

    is_open = [pool.peek(number) is not None for number in numbers]
    tasks = [_caught(partial(open_by_range, number)) for number in numbers]
    # No thread for those that need none.
    requests = [task for task, done in zip(tasks, is_open, strict=True) if not done]
    answers = iter(in_threads(requests, "wids-indexes"))
    return {
        number: task() if done else next(answers)
        for number, task, done in zip(numbers, tasks, is_open, strict=True)
    }


def _caught(call: Callable[[], T]) -> Callable[[], T | WidsError]:
    """Return a call that returns errors of wids, each of which concerns one shard alone."""

    def caught() -> T | WidsError:
        try:
            return call()
        except WidsError as error:
            return error

    return caught
