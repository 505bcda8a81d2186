"""Write the samples of a task to its shard, and describe it. Runs on the workers of an executor.

A thread stores and hashes while the next samples are put together. The bytes are those that
`TarWriter` writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from wids.publish.describe import ShardRecord, record_of
from wids.publish.journal import ShardTask
from wids.publish.tar_writer import TarWriter
from wids.shards.tars.index import TarIdentity
from wids.storage import fetch, upload
from wids.storage.files import file_digest
from wids.storage.transport import urls

PIECE_NBYTES: Final = 1 << 20
"""How much is written and hashed at a time. Large enough that the thread that does it seldom waits
for the interpreter, small enough to stay in the processor's cache."""


@dataclass(frozen=True)
class Publishing:
    """How the shards of a run are published.

    Attributes:
        is_new: Whether another file of that name is an error; a file of the same bytes, which an
            interrupted run published, is not.
        storage_options: As for `ShardListDataset`, for a URL.
    """

    is_new: bool = True
    storage_options: Mapping[str, Any] | None = None


class ThreadedTar(TarWriter):
    """A shard whose pieces are stored by a thread while the next one is filled.

    Two buffers take turns. The caller sweeps the folder, once for all shards.

    Args:
        target: Path or URL.
        thread: The thread, for this shard only.
        how: How it is published.
    """

    _sweeps: ClassVar[bool] = False

    def __init__(self, target: str, thread: ThreadPoolExecutor, how: Publishing) -> None:
        self._thread = thread
        self._buffer, self._other = (memoryview(bytearray(PIECE_NBYTES)) for _ in range(2))
        self._end = 0  # of what is in the buffer
        self._stored: Future[None] | None = None
        super().__init__(target, is_new=how.is_new, storage_options=how.storage_options)

    def _put(self, data: bytes | memoryview) -> None:
        end, limit = self._end + len(data), len(self._buffer)
        if end <= limit:
            self._buffer[self._end : end] = data
            self._end = end
            self.nbytes += len(data)
            return
        with memoryview(data) as view:
            for start in range(0, len(data), limit):
                piece = view[start : start + limit]
                self._send()
                self._buffer[: len(piece)] = piece
                self._end = len(piece)
        self.nbytes += len(data)

    def _send(self) -> None:
        """Hand the buffer to the thread, and continue with the other one."""
        self._wait()
        full, nbytes = self._buffer, self._end
        self._buffer, self._other, self._end = self._other, full, 0
        self._stored = self._thread.submit(self._store, full[:nbytes])

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

    def _drop(self, *failure: Any) -> None:
        with suppress(Exception):  # the error that is raised already comes first
            self._wait()  # or the file would be closed while it is written
        super()._drop(*failure)


Writer = TypeVar("Writer", bound=ThreadedTar)
Sample = TypeVar("Sample")


def write_published(
    task: ShardTask,
    samples: Iterable[Sample],
    append: Callable[[Writer, Sample], object],
    writer_class: type[Writer],
    how: Publishing,
) -> ShardRecord:
    """Write a shard and return its description.

    A shard of the same bytes that is there already is not an error: an interrupted run may have
    published it and not noted it.

    Args:
        task: The shard.
        samples: Its samples.
        append: Writes one of them.
        writer_class: What writes.
        how: How it is published.

    Raises:
        FileExistsError: There is another file under the shard's name.
    """
    with ThreadPoolExecutor(1, "wids-write") as thread:
        writer = writer_class(task.path, thread, how)
        try:
            with writer:
                for sample in samples:
                    append(writer, sample)
        except FileExistsError as error:
            if not _is_same_file(writer, task.path, how.storage_options):
                if error.errno is None:  # it already says what to do
                    raise
                raise FileExistsError(
                    f"{urls.redact(task.path)}: expected no file, or the shard that an interrupted "
                    "run wrote, found another file; move it away and run again"
                ) from error
    identity = TarIdentity.of_file(os.stat(task.path)) if urls.is_local(task.path) else None
    return written_record(writer, task.path, identity, task.source)


def written_record(
    writer: TarWriter, url: str, identity: TarIdentity | None = None, source: str = ""
) -> ShardRecord:
    """Return the description of a shard that was written; for arguments see `ShardRecord`."""
    assert writer.index is not None  # noqa: S101 - as always, except for a stream
    return record_of(url, writer.index, writer.nbytes, writer.sha256, identity, source)


def _is_same_file(writer: TarWriter, url: str, storage_options: upload.Options) -> bool:
    """Whether a file, local or remote, has the bytes that were written."""
    try:
        with fetch.downloaded(fetch.Fetcher(storage_options), url) as path:
            return bool(writer.sha256) and file_digest(path, "sha256") == writer.sha256
    except OSError:
        return False
