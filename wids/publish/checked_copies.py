"""Compare the copies of a dataset in a cache folder with the spec and their checksums.

With a share, only drawn samples are read, so a large cache is checked in little time: a disk that
damages files is noticed after a few of them. Nothing is fetched or repaired.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from wids.errors import FetchError, ShardFormatError
from wids.publish.problems import Problem, problem_of
from wids.publish.verification import verify_spec
from wids.shards.indexes import index_file
from wids.shards.shard_facts import remote_file
from wids.shards.specs.model import DatasetSpec
from wids.shards.tars.shard import Shard
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
            count, found = _check_copy(path, index_path, 1.0 if share is None else share)
            num_samples, problems = num_samples + count, problems + found
    num_copies = sum(path is not None for path in copies.values())
    return CheckedCopies(num_copies, num_samples, problems)


def parse_share(text: str, name: str) -> float:
    """Return the share that ``"5%"`` or ``"0.05"`` stands for.

    Args:
        text: The share.
        name: How messages name the option.

    Raises:
        ValueError: It is no share, or not more than 0 and at most 1.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{name}: expected a share such as 5%, found {text!r}")
    return share


def _check_copy(path: str, index_path: str, share: float) -> tuple[int, list[Problem]]:
    """Compare some samples of a copy with the checksums in its index, even if it was modified.

    Args:
        path: The copy, as the cache fetched it.
        index_path: Its index in the cache.
        share: Part of the samples to read, more than 0 and at most 1; at least one is read.

    Returns:
        How many samples were compared, 0 if the copy has no index with checksums; and a problem for
        each damaged one.
    """
    recorded = index_file.load_recorded(index_path)
    if recorded is None or not len(recorded[0].payload_crcs):
        return 0, []
    shard_index, identity = recorded
    problems = []
    try:
        shard = Shard(path, raw="view", find_index=lambda *_: shard_index)
    except (FetchError, ShardFormatError) as error:
        return 0, [problem_of(path, error)]
    with shard:
        if shard.nbytes != identity.nbytes:
            text = f"expected {identity.nbytes} bytes as when it was fetched, found {shard.nbytes}"
            return 0, [Problem(path, text)]
        # Other samples each time, so that repeated checks reach all of them.
        count = min(len(shard), max(1, round(share * len(shard))))
        draw = random.sample(range(len(shard)), count)
        for local_index in sorted(draw):  # ascending, as a disk reads fastest
            try:
                shard.read(local_index, verify=True)
            except ShardFormatError as error:
                problems.append(problem_of(path, error))
    return len(draw), problems
