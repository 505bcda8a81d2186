"""Choose the shards to fetch before training begins, of a dataset or of the share of one rank.

`wids.shards.fetch_all` fetches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from wids.shards.reader import ShardReader


def rank_shards(dataset: Any, rank: int, num_replicas: int) -> list[int]:
    """Return the numbers of the shards that one rank reads, ascending.

    They are those of a `DistributedChunkedSampler` with its default settings, by which a rank reads
    the same slice of the dataset in every epoch.
    """
    # Imported here: the samplers import torch, which fetching all shards does not need.
    from wids.order import epoch_order
    from wids.order.distributed import DistributedChunkedSampler

    sampler = DistributedChunkedSampler(dataset, num_replicas=num_replicas, rank=rank)
    runs = epoch_order.visits(sampler.settings, sampler.seed, 0)
    return sorted(set(next(islice(runs, rank, None)).tolist()))


def select_missing(
    reader: ShardReader, numbers: Sequence[int], limit_nbytes: int | None
) -> tuple[list[int], int]:
    """Return the shards to fetch, and how many shards the limit leaves out.

    Args:
        reader: The shards of a dataset.
        numbers: The wanted shards, most important first. Local ones count towards the limit.
        limit_nbytes: Maximum length of all these shards in bytes; None for no limit.

    Raises:
        ValueError: There is a limit, and the length of a shard is not known.
    """
    total, missing, num_left_out = 0, [], 0
    for number in numbers:
        nbytes = reader.nbytes(number)
        if limit_nbytes is not None and nbytes is None:
            raise ValueError(
                "limit_nbytes: expected a spec that states the length of each shard, found none "
                f"for shard {number}; `wids create` states it"
            )
        # Local shards count as well, so that a second run with the same limit fetches nothing more.
        total += nbytes or 0
        if limit_nbytes is not None and total > limit_nbytes:
            num_left_out += 1
        elif not reader.is_local(number):
            missing.append(number)
    return missing, num_left_out
