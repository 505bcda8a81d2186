"""Make the reader of a spec, after counting the samples of shards that state no number."""

from __future__ import annotations

import numpy as np

from wids.errors import SpecError
from wids.shards.opener import ShardOpener
from wids.shards.read_options import ReadOptions
from wids.shards.reader import ShardReader
from wids.shards.shard_pool import OpenShard, ShardPool, default_size
from wids.shards.specs.model import DatasetSpec
from wids.shards.specs.shard_sequences import StatedCounts
from wids.storage.cache.store import Cache


def counted_shards(
    spec: DatasetSpec,
    store: Cache,
    options: ReadOptions,
    *,
    passes_over: bool = False,
    progress: bool | None = None,
) -> ShardReader:
    """Return the reader of a spec, after counting the shards without a stated number of samples.

    Args:
        spec: The dataset.
        store: Copies of remote files.
        options: How to open shards and read samples.
        passes_over: Whether a shard that is broken has no samples if they have to be counted,
            instead of raising its error.
        progress: Whether to show a bar while shards are counted, as in `progress.Bar`.

    Raises:
        SpecError: The numbers of samples add up to 2**63 or more; or more than a gigabyte would
            have to be downloaded to count them.
        FetchError: A shard that has to be counted cannot be read.
        ShardFormatError: A shard that has to be counted is not a complete, plain tar.
    """
    opener = ShardOpener(spec, store, options)
    if passes_over:
        opener.broken.begin()
    open_shard: OpenShard = opener
    if options.fields:
        from wids.shards.field_check import FieldCheck

        open_shard = FieldCheck(opener, options.fields)
    pool = ShardPool(open_shard, options.lru_size or default_size(), store.share_nbytes)

    def open_length(number: int) -> int:
        # Through the pool, so that the shards of a small dataset stay open.
        return len(pool.get(number, local=options.access != "range"))

    if isinstance(opener.counts, StatedCounts):
        edges = opener.counts.edges
    else:
        counts = [count for count in opener.counts if count is not None]
        if len(counts) < len(spec.shards):
            from wids.shards.counting import count_samples  # 1 ms, with modules that ask servers

            counts = count_samples(opener, opener.counts, open_length, progress)
        if sum(counts) >= 1 << 63:
            raise SpecError(f"{spec.name or 'the spec'}: its counts add up to 2**63 or more")
        edges = np.concatenate(([0], np.cumsum(np.array(counts, np.int64))))
    empty = np.flatnonzero(edges[1:] == edges[:-1])
    if len(empty):
        from wids.shards.counting import check_empty

        broken = opener.broken.numbers
        check_empty(opener, [n for n in empty.tolist() if n not in broken], progress)
    is_table = isinstance(opener.counts, StatedCounts)
    return ShardReader(opener, pool, edges[:0] if is_table else edges)
