"""A field → the samples that have it, a page at a time, forwards and backwards.

Indexes alone answer, no sample is read. A search stops after a number of members, since indexes may
have to be downloaded; the caller continues it from where it stopped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import Final

from wids.looking.field_stats import samples_with_field
from wids.looking.preview import Browsable

_MAX_SEARCHED: Final = 500_000
"""Members that one search goes through."""


def next_with_field(
    dataset: Browsable, starts: Sequence[int], field: str, start: int, count: int
) -> tuple[list[int], int | None]:
    """Return the next samples that have a field, and where to continue; None at the end.

    Args:
        dataset: The dataset, which is not a view.
        starts: The index of the first sample of each shard, and the number of samples.
        field: The name of the field, with the leading dot.
        start: The first index to consider.
        count: Maximum number of samples to return.

    Raises:
        ValueError: The index of a shard is not available.
    """
    found: list[int] = []
    first_shard = max(bisect_left(starts, start + 1) - 1, 0)
    num_searched = 0
    for number in range(first_shard, len(starts) - 1):
        # Checked between shards only: an index that was read is searched to its end, so that a
        # search always makes progress.
        if num_searched > _MAX_SEARCHED:
            return found, starts[number]
        shard_index = dataset.reader.index(number)
        if shard_index is None:
            raise ValueError(f"shard {number} has no index to search; `wids create` makes an index")
        num_searched += len(shard_index.sizes)
        shard_start = starts[number]
        matches = samples_with_field(shard_index, field, max(start - shard_start, 0))
        found += [shard_start + match for match in islice(matches, count - len(found))]
        if len(found) == count:
            return found, found[-1] + 1 if found[-1] + 1 < starts[-1] else None
    return found, None


def previous_start(
    dataset: Browsable, starts: Sequence[int], field: str, start: int, count: int
) -> int:
    """Return where the previous page of samples that have a field starts.

    Arguments are those of `next_with_field`. Where a shard has no index or the search has gone far
    enough, the page starts there and may be shorter.
    """
    found: list[int] = []
    num_searched = 0
    for number in range(bisect_left(starts, start) - 1, -1, -1):
        shard_index = dataset.reader.index(number)
        if shard_index is None or num_searched > _MAX_SEARCHED:
            return found[0] if found else starts[number + 1]
        num_searched += len(shard_index.sizes)
        shard_start = starts[number]
        matches = (shard_start + match for match in samples_with_field(shard_index, field))
        found = [*(match for match in matches if match < start), *found]
        if len(found) >= count:
            return found[-count]
    return 0
