"""Order samples and cut them into shards.

A pure function of keys, lengths, limits and seed: a sample is never in two shards, and the same
samples make the same shards. Reads nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from wids.publish.new_shard import ShardTask
from wids.publish.packing.file_samples import Generated, Sample, Source
from wids.publish.packing.folder_listing import ListedFile
from wids.publish.tar_writer import finished_nbytes, fits_one_block, header_function
from wids.shards.tars.archive import BLOCK_NBYTES, padded
from wids.shards.tars.member_names import to_bytes


@dataclass(frozen=True)
class PackTask(ShardTask):
    """One shard to write. Its source are the names, lengths and times of files.

    Attributes:
        root: Absolute path of the folder that the files are in.
        samples: Its samples, in order.
    """

    root: str
    samples: tuple[Sample, ...]


def make_task(path: str, root: str, samples: tuple[Sample, ...], nbytes: int) -> PackTask:
    """Return the task for some samples."""
    parts = (
        f"{key}\0{field}\0{source.path}\0{source.nbytes}\0{source.mtime_ns}"
        if isinstance(source, ListedFile)
        else f"{key}\0{field}\0{source.data!r}"
        for key, members in samples
        for field, source in members
    )
    text = "\n".join((root, *parts)).encode("utf-8", "surrogatepass")
    source = hashlib.blake2b(text, digest_size=16).hexdigest()
    return PackTask(path, nbytes, len(samples), source, root, samples)


def ordered(samples: list[Sample], seed: int | None) -> list[Sample]:
    """Return samples in the order of a seed; None for the order of their keys."""
    if seed is None:
        return samples
    # Not `random.shuffle`, whose order may change between versions of Python. When sorted by
    # digest, adding or removing a sample does not change the order of the others.
    start = hashlib.blake2b(str(seed).encode("ascii"), digest_size=16)

    def digest(sample: Sample) -> bytes:
        found = start.copy()
        found.update(b"\0" + to_bytes(sample.key))
        return found.digest()

    return sorted(samples, key=digest)


def cut(
    samples: list[Sample], maxcount: int, maxsize: int
) -> Iterator[tuple[tuple[Sample, ...], int]]:
    """Yield the samples of each shard, and the length of its tar in bytes.

    Args:
        samples: The samples, in order.
        maxcount: Maximum number of samples in a shard.
        maxsize: Maximum length of a shard in bytes, unless a single sample is larger.
    """
    header = header_function(0o444, "", "", 0)  # as TarWriter has it
    start, nbytes = 0, 0
    for number, (key, members) in enumerate(samples):
        own = 0
        for field, source in members:
            name, size = key + field, nbytes_of(source)
            is_plain = fits_one_block(name, size)
            own += (BLOCK_NBYTES if is_plain else len(header(name, size))) + padded(size)
        is_full = number - start >= maxcount or finished_nbytes(nbytes + own) > maxsize
        if number > start and is_full:
            yield tuple(samples[start:number]), finished_nbytes(nbytes)
            start, nbytes = number, 0
        nbytes += own
    yield tuple(samples[start:]), finished_nbytes(nbytes)


def nbytes_of(source: Source) -> int:
    """Return the length of a member in bytes."""
    return len(source.data) if isinstance(source, Generated) else source.nbytes
