"""Write a dataset index from the indexes of shards, or join several dataset indexes.

The counterpart of `wids.shards.indexes.dataset_index`; specs/shard-index.md describes the file byte
by byte. Indexes are written one after another and none is kept, so memory does not grow with the
number of samples.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import IO, Final

import numpy as np

from wids.shards.indexes import index_file
from wids.shards.indexes.dataset_index import (
    CRC_START,
    HEADER,
    HEADER_NBYTES,
    MAGIC,
    DatasetIndexHeader,
    LocalDatasetIndex,
    key_hash,
)
from wids.shards.indexes.index_file import ALIGNMENT, VERSION
from wids.shards.indexes.key_tables import Entries, KeyTable, Run, merged
from wids.shards.tars.headers import to_bytes
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.storage.arrays import WordArray
from wids.storage.files import folder_of

_ENTRY: Final = struct.Struct("<4Q")
_PIECE_NBYTES: Final = 1 << 20
_SPOOLED_NBYTES: Final = 4 << 20
"""Bytes of a directory that need no file: about 100,000 shards."""


def write_dataset_index(file: IO[bytes], shards: Iterable[tuple[str, int, ShardIndex]]) -> None:
    """Write a dataset index into an empty file that is readable and seekable.

    From a million samples on, temporary files beside it have 12 bytes for each sample.

    Args:
        file: The file.
        shards: The base name, length of the tar, and index with checksums of each shard, in order.
    """
    with _DatasetIndexFile(file) as writer, KeyTable(folder_of(file)) as table:
        for name, tar_nbytes, shard_index in shards:
            blob = index_file.dump(shard_index, TarIdentity(tar_nbytes))
            writer.add(to_bytes(name), tar_nbytes, len(shard_index), blob)
            table.add(_key_hashes(shard_index))
        writer.finish(table.entries())


def join_dataset_indexes(file: IO[bytes], parts: Sequence[tuple[LocalDatasetIndex, int]]) -> None:
    """Join dataset indexes into an empty file that is readable and seekable.

    Indexes and hashes are copied, not recomputed.

    Args:
        file: The file.
        parts: Dataset indexes, and how many shards to take from the beginning of each.

    Raises:
        ValueError: The tables of keys of a dataset index are damaged.
    """
    runs: list[Run] = []
    num_before = 0
    with _DatasetIndexFile(file) as writer:
        for part, num_shards in parts:
            for number in range(num_shards):
                num_samples = int(part.num_samples[number])
                tar_nbytes, blob = part.tar_nbytes(number), part.blob(number)
                writer.add(part.stored_name(number), tar_nbytes, num_samples, blob)
                part.release()
            runs.append(part.keys_of(num_shards, num_before))
            num_before += runs[-1].limit
        writer.finish(merged(runs, [part.release for part, _ in parts]))


class _DatasetIndexFile:
    """A dataset index being written; use it as a context manager.

    The indexes are in the file; the directory is beside it, where it takes no memory.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._num_shards = self._total = 0
        self._stack = ExitStack()
        self._entries, self._names = (
            self._stack.enter_context(
                tempfile.SpooledTemporaryFile(_SPOOLED_NBYTES, dir=folder_of(file))  # noqa: SIM115
            )
            for _ in range(2)
        )
        file.write(bytes(HEADER_NBYTES))  # the header is known only at the end

    def __enter__(self) -> _DatasetIndexFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: bytes, tar_nbytes: int, num_samples: int, blob: bytes) -> None:
        """Write the index of the next shard."""
        self._entries.write(_ENTRY.pack(self._align(), len(blob), tar_nbytes, num_samples))
        self._names.write(b"\0" + name if self._num_shards else name)
        self._file.write(blob)
        self._num_shards, self._total = self._num_shards + 1, self._total + num_samples

    def finish(self, keys: Iterable[Entries]) -> None:
        """Write the directory, the tables and the header."""
        file, total = self._file, self._total
        directory = self._align()
        for column in range(4):
            self._entries.seek(0)
            while piece := self._entries.read(_PIECE_NBYTES):
                file.write(np.frombuffer(piece, "<u8").reshape(-1, 4)[:, column].tobytes())
        names = file.tell()
        self._names.seek(0)
        shutil.copyfileobj(self._names, file, _PIECE_NBYTES)
        names_nbytes = file.tell() - names
        width = 4 if total < 1 << 32 else 8
        hashes = self._align()
        positions = hashes + 8 * total  # also aligned
        end = self._write_tables(keys, hashes, positions, width)
        header = DatasetIndexHeader(
            magic=MAGIC,
            version=VERSION,
            crc=0,
            nbytes=end,
            num_shards=self._num_shards,
            total=total,
            directory=directory,
            names=names,
            names_nbytes=names_nbytes,
            hashes=hashes,
            positions=positions,
            keys_crc=self._crc(hashes, end),
            width=width,
        )
        start = zlib.crc32(HEADER.pack(*header)[CRC_START:])
        crc = self._crc(directory, names + names_nbytes, start)
        file.seek(0)
        file.write(HEADER.pack(*header._replace(crc=crc)))

    def _write_tables(
        self, keys: Iterable[Entries], hashes: int, positions: int, width: int
    ) -> int:
        """Write both tables a part at a time, each at its position; return where they end."""
        stop = positions
        for part in keys:
            self._file.seek(hashes)
            hashes += self._file.write(part.hashes.astype("<u8").data)
            self._file.seek(positions)
            positions += self._file.write(part.positions.astype(f"<u{width}").data)
        if hashes != stop:
            raise ValueError(
                "expected a key for each sample of the dataset indexes, found other tables"
            )
        return positions

    def _crc(self, start: int, stop: int, crc: int = 0) -> int:
        """Return the checksum of written bytes, continued from that of others."""
        self._file.seek(start)
        for at in range(start, stop, _PIECE_NBYTES):
            crc = zlib.crc32(self._file.read(min(_PIECE_NBYTES, stop - at)), crc)
        return crc

    def _align(self) -> int:
        """Pad to the next aligned position and return it."""
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        return self._file.tell()


def _key_hashes(shard_index: ShardIndex) -> WordArray:
    keys = shard_index.stored_keys()
    return np.fromiter(map(key_hash, keys), np.uint64, len(keys))
