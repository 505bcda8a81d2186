"""Indexes of shards, or packs of them → a pack.

The counterpart of `wids.tars.pack`; specs/shard-index.md describes the file byte by byte. Nothing
here knows URLs, or the samples' bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import IO

import numpy as np
import numpy.typing as npt

from wids.tars import index_file
from wids.tars.index import ShardIndex, TarIdentity
from wids.tars.index_file import ALIGNMENT, VERSION
from wids.tars.names import to_bytes
from wids.tars.pack import (
    CRC_START,
    HEADER,
    HEADER_NBYTES,
    MAGIC,
    LocalPack,
    PackHeader,
    key_hash,
)

Hashes = npt.NDArray[np.uint64]


def write_pack(file: IO[bytes], shards: Iterable[tuple[str, int, ShardIndex]]) -> None:
    """Write a pack into an empty file that can seek.

    Args:
        file: The file.
        shards: Base name, length of the tar, and index with checksums, for each shard in order.
    """
    parts = _Parts(file)
    hashes: list[Hashes] = []
    for name, tar_nbytes, shard_index in shards:
        blob = index_file.dump(shard_index, TarIdentity(tar_nbytes))
        parts.add(to_bytes(name), tar_nbytes, len(shard_index), blob)
        hashes.append(_key_hashes(shard_index))
    all_hashes = np.concatenate([np.empty(0, np.uint64), *hashes])
    parts.finish(all_hashes, np.arange(len(all_hashes)))


def join_packs(file: IO[bytes], packs: Sequence[tuple[LocalPack, int]]) -> None:
    """Write the pack of several packs' shards into an empty file that can seek.

    Indexes and hashes are copied, and not computed again.

    Args:
        file: The file.
        packs: Packs, and how many shards to take from the beginning of each.

    Raises:
        ValueError: The tables of keys of a pack are damaged.
    """
    parts = _Parts(file)
    hashes: list[Hashes] = [np.empty(0, np.uint64)]
    positions: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    num_before = 0
    for pack, num_shards in packs:
        for number in range(num_shards):
            num_samples = int(pack.num_samples[number])
            tar_nbytes, blob = pack.tar_nbytes(number), pack.blob(number)
            parts.add(pack.stored_name(number), tar_nbytes, num_samples, blob)
        keys = pack.keys_of(num_shards)
        hashes.append(keys[0])
        positions.append(keys[1].astype(np.int64) + num_before)
        num_before += len(keys[0])
    parts.finish(np.concatenate(hashes), np.concatenate(positions))


class _Parts:
    """A pack while it is written: the indexes are in the file, the rest is in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._entries: list[tuple[int, int, int, int]] = []
        self._names: list[bytes] = []
        file.write(bytes(HEADER_NBYTES))  # known only at the end

    def add(self, name: bytes, tar_nbytes: int, num_samples: int, blob: bytes) -> None:
        """Write the index of the next shard."""
        self._entries.append((self._align(), len(blob), tar_nbytes, num_samples))
        self._names.append(name)
        self._file.write(blob)

    def finish(self, hashes: Hashes, positions: npt.NDArray[np.int64]) -> None:
        """Write directory, tables and header; where hashes are equal, their positions ascend."""
        file = self._file
        directory = self._align()
        columns = np.array(self._entries, "<u8").reshape(-1, 4).T.tobytes()
        joined_names = b"\0".join(self._names)
        file.write(columns + joined_names)
        order = np.argsort(hashes, kind="stable")
        width = 4 if len(order) < 1 << 32 else 8
        tables = [
            hashes[order].astype("<u8").tobytes(),
            positions[order].astype(f"<u{width}").tobytes(),
        ]
        places = []
        for table in tables:
            places.append(self._align())
            file.write(table)
        header = PackHeader(
            magic=MAGIC,
            version=VERSION,
            crc=0,
            nbytes=file.tell(),
            num_shards=len(self._names),
            total=len(order),
            directory=directory,
            names=directory + len(columns),
            names_nbytes=len(joined_names),
            hashes=places[0],
            positions=places[1],
            keys_crc=zlib.crc32(tables[1], zlib.crc32(tables[0])),
            width=width,
        )
        crc = zlib.crc32(columns + joined_names, zlib.crc32(HEADER.pack(*header)[CRC_START:]))
        file.seek(0)
        file.write(HEADER.pack(*header._replace(crc=crc)))

    def _align(self) -> int:
        """Fill up to the next aligned position and return it."""
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        return self._file.tell()


def _key_hashes(shard_index: ShardIndex) -> Hashes:
    keys = shard_index.stored_keys()
    return np.fromiter(map(key_hash, keys), np.uint64, len(keys))
