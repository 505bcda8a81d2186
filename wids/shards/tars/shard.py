"""Read one mapped tar as a sequence of raw samples.

A shard is read in place: never copied, locked or written to.
"""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from time import monotonic
from typing import Final, TypeAlias

from wids.errors import FetchError, ShardFormatError, local_error
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import Repeated, ShardIndex, TarIdentity, index_tar
from wids.shards.tars.raw_samples import (
    Labels,
    Raw,
    RawSample,
    Span,
    TarShard,
    check_raw,
    normalized_index,
)
from wids.shards.tars.samples import LARGE_NBYTES, known_at_first, sample_readers
from wids.storage.arrays import IntArray
from wids.storage.files import advise
from wids.storage.locks import READ_FLAGS

_FEW: Final = 2
"""Spans for which no hint is worth a call: a part of a field, and its headers."""

_DENSE_NBYTES: Final = 16 << 10
"""Spans whose average distance is at most this are read from the disk in one piece."""

_LONG_NBYTES: Final = 1 << 20
"""Longer spans are read from the map: one system call reads at most 2 GiB."""

_COLD_SPAN_S: Final = 50e-6
"""A read that takes longer came from the disk."""

_NUM_PROBES: Final = 8
"""Number of spans that are timed to see whether the file is in memory."""


def read_spans(data: mmap.mmap, path: str, inode: int, spans: list[Span]) -> list[bytes]:
    """Return the bytes of spans, which mostly ascend.

    Args:
        data: The map of the file.
        path: Its path, which may refer to another file by now.
        inode: The inode of the mapped file.
        spans: Where the bytes are.
    """
    if not spans:
        return []
    # Hard links, and keys whose members are not adjacent, break the order of the archive.
    first = min(start for start, _ in spans)
    nbytes = max(stop for _, stop in spans) - first
    # One hint for all spans if they are close together. Otherwise each hint costs a microsecond,
    # which is negligible compared with waiting for the disk.
    is_dense = nbytes <= _DENSE_NBYTES * len(spans)
    if is_dense:
        advise(data, "WILLNEED", first, nbytes)
    else:
        _warm(data, spans)
    is_short = max(stop - start for start, stop in spans) <= _LONG_NBYTES
    # A read costs a third of mapping the pages around a span, unless other spans share them.
    handle = _reopened(path, inode, len(data)) if is_short and not is_dense else None
    if handle is None:
        pieces = [data[start:stop] for start, stop in spans]
    else:
        try:
            pieces = [os.pread(handle, stop - start, start) for start, stop in spans]
        finally:
            os.close(handle)
    # Pages that stay mapped count as memory of the process, in the end the whole file.
    advise(data, "DONTNEED", first, nbytes)
    return pieces


def _reopened(path: str, inode: int, nbytes: int) -> int | None:
    """Return a descriptor of the mapped file; None if its path refers to another file."""
    if not hasattr(os, "pread"):  # Windows
        return None
    try:
        handle = os.open(path, READ_FLAGS)
    except OSError:
        return None
    status = os.fstat(handle)
    if (status.st_ino, status.st_size) == (inode, nbytes):
        return handle
    os.close(handle)
    return None


def _warm(data: mmap.mmap, spans: list[Span]) -> None:
    """Let the system read scattered spans together, if they come from the disk."""
    start_s = time.perf_counter()
    for at, (start, stop) in enumerate(spans[:_NUM_PROBES]):
        _ = data[start:stop]
        if time.perf_counter() - start_s > _COLD_SPAN_S * (at + 1):
            for other_start, other_stop in spans[at + 1 :]:
                advise(data, "WILLNEED", other_start, other_stop - other_start)
            return


def map_file(path: str, handle: FileIO | int | None = None) -> tuple[mmap.mmap, os.stat_result]:
    """Map a file of any size, and return the map and the status when it was opened.

    Args:
        path: The file.
        handle: The file, if it is already open, or a descriptor of it; always closed here.

    Raises:
        FetchError: The file cannot be opened.
        ShardFormatError: The file is empty, which no tar is.
    """
    try:
        with _open(path, handle) if handle is None or isinstance(handle, int) else handle as file:
            status = os.fstat(file.fileno())
            _refuse_empty(path, status)
            # The length from `fstat`, not 0: then the status matches the map, or `mmap` raises
            # because the file became shorter in between.
            return mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ), status
    except (ShardFormatError, FetchError):  # the one is a ValueError too, the other an OSError
        raise
    except OSError as error:  # a folder, a device
        raise local_error(path, error) from error
    except ValueError as error:
        raise ShardFormatError(f"{path}: it became shorter while it was opened") from error


def _open(path: str, handle: int | None) -> FileIO:
    try:
        return FileIO(path if handle is None else handle)
    except OSError as error:
        if handle is not None:  # of a folder: `FileIO` leaves it open
            os.close(handle)
        raise local_error(path, error) from None
    except ValueError as error:  # a NUL in the path
        raise FetchError(f"{path!r}: expected a path, found: {error}") from error


def _refuse_empty(path: str, status: os.stat_result) -> None:
    if not status.st_size:
        raise ShardFormatError(
            f"{path}: expected a tar, found an empty file; write it or fetch it again"
        )


FindIndex: TypeAlias = Callable[[str, mmap.mmap, TarIdentity], ShardIndex]
"""Returns the index of a tar, from its path, its bytes and its identity."""

_COLD_READ_S: Final = 50e-6
"""A slower read came from the disk, or is so large that a hint costs little in comparison."""

_WARM_READ_S: Final = 5e-6
"""Most time to read each of several small samples from memory."""

_TIMED_TOGETHER: Final = 32
"""The first sample of a batch is timed alone, and the others in groups of this length."""

_CHECK_EVERY_S: Final = 0.005
"""How long reads rely on the last check of the file's size, which costs a microsecond."""


class Shard(TarShard):
    """One local tar file as a sequence of raw samples.

    A raw sample is a dict: each field's bytes under its name with the leading dot, and the key of
    the sample under ``"__key__"``. Safe to read from any number of threads and from forked
    processes. Holds one file descriptor until it is closed or collected, and another one if its
    index is mapped.

    Example:
        >>> import wids
        >>> with wids.TarWriter("pets.tar") as writer:
        ...     nbytes = writer.write({"__key__": "cat", ".txt": "a cat", ".cls": 3})
        >>> with wids.Shard("pets.tar") as shard:
        ...     len(shard), shard.find("cat"), shard[0]
        (1, 0, {'.txt': b'a cat', '.cls': b'3', '__key__': 'cat'})

    Args:
        path: The tar file.
        key_split: Where member names are split into key and field: at the ``"first"`` or the
            ``"last"`` dot of their last path component.
        repeated: ``"error"``, or ``"last"`` to read the last of several members of one name.
        fields: The only fields to read, or None for all.
        raw: What a field is: ``"bytes"``, ``"stream"`` (an ``io.BytesIO``), or ``"view"`` (a
            ``memoryview`` of the file itself, without a copy; see specs/security.md).
        find_index: Returns the index from the path, bytes and identity of the opened file; None to
            scan the tar.
        handle: The file, if it is already open, or a descriptor of it; always closed here. A lock
            on it lasts until the shard is unmapped.

    Attributes:
        path: The tar file.
        identity: What distinguished it from other files when it was opened.
        index: Where its samples are.

    Raises:
        FetchError: The file cannot be opened.
        ShardFormatError: It is not a complete, plain tar; or, on reading, it was changed after it
            was opened, or is not the tar that its published index was made from.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key_split: KeySplit = "first",
        repeated: Repeated = "error",
        fields: Collection[str] | None = None,
        raw: Raw = "bytes",
        find_index: FindIndex | None = None,
        handle: FileIO | int | None = None,
    ) -> None:
        self.path = self.name = os.fspath(path)
        self._map, status = map_file(self.path, handle)
        self.identity = TarIdentity.of_file(status)
        self.nbytes = self.identity.nbytes
        try:
            check_raw(raw)
            self._fields = None if fields is None else frozenset(fields)
            if find_index is None:
                self.index = index_tar(self._map, key_split, self.path, repeated=repeated)
            else:
                self.index = find_index(self.path, self._map, self.identity)
        except BaseException:
            # Explicitly, since the error's traceback would keep this frame and the file open.
            with suppress(BufferError):
                self._map.close()
            raise
        advise(self._map, "RANDOM")
        self._view = memoryview(self._map)
        self._known = bytearray(len(self.index))
        # Instance attributes are the fastest to look up.
        self._read, self._read_verified = sample_readers(
            self.path,
            self._view if raw == "view" else self._map,
            self.index,
            self._fields,
            raw,
            self._known,
            partial(advise, self._map, "WILLNEED"),
        )
        # On average: then hints for all samples of a batch cost little compared with copying them.
        self._is_large = self.nbytes > len(self.index) * LARGE_NBYTES
        self._is_fresh = True
        self._check_after_s = monotonic() + _CHECK_EVERY_S

    def __iter__(self) -> Iterator[RawSample]:
        advise(self._map, "SEQUENTIAL")
        try:
            yield from map(self.read, range(len(self)))
        finally:
            advise(self._map, "RANDOM")

    def read(
        self, local_index: int, verify: bool = False, labels: Labels | None = None
    ) -> RawSample:
        """Return one sample by its index; see `ReadableShard.read`."""
        if local_index < 0:
            local_index = normalized_index(local_index, len(self), self.path)
        if monotonic() > self._check_after_s:
            self.check()
        return (self._read_verified if verify else self._read)((local_index,), labels)

    def read_many(
        self, local_indices: Sequence[int], *, verify: bool = False, labels: Labels | None = None
    ) -> list[RawSample]:
        """Return samples, fastest in ascending order; uncached ones are read from disk together."""
        if min(local_indices, default=0) < 0:
            local_indices = [
                normalized_index(index, len(self), self.path) for index in local_indices
            ]
        # The same comparisons as in `check`, which would take twice as long.
        nbytes = self._map.size()
        if self._is_fresh or nbytes != self.identity.nbytes or not self.index.is_intact():
            self.check()
        read = self._read_verified if verify else self._read
        samples: list[RawSample] = []
        start, stop = 0, 1
        if self._is_large:
            self.hint(local_indices)
            stop = len(local_indices)
        while start < len(local_indices):
            start_s = monotonic()
            read(local_indices[start:stop], labels, samples.append)
            # Slow reads came from the disk, so the rest is requested at once. Hints for samples in
            # memory would cost as much as reading them, and so would timing each sample.
            if monotonic() - start_s > _COLD_READ_S + (stop - start) * _WARM_READ_S:
                self.hint(local_indices[stop:])
                start, stop = stop, len(local_indices)
            else:
                start, stop = stop, stop + _TIMED_TOGETHER
        return samples

    def announce(self, local_indices: Iterable[int]) -> None:
        """Hint at samples that will be read soon, if they are large enough to be worth a call."""
        if self._is_large:
            self.hint(local_indices)

    def hint(self, local_indices: Iterable[int]) -> None:
        """Advise the system to read ahead these samples together."""
        start = stop = 0
        for head, _, end in self.index.places(local_indices, self._fields):  # headers too
            if not 0 <= head - stop <= mmap.PAGESIZE:  # not next to the previous member
                advise(self._map, "WILLNEED", start, stop - start)
                start = head
            stop = end
        advise(self._map, "WILLNEED", start, stop - start)

    def _buffers(
        self,
        spans: list[Span],
        *,
        is_compared: bool = False,  # noqa: ARG002 - all spans are of one file
    ) -> Sequence[bytes | memoryview]:
        if len(spans) <= _FEW:
            return [self._view[start:stop] for start, stop in spans]
        return read_spans(self._map, self.path, self.identity.inode, spans)

    def views(self, members: IntArray, local_indices: Sequence[int]) -> list[memoryview]:
        """Return views of members in the file itself; they stay valid, and keep it mapped.

        Args:
            members: Members of the index, in any order.
            local_indices: The samples that they belong to.

        Raises:
            ShardFormatError: The file or its index has changed.
        """
        self.check()
        index, view = self.index, self._view
        heads, bodies, stops = (edges.tolist() for edges in index.spans(members))
        start_s = monotonic()
        _ = view[bodies[0] - 1]
        # A slow read came from the disk, so the rest is requested at once.
        if self._is_large or monotonic() - start_s > _COLD_READ_S:
            self.hint(local_indices)
        if len(index.head_crcs):
            headers = [view[start:stop] for start, stop in zip(heads, bodies, strict=True)]
            self._check_heads(members, headers)
        return [view[start:stop] for start, stop in zip(bodies, stops, strict=True)]

    def member(self, local_index: int, field: str) -> tuple[int, int]:
        """Return where a field of one sample begins in the file, and its length in bytes.

        Raises:
            IndexError: There is no such sample.
            KeyError: The sample does not have the field.

        Example:
            >>> import wids
            >>> with wids.TarWriter("pets.tar") as writer:
            ...     nbytes = writer.write({"__key__": "cat", ".txt": "a cat", ".cls": 3})
            >>> with wids.Shard("pets.tar") as shard, open("pets.tar", "rb") as file:
            ...     start, size = shard.member(0, ".txt")
            ...     _ = file.seek(start)
            ...     start, file.read(size)
            (512, b'a cat')
        """
        local_index = normalized_index(local_index, len(self), self.path)
        return self.index.place(local_index, field, self.path)

    @property
    def has_changed(self) -> bool:
        """Whether the file has changed its length since it was opened."""
        return self._map.size() != self.nbytes

    def check(self) -> None:
        """Raise `ShardFormatError` if the file has changed its length since it was opened.

        Touching a mapped page beyond the end of the file kills the process, so reads check first.
        """
        self._check_after_s = -math.inf  # if this fails, so does each later read
        nbytes = self._map.size()
        if nbytes != self.nbytes:
            raise ShardFormatError(
                f"{self.path}: expected {self.nbytes} bytes as when it was opened, found {nbytes}; "
                "it was changed in place: open the dataset again, and replace shards by renaming"
            )
        super().check()
        if self._is_fresh:
            self._is_fresh = False
            # Not when the shard is opened: if reads alternate between many shards, this would take
            # a fifth of the time of opening one and reading a sample.
            self._known[:] = bytes([known_at_first(self.index)]) * len(self)
        self._check_after_s = monotonic() + _CHECK_EVERY_S

    def close(self) -> None:
        """Release the file; memoryviews that were handed out stay valid and keep it mapped."""
        self._view.release()
        with suppress(BufferError):  # views are in use; the last of them closes the map
            self._map.close()
