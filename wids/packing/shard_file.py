"""A shard task → the shard, published when it is complete, and its description.

Files are read once, in pieces, and have to be as they were listed. The shard is not read again: its
digest, its checksums and its index are made while it is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Final

import numpy as np

from wids.describing.describe import ShardRecord
from wids.errors import FetchError, local_error
from wids.files.checksums import fastest_crc32
from wids.packing.listing import ListedFile
from wids.packing.samples import Sample
from wids.packing.shard_tasks import ShardTask, nbytes_of
from wids.tars.archive import BLOCK_NBYTES, TarMembers
from wids.tars.index import ShardIndex, build_index
from wids.tars.names import to_bytes
from wids.writing.new_shard import published_once, record_of
from wids.writing.tar_writer import TarWriter

_PIECE_NBYTES: Final = 1 << 20
"""How much is written and hashed at a time. Large enough that the thread that does it seldom waits
for the interpreter, small enough to stay in the processor's cache."""

_ZEROS: Final = bytes(BLOCK_NBYTES)
_READ_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0)


def write_shard(
    task: ShardTask,
    *,
    is_new: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    advance: Callable[[int], object] | None = None,
) -> ShardRecord:
    """Write a shard and return its description. Runs on the workers of an executor.

    Args:
        task: The shard.
        is_new: Whether another file of that name is an error; a file of the same bytes, which an
            interrupted run published, is not.
        storage_options: For the server of a URL.
        advance: Called with the number of bytes that were written so far, from time to time.

    Raises:
        FetchError: A file cannot be read, or has changed since it was listed.
        FileExistsError: There is another file under the shard's name.
    """
    with ThreadPoolExecutor(1, "wids-pack") as thread:
        writer = _TarOfFiles(
            task.path, thread, advance, is_new=is_new, storage_options=storage_options
        )
        with published_once(writer, task.path, storage_options):
            for sample in task.samples:
                writer.append_files(task.root, sample)
    return record_of(writer, task.path, task.source)


class _TarOfFiles(TarWriter):
    """A shard whose members are read from files, while a thread writes and hashes the last piece.

    Two buffers take turns: one is filled while the other is stored.
    """

    _sweeps: ClassVar[bool] = False  # the caller has, for all shards

    def __init__(
        self,
        path: str,
        thread: ThreadPoolExecutor,
        advance: Callable[[int], object] | None,
        *,
        is_new: bool,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        self._thread = thread
        self._advance = advance
        self._buffer, self._other = (memoryview(bytearray(_PIECE_NBYTES)) for _ in range(2))
        self._end = 0  # of what is in the buffer
        self._stored: Future[None] | None = None
        self._crc32 = fastest_crc32()
        self._names: list[str] = []
        # Of each member: start of its header, start of its bytes, length, and the two checksums.
        self._places: list[tuple[int, int, int, int, int]] = []
        super().__init__(path, is_new=is_new, storage_options=storage_options)

    def append_files(self, root: str, sample: Sample) -> None:
        """Append a sample whose members are files, or bytes that were made for it."""
        self._has_partial_sample = True
        for field, source in sample.members:
            name = sample.key + field
            size = nbytes_of(source)
            header = self._header(name, size)
            head = self.nbytes
            self._put(header)
            start = self.nbytes
            if isinstance(source, ListedFile):
                crc = self._put_file(f"{root}/{source.path}", source)
            else:
                self._put(source.data)
                crc = self._crc32(source.data)
            if size % BLOCK_NBYTES:
                self._put(_ZEROS[size % BLOCK_NBYTES :])
            self._names.append(name)
            self._places.append((head, start, size, self._crc32(header), crc))
        self._has_partial_sample = False
        self.num_samples += 1

    def _put(self, data: bytes) -> None:
        end = self._end + len(data)
        if end <= _PIECE_NBYTES:
            self._buffer[self._end : end] = data
            self._end = end
            self.nbytes += len(data)
            return
        with memoryview(data) as view:
            for start in range(0, len(data), _PIECE_NBYTES):
                piece = view[start : start + _PIECE_NBYTES]
                self._send()
                self._buffer[: len(piece)] = piece
                self._end = len(piece)
        self.nbytes += len(data)

    def _put_file(self, path: str, file: ListedFile) -> int:
        """Append the bytes of a file and return their checksum."""
        left, crc = file.nbytes, 0
        try:
            handle = os.open(path, _READ_FLAGS)
            try:
                while left:
                    if self._end and self._end + left >= _PIECE_NBYTES:
                        self._send()
                    # One byte more, if there is space, so that a longer file is noticed.
                    count = os.readv(handle, [self._buffer[self._end : self._end + left + 1]])
                    if not 0 < count <= left:
                        break
                    end = self._end + count
                    crc = self._crc32(self._buffer[self._end : end], crc)
                    self._end = end
                    left -= count
                status = os.fstat(handle)
            finally:
                os.close(handle)
        except FileNotFoundError:
            raise FetchError(f"{path}: expected the file that was listed, found none") from None
        except OSError as error:
            raise local_error(path, error) from error
        if left or (status.st_size, status.st_mtime_ns) != file[1:]:
            raise FetchError(
                f"{path}: expected the {file.nbytes} bytes that were listed, found a file that has "
                "changed since; pack the folder again when nothing writes to it"
            )
        self.nbytes += file.nbytes
        return crc

    def _send(self) -> None:
        """Hand the buffer to the thread, and continue with the other one."""
        self._wait()
        full, nbytes = self._buffer, self._end
        self._buffer, self._other, self._end = self._other, full, 0
        self._stored = self._thread.submit(self._store, full[:nbytes])
        if self._advance is not None:
            self._advance(self.nbytes)

    def _store(self, piece: memoryview) -> None:
        self._stream.write(piece)
        self._digest.update(piece)

    def _wait(self) -> None:
        if self._stored is not None:
            self._stored.result()
            self._stored = None

    def _drain(self) -> None:
        self._send()
        self._wait()
        super()._drain()

    def _make_index(self) -> ShardIndex:
        places = np.array(self._places, np.int64).reshape(-1, 5)
        heads, offsets, sizes, head_crcs, payload_crcs = np.ascontiguousarray(places.T)
        members = TarMembers(list(map(to_bytes, self._names)), offsets, sizes, heads)
        return replace(
            build_index(members, "first"),
            head_crcs=head_crcs.astype(np.uint32),
            payload_crcs=payload_crcs.astype(np.uint32),
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            with suppress(Exception):  # the error that is raised already comes first
                self._wait()  # or the file would be closed while it is written
        super().__exit__(kind, error, trace)
