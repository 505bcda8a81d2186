"""Read the samples of a batch: those of remote shards by range, and all of them together.

First the indexes of those shards that are not open, then all ranges, are requested at once, so that
a batch takes two round trips, whatever the number of its shards and samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from wids.errors import WidsError
from wids.shards.policy import Wanted
from wids.shards.reader import Group, ShardReader
from wids.shards.tars.raw_samples import ReadableShard
from wids.storage.arrays import IntArray
from wids.storage.ranges import Arrived, read_all
from wids.storage.reading_threads import in_threads

if TYPE_CHECKING:
    from wids.shards.remote_shard import RemoteShard

OpenShard: TypeAlias = Callable[[int, Wanted], ReadableShard]
"""Returns an open shard by its number, as `ShardReader.open` does."""


def read_batch(reader: ShardReader, positions: IntArray) -> tuple[list[Group], OpenShard]:
    """Return the groups of a batch, and what opens the shard of each.

    Samples that are read by range are read here. What is opened for them returns the bytes that
    arrived, or raises the error of their request; nothing else can be read of it.
    """
    groups = list(reader.groups(positions))
    wanted = {n: local_indices for n, _, local_indices in groups if reader.may_range(n)}
    if not wanted:
        return groups, reader.open
    received = _read_together(reader, wanted)

    def open_shard(number: int, what: Wanted) -> ReadableShard:
        shard = received.get(number)
        if isinstance(shard, WidsError):
            raise shard
        if shard is not None:
            return shard
        # What ranges were to give, and did not, is fetched.
        return reader.open(number, Wanted.MOST if number in wanted else what)

    return groups, open_shard


def _read_together(
    reader: ShardReader, wanted: Mapping[int, Sequence[int]]
) -> dict[int, RemoteShard | WidsError]:
    """Read samples of remote shards by range, where that is better than fetching the shards.

    Args:
        reader: The shards.
        wanted: The samples to read, by the number of their shard.

    Returns:
        The shards that were read, by number, or why they could not be opened.
    """
    from wids.shards.remote_shard import Received, RemoteShard  # only remote shards need it

    def opened(number: int) -> RemoteShard | WidsError | None:
        try:
            if reader.peek(number) is None and not reader.may_range(number, supposes_index=False):
                return None
            shard = reader.open(number, Wanted.SAMPLES)
        except WidsError as error:  # concerns this shard alone
            return error
        return shard if isinstance(shard, RemoteShard) else None

    # No thread for those that need no request.
    others = [number for number in wanted if reader.peek(number) is None]
    answers = in_threads([partial(opened, number) for number in others], "wids-indexes")
    shards = dict(zip(others, answers, strict=True))
    found: dict[int, RemoteShard | WidsError] = {}
    requested: list[tuple[RemoteShard, Received, int]] = []
    for number in wanted:
        shard = shards[number] if number in shards else opened(number)
        if shard is None:
            continue
        if not isinstance(shard, WidsError):
            try:
                received = Received(shard.parts(wanted[number]))
                with shard.watch():  # asks nothing of a broken shard
                    is_taken = shard.takes_all(received.parts)
            except WidsError as error:
                shard = error
            else:
                if not is_taken:
                    continue
                requested += [(shard, received, at) for at in range(len(received.parts))]
                shard = shard.with_received(received)
        found[number] = shard

    def use(place: int, arrived: Arrived) -> None:
        shard, received, number = requested[place]
        try:
            with shard.watch():
                received.take(number, arrived)
        except WidsError as error:
            received.note(number, error)

    read_all([received.parts[number][:3] for _, received, number in requested], use)
    return found
