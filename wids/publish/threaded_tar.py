"""Write one tar shard in a thread that stores and hashes while the next samples are prepared.

The bytes are those that `tar_writer` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, Final

from wids.publish.tar_writer import TarWriter

PIECE_NBYTES: Final = 1 << 20
"""How much is written and hashed at a time. Large enough that the thread that does it seldom waits
for the interpreter, small enough to stay in the processor's cache."""


class ThreadedTar(TarWriter):
    """A shard whose pieces are stored by a thread while the next one is filled.

    Two buffers take turns. The caller sweeps the folder, once for all shards.

    Args:
        target: Path or URL.
        thread: The thread, for this shard only.
        advance: Called with the number of bytes written so far, after each piece.
        is_new: As for `TarWriter`.
        storage_options: As for `TarWriter`.
    """

    _sweeps: ClassVar[bool] = False

    def __init__(
        self,
        target: str,
        thread: ThreadPoolExecutor,
        advance: Callable[[int], object] | None = None,
        *,
        is_new: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._thread = thread
        self._advance = advance
        self._buffer, self._other = (memoryview(bytearray(PIECE_NBYTES)) for _ in range(2))
        self._end = 0  # of what is in the buffer
        self._stored: Future[None] | None = None
        super().__init__(target, is_new=is_new, storage_options=storage_options)

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
