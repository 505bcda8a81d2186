"""Describe remote shards by their headers alone, where that costs less than reading all bytes.

A tar is a chain: each header says where the next one is. Where members are large, a request for
each header costs less than the body. The first megabyte of a shard decides (INDEX-21): it contains
all of a small shard, or shows how far apart its headers are. `new_spec` reads the other shards
whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from wids.errors import MismatchError
from wids.publish.describe import ShardRecord, record_of
from wids.publish.journal import Task
from wids.publish.results import results_of
from wids.shards.download_cost import DownloadCost
from wids.shards.index_cost import Cost, estimate
from wids.shards.tars.header_scan import HeaderScan
from wids.shards.tars.index import Repeated, index_tar
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import ReadingThreads
from wids.storage.sizes import count_text
from wids.storage.sparse_file import ENDLESS_NBYTES, open_parts
from wids.storage.transport import urls
from wids.storage.transport.retry import check_waits

FIRST_NBYTES: Final = 1 << 20
"""Bytes that decide how to read the rest; a shard of at most this length needs no more."""

_NUM_THREADS: Final = 16
"""Shards at a time; reading headers mostly waits for a server."""

_KEEP_NBYTES: Final = 4 << 20  # no byte is needed twice


@dataclass(frozen=True)
class ShardCost:
    """What reading one shard costs in each way.

    Attributes:
        url: The shard.
        way: How its index is made: by its ``"headers"``; from its ``"start"``, which is all of it;
            or from the ``"whole"`` shard, which was not read yet.
        headers: What reading its headers cost, or would cost; None if its server sends whole files
            only.
        whole: What reading all of it costs; None if its length is unknown.
    """

    url: str
    way: Literal["headers", "start", "whole"]
    headers: Cost | None
    whole: Cost | None


@dataclass(frozen=True)
class IndexingCost:
    """The cost of reading remote shards to describe them; ``str`` states it, with alternatives.

    Attributes:
        shards: The cost of each shard.
    """

    shards: tuple[ShardCost, ...]

    @property
    def unread(self) -> DownloadCost:
        """What remains to be downloaded: the shards that have to be read whole."""
        whole = {cost.url: cost.whole for cost in self.shards if cost.way == "whole"}
        return DownloadCost({url: cost and cost.nbytes for url, cost in whole.items()})

    def __str__(self) -> str:
        texts = []
        for way, text in (
            ("headers", "{} indexed by headers: {} (whole: {}); no digests"),
            ("start", "{} read at once: {}"),
        ):
            some = [cost for cost in self.shards if cost.way == way]
            if some:
                spent = Cost.total(cost.headers or cost.whole for cost in some)
                whole = Cost.total(cost.whole for cost in some)
                texts.append(text.format(count_text(len(some), "remote shard"), spent, whole))
        for has_ranges in (True, False):
            texts += self._whole_text(has_ranges=has_ranges)
        return "; ".join(texts)

    def _whole_text(self, *, has_ranges: bool) -> list[str]:
        """Return the text on shards that are read whole, as a list of at most one."""
        whole = [cost for cost in self.shards if cost.way == "whole"]
        some = [cost for cost in whole if (cost.headers is not None) == has_ranges]
        if not some:
            return []
        num_unknown = sum(not cost.whole for cost in some)
        unknown = f" and {num_unknown:,} of unknown length" if num_unknown else ""
        expected = Cost.total(cost.headers for cost in some)
        other = f"by headers: about {expected}" if has_ranges else "no byte ranges"
        shards, total = count_text(len(some), "remote shard"), Cost.total(c.whole for c in some)
        text = f"{shards} to be read whole: {total}"
        return [f"{text}{unknown} ({other})"]


Attempt: TypeAlias = "tuple[ShardRecord | None, ShardCost]"
"""The description of a shard, None if it has to be read whole, and its cost."""


def describe_by_headers(
    fetcher: Fetcher, tasks: Sequence[Task], repeated: Repeated = "error"
) -> Generator[Attempt, None, None]:
    """Describe remote shards by their headers where that costs less, several at a time.

    Yields:
        The description and the cost of each shard, as they finish.

    Raises:
        FetchError: A shard cannot be read.
        ShardFormatError: A shard is not a complete, plain tar.
        MismatchError: A shard was replaced repeatedly while it was read.
    """
    attempt = partial(_retried, fetcher, repeated)
    with (
        ReadingThreads(_NUM_THREADS, "wids-headers") as threads,
        closing(results_of(threads, attempt, tasks, lambda task: urls.redact(task[0]))) as results,
    ):
        for _, found in results:
            yield found


def first_look(cost: DownloadCost) -> DownloadCost:
    """Return the cost of reading the first megabyte of each shard, from that of whole shards."""
    lengths = cost.nbytes_of.items()
    return DownloadCost({url: nbytes and min(nbytes, FIRST_NBYTES) for url, nbytes in lengths})


def can_have_ranges(url: str) -> bool:
    """Whether it makes sense to ask for parts of a URL."""
    return not urls.is_local(url) and urls.scheme(url) != "pipe"


def _retried(fetcher: Fetcher, repeated: Repeated, task: Task) -> Attempt:
    try:
        return _attempt(fetcher, repeated, task)
    except MismatchError:
        # CACHE-30: replaced between two requests. All requests now get the new version.
        return _attempt(fetcher, repeated, task)


def _attempt(fetcher: Fetcher, repeated: Repeated, task: Task) -> Attempt:
    """Describe a remote shard by its headers, if that costs less than reading all of it."""
    url, key_split = task
    parts = open_parts(fetcher, url, FIRST_NBYTES, keep_nbytes=_KEEP_NBYTES)
    is_known = parts.nbytes != ENDLESS_NBYTES
    if is_known and parts.has(0, parts.nbytes):
        data = parts[:]
        index = index_tar(data, key_split, urls.redact(url), checksums=True, repeated=repeated)
        record = record_of(url, index, len(data), hashlib.sha256(data).hexdigest())
        return record, ShardCost(url, "start", None, Cost(1, len(data)))
    whole = Cost(2, parts.num_read_nbytes + parts.nbytes) if is_known else None
    if whole is None or not parts.has_ranges:
        return None, ShardCost(url, "whole", None, whole)
    scan = HeaderScan(parts, urls.redact(url))
    expected = estimate(scan, parts)
    if expected.weight > whole.weight:
        return None, ShardCost(url, "whole", expected, whole)
    while not scan.is_complete:
        check_waits()  # after an error, or Ctrl-C, in another thread
        scan.step()
    record = record_of(url, scan.index(scan.members(), key_split, repeated), len(parts), None)
    spent = Cost(parts.num_requests, parts.num_read_nbytes)
    return record, ShardCost(url, "headers", spent, whole)
