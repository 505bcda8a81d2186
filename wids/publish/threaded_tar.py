"""Write one tar shard in a thread that stores and hashes while the next samples are prepared.

The bytes are those that `tar_writer` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wids.publish.tar_writer import TarWriter

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
        advance: Called from time to time with the number of bytes written so far.
    """

    is_new: bool = True
    storage_options: Mapping[str, Any] | None = None
    advance: Callable[[int], object] | None = None


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
        self._advance = how.advance
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

    def _drop(self, *failure: Any) -> None:
        with suppress(Exception):  # the error that is raised already comes first
            self._wait()  # or the file would be closed while it is written
        super()._drop(*failure)
