"""A batch from the disk waits once, and not once for each of its shards."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import miss, write_tar
from events import wait_for

import wids

NBYTES = 300_000


def is_resident(path: str, start: int, nbytes: int) -> bool:
    """Whether the system holds all pages of a part of a file in memory."""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as data,
    ):
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        pages = (ctypes.c_ubyte * -(-(start + nbytes - first) // mmap.PAGESIZE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(data)) + first
        length = ctypes.c_size_t(start + nbytes - first)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), length, pages) == 0
        return all(page & 1 for page in pages)


def forget(dataset: wids.ShardListDataset, path: str) -> None:
    """Have the system forget a file that the dataset has mapped."""
    for number in range(len(dataset.spec.shards)):
        dataset.reader.open(number)._map.madvise(mmap.MADV_DONTNEED)
    file = os.open(path, os.O_RDONLY)
    os.fdatasync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the page cache of Linux")
def test_samples_of_all_shards_are_announced_before_one_is_read(tmp_path: Path) -> None:
    """Large samples of the last shard of a batch are on their way when the first one is read."""
    paths = [
        str(
            write_tar(
                tmp_path / f"{shard}.tar",
                [(f"{shard}{n}.bin", os.urandom(NBYTES)) for n in range(4)],
            )
        )
        for shard in range(3)
    ]
    with wids.ShardListDataset(paths, transformations=[], raw="bytes") as dataset:
        dataset.__getitems__([0, 4, 8])  # opens the shards
        forget(dataset, paths[2])
        blocks = dataset.reader.open(2).index.blocks
        place = int(blocks[2]) * 512
        if is_resident(paths[2], place, NBYTES):
            miss("a temporary folder on a disk: this one keeps files in memory")

        next(dataset.reader.groups(np.array([1, 5, 10])))  # of the first shard, and not read yet

        wait_for(
            lambda: is_resident(paths[2], place, NBYTES), "the read of a sample of the last shard"
        )
