"""Compare the copies of a dataset in a cache folder with the spec and their checksums.

Fetches no shard.
"""

from __future__ import annotations

from dataclasses import dataclass

from wids.publish.problems import Problem
from wids.publish.spot_check import check_copy
from wids.publish.verification import verify_spec
from wids.shards.shard_facts import remote_file
from wids.shards.specs.model import DatasetSpec
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher


@dataclass(frozen=True)
class CheckedCopies:
    """What was compared, and what is wrong.

    Attributes:
        num_copies: How many shards have a copy.
        num_samples: Samples that were compared with the checksums in the index of their copy.
        problems: What is damaged.
    """

    num_copies: int
    num_samples: int
    problems: list[Problem]


def check_copies(spec: DatasetSpec, folder: str, share: float | None) -> CheckedCopies:
    """Compare the copies of a dataset with the spec and their checksums.

    Args:
        spec: The dataset.
        folder: The cache folder.
        share: Part of the samples to compare with checksums; None to read all bytes, and compare
            them with the digests that the spec states, or else with the checksums.
    """
    cache = Cache(folder, Fetcher())
    # Looked up once, so that the same copies are checked and counted below, even if another
    # process evicts some meanwhile.
    copies = {shard.url: cache.find(remote_file(shard)) for shard in spec.shards}
    problems: list[Problem] = []
    if share is None:
        problems = verify_spec(spec, locate=lambda shard_spec: copies[shard_spec.url])
    num_samples = 0
    for shard in spec.shards:
        path = copies[shard.url]
        # All bytes were compared with a digest, where one is stated.
        is_compared = share is None and (shard.sha256 or shard.md5sum)
        if path is not None and not is_compared:
            index_path = cache.index_path(remote_file(shard), path)
            count, found = check_copy(path, index_path, 1.0 if share is None else share)
            num_samples, problems = num_samples + count, problems + found
    num_copies = sum(path is not None for path in copies.values())
    return CheckedCopies(num_copies, num_samples, problems)
