"""Write the files of a task to a shard, published when complete, and describe it.

Files are read once, in pieces, and must be as they were listed. The shard is not read again: its
digest, its checksums and its index are made while it is written.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Final

from wids.errors import FetchError, local_error
from wids.publish.describe import ShardRecord
from wids.publish.new_shard import write_published
from wids.publish.packing.file_samples import Sample
from wids.publish.packing.folder_listing import ListedFile
from wids.publish.packing.shard_tasks import PackTask, nbytes_of
from wids.publish.threaded_tar import Publishing, ThreadedTar
from wids.shards.fields.images import ends_early
from wids.shards.tars.archive import BLOCK_NBYTES
from wids.shards.tars.member_names import to_bytes
from wids.storage.locks import READ_FLAGS

_ZEROS: Final = bytes(BLOCK_NBYTES)

_HEAD_NBYTES: Final = 12
_TAIL_NBYTES: Final = 4096
"""How much of a file shows whether it is a picture, and whether it has its end."""


def _read_into(path: str, handle: int, buffer: memoryview) -> int:
    """Read bytes of a file into a buffer, and return how many."""
    try:
        if hasattr(os, "readv"):
            return os.readv(handle, [buffer])
        data = os.read(handle, len(buffer))  # Windows
    except OSError as error:  # here, since the shard that is written meanwhile has its own
        raise local_error(path, error) from error
    buffer[: len(data)] = data
    return len(data)


def write_shard(task: PackTask, *, how: Publishing) -> ShardRecord:
    """Write a shard and return its description. Runs on the workers of an executor.

    Args:
        task: The shard.
        how: How it is published.

    Raises:
        FetchError: A file cannot be read, or has changed since it was listed.
        FileExistsError: There is another file under the shard's name.
    """
    cut_short: list[str] = []
    append = partial(_TarOfFiles.append_files, root=task.root, cut_short=cut_short)
    record = write_published(task, task.samples, append, _TarOfFiles, how)
    return replace(record, cut_short=cut_short)


class _TarOfFiles(ThreadedTar):
    """A shard whose members are read from files."""

    def append_files(self, sample: Sample, *, root: str, cut_short: list[str]) -> None:
        """Append a sample whose members are files, or bytes that were made for it."""
        self._has_partial_sample = True
        for field, source in sample.members:
            name = sample.key + field
            size = nbytes_of(source)
            start, header = self.nbytes, self._header(name, size)
            self._put(header)
            if isinstance(source, ListedFile):
                crc, is_cut_short = self._put_file(f"{root}/{source.path}", source)
                if is_cut_short:
                    cut_short.append(source.path)
            else:
                self._put(source.data)
                crc = self._crc32(source.data)
            if size % BLOCK_NBYTES:
                self._put(_ZEROS[size % BLOCK_NBYTES :])
            self._members.add(to_bytes(name), start, header, size, crc)
        self._has_partial_sample = False
        self.num_samples += 1

    def _put_file(self, path: str, file: ListedFile) -> tuple[int, bool]:
        """Append a file; return its checksum, and whether it is a picture without its end."""
        left, crc, head, tail = file.nbytes, 0, b"", b""
        try:
            handle = os.open(path, READ_FLAGS)
        except FileNotFoundError:
            raise FetchError(f"{path}: expected the file that was listed, found none") from None
        except OSError as error:
            raise local_error(path, error) from error
        try:
            while left:
                if self._end and self._end + left >= len(self._buffer):
                    self._send()
                # One byte more, if there is space, so that a longer file is noticed.
                count = _read_into(path, handle, self._buffer[self._end : self._end + left + 1])
                if not 0 < count <= left:
                    break
                end = self._end + count
                piece = self._buffer[self._end : end]
                crc = self._crc32(piece, crc)
                head = head or bytes(piece[:_HEAD_NBYTES])
                tail = (tail + bytes(piece[-_TAIL_NBYTES:]))[-_TAIL_NBYTES:]
                self._end = end
                left -= count
            status = os.fstat(handle)
        finally:
            os.close(handle)
        if left or (status.st_size, status.st_mtime_ns) != file[1:]:
            raise FetchError(
                f"{path}: expected the {file.nbytes} bytes that were listed, found a file that has "
                "changed since; pack the folder again when nothing writes to it"
            )
        self.nbytes += file.nbytes
        return crc, ends_early(file.nbytes, head, tail)
