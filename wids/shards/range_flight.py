"""Read what a batch needs of all its remote shards with requests that are sent together.

First the indexes of those shards that are not open, then all ranges, are requested at once, so that
a batch takes two round trips, whatever the number of its shards and samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from wids.errors import WidsError
from wids.shards.remote_shard import Part, Received, RemoteShard
from wids.shards.tars.tar_shard import Span
from wids.storage.ranges import Arrived, read_all
from wids.storage.reading_threads import in_threads


def fly(
    wanted: Mapping[int, Sequence[int]],
    open_ranges: Callable[[int], RemoteShard | None],
    is_open: Callable[[int], bool],
) -> dict[int, RemoteShard | WidsError]:
    """Read samples of remote shards by range, where that is better than fetching the shards.

    Args:
        wanted: The samples to read, by the number of their shard.
        open_ranges: Returns a shard to be read by range, by its number; None for one to fetch.
        is_open: Whether a shard is open already.

    Returns:
        The shards that were read, by number, or why they could not be opened. Reading one of these
        samples returns the bytes that arrived, or raises the error of their request.
    """

    def opened(number: int) -> RemoteShard | WidsError | None:
        try:
            return open_ranges(number)
        except WidsError as error:  # concerns this shard alone
            return error

    # No thread for those that need no request.
    others = [number for number in wanted if not is_open(number)]
    answers = in_threads([partial(opened, number) for number in others], "wids-indexes")
    shards = dict(zip(others, answers, strict=True))
    found: dict[int, RemoteShard | WidsError] = {}
    parts: list[tuple[RemoteShard, int, Part]] = []
    for number in wanted:
        shard = shards[number] if number in shards else opened(number)
        if shard is None:
            continue
        if not isinstance(shard, WidsError):
            try:
                own = shard.parts(wanted[number])
            except WidsError as error:
                shard = error
            else:
                if not shard.takes(sum(part.stop - part.start for part in own)):
                    continue
                parts += [(shard, number, part) for part in own]
        found[number] = shard
    arrived: dict[int, dict[Span, bytes | WidsError]] = {number: {} for number in found}

    def use(at: int, data: Arrived) -> None:
        shard, number, part = parts[at]
        try:
            arrived[number].update(shard.take(part, data))
        except WidsError as error:
            arrived[number].update(dict.fromkeys(part.spans, error))

    read_all([part[:3] for _, _, part in parts], use)
    return {
        number: shard.with_arrived(Received(arrived[number]))
        if isinstance(shard, RemoteShard)
        else shard
        for number, shard in found.items()
    }
