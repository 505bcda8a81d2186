"""Compute how many bytes have to be downloaded for some shards, before the download starts.

Lengths come from the spec, or from the servers, without reading a shard. Decision 0025 has the
reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wids.errors import SpecError
from wids.shards.specs.model import ShardSpec
from wids.storage.fetch import Fetcher
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
