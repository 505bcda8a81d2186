"""Estimate from the first headers of a remote tar how much reading all of them costs.

Only bytes that were already read are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wids.shards.tars.archive import BLOCK_NBYTES
from wids.shards.tars.header_scan import HeaderScan
from wids.storage.joined_ranges import STEP_NBYTES
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.sparse_file import JUMP_NBYTES, MAX_AHEAD_NBYTES, FileParts


class Cost(NamedTuple):
    """What reading from a server costs.

    Attributes:
        num_requests: Requests.
        nbytes: Bytes.
    """

    num_requests: int = 0
    nbytes: int = 0

    @property
    def weight(self) -> int:
        """Both in one number: a request counts as the bytes that take the same time."""
        return self.num_requests * STEP_NBYTES + self.nbytes

    def __str__(self) -> str:
        return f"{count_text(self.num_requests, 'request')}, {nbytes_text(self.nbytes)}"

    @classmethod
    def of_whole(cls, nbytes: int) -> Cost:
        """Return what reading a file costs if its headers are close together."""
        return cls(-(-nbytes // MAX_AHEAD_NBYTES), nbytes)

    @classmethod
    def total(cls, costs: Iterable[Cost | None]) -> Cost:
        """Return the sum of those costs that are known."""
        known = [cost for cost in costs if cost is not None]
        return cls(sum(cost.num_requests for cost in known), sum(cost.nbytes for cost in known))


def estimate(scan: HeaderScan, parts: FileParts) -> Cost:
    """Estimate what reading all headers of a shard costs, from its first bytes.

    The scan advances over the headers that were already read. Headers within `JUMP_NBYTES` of each
    other cost one request; the rest of the shard is assumed to be like its beginning.
    """
    first_nbytes, num_groups, stop = parts.num_read_nbytes, 0, 0
    while not scan.is_complete and parts.has(scan.position, scan.position + BLOCK_NBYTES):
        if scan.position >= stop:
            num_groups, stop = num_groups + 1, scan.position + JUMP_NBYTES
        scan.step()
    rest_nbytes = max(0, len(parts) - scan.position)
    num_more = -(-rest_nbytes * num_groups // max(scan.position, 1))
    # At most all remaining bytes: headers that are close together are read together.
    return Cost(1 + num_more, first_nbytes + min(num_more * JUMP_NBYTES, rest_nbytes))
