"""Estimate what it costs to download some shards, or to read all headers of a remote tar.

Lengths come from the spec, or from the servers, without reading a shard (decision 0025). The
estimate for headers uses only bytes that were already read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from wids.errors import SpecError
from wids.shards.specs.model import ShardSpec
from wids.shards.tars.header_scan import HeaderScan
from wids.shards.tars.headers import BLOCK_NBYTES
from wids.storage.fetch import Fetcher
from wids.storage.file_parts import JUMP_NBYTES, MAX_AHEAD_NBYTES, FileParts
from wids.storage.ranges import STEP_NBYTES
from wids.storage.remote_lengths import known_lengths
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls

LIMIT_NBYTES: Final = 10**9
"""Most bytes to download without the caller's consent."""


@dataclass(frozen=True)
class DownloadCost:
    """What downloading some shards costs.

    Attributes:
        nbytes_of: The length of each shard by its URL; None if the server does not state it.
    """

    nbytes_of: Mapping[str, int | None]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards whose lengths are known."""
        return sum(nbytes or 0 for nbytes in self.nbytes_of.values())

    @property
    def is_large(self) -> bool:
        """Whether the download needs the caller's consent."""
        return self.nbytes > LIMIT_NBYTES

    def __str__(self) -> str:
        num_unknown = sum(nbytes is None for nbytes in self.nbytes_of.values())
        unknown = f" and {num_unknown:,} of unknown length" if num_unknown else ""
        shards = count_text(len(self.nbytes_of), "shard")
        return f"{nbytes_text(self.nbytes)} in {shards}{unknown}"


def download_cost(
    shards: Sequence[ShardSpec],
    fetcher: Fetcher,
    copied: Collection[str] = (),
    *,
    is_tolerant: bool = False,
) -> DownloadCost:
    """Return what downloading shards costs, and ask the servers for lengths that are not stated.

    Args:
        shards: The shards.
        fetcher: Asks for lengths.
        copied: URLs of shards that need not be downloaded.
        is_tolerant: Whether shards may be missing, and servers away.

    Raises:
        NotFoundError: A shard does not exist; the error names those that do.
        FetchError: A server cannot be reached.
    """
    stated = {shard.url: 0 if shard.url in copied else shard.nbytes for shard in shards}
    lengths = known_lengths(fetcher, stated, is_tolerant=is_tolerant)
    return DownloadCost({url: nbytes for url, nbytes in lengths.items() if url not in copied})


def too_large_error(cost: DownloadCost) -> SpecError:
    """Return the error for a dataset that cannot count its samples without a large download."""
    first = urls.redact(next(iter(cost.nbytes_of)))
    return SpecError(
        f"{first}: expected the number of samples of each shard; to count them, {cost} would be "
        f"downloaded now, which is more than {nbytes_text(LIMIT_NBYTES)}. Describe the shards once "
        "with `wids create` or wids.build_spec, and open the spec; or pass "
        'access="download" to download them now'
    )


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
