"""One mapped tar as a sequence of raw samples.

A shard is read where it lies: never copied, locked or written to. This room knows one local file;
what a spec or a dataset says about it is not its business.
"""

from __future__ import annotations

import math
import mmap
import os
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, Final, TypeAlias

from wids.errors import FetchError, ShardFormatError, local_error
from wids.tars import index, tar
from wids.tars.index import ShardIndex, TarIdentity
from wids.tars.names import KeySplit
from wids.tars.samples import WRAP, Raw, RawSample, check_raw, position
from wids.tars.tar import BLOCK_NBYTES

FindIndex: TypeAlias = Callable[[str, mmap.mmap, TarIdentity], ShardIndex]

_LARGE_NBYTES: Final = 16 << 10
"""Members from this size on are worth a hint of their own: its cost is lost in that of the copy."""

_COLD_READ_S: Final = 50e-6
"""A read that takes longer was from the disk, or so large that a hint costs nothing beside it."""

_CHECK_EVERY_S: Final = 0.005
"""How long a look at the file's size is believed by single reads; the look costs a microsecond."""


def scan_index(key_split: KeySplit) -> FindIndex:
    """Give the callable that makes an index by scanning the tar."""

    def find_index(path: str, data: mmap.mmap, identity: TarIdentity) -> ShardIndex:  # noqa: ARG001
        return index.build(tar.scan(data, path), key_split, path)

    return find_index


class Shard:
    """One local tar file as a sequence of raw samples.

    A raw sample is a dict: each field's bytes under its name with the leading dot, and the key of
    the sample under ``"__key__"``. Safe to read from any number of threads and from forked
    processes. Holds one file descriptor until it is closed or collected, and another one where its
    index is mapped.

    Args:
        path: The tar file.
        key_split: Where member names are split into key and field: at the ``"first"`` or the
            ``"last"`` dot of their last path component.
        fields: The only fields to read, or None for all.
        raw: What a field is: ``"bytes"``, ``"stream"`` (an ``io.BytesIO``), or ``"view"`` (a
            ``memoryview`` of the file itself, without a copy; see specs/security.md).
        find_index: Gives the index, from path, bytes and identity of the file that was opened;
            None to scan the tar.
        handle: A descriptor of the file, where it is open already; closed here, in any case. A lock
            on it lasts as long as the shard is mapped.

    Attributes:
        path: The tar file.
        identity: Its length in bytes and time of modification, when it was opened.
        index: Where its samples are.

    Raises:
        FetchError: The file cannot be opened.
        ShardFormatError: It is not a complete, plain tar; or, when it is read, it was changed after
            it was opened, or is not the tar that its published index was made from.
    """

    # All of it is on this machine, unlike that of a `RemoteShard`.
    is_local: ClassVar[bool] = True
    is_spent: ClassVar[bool] = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key_split: KeySplit = "first",
        fields: Collection[str] | None = None,
        raw: Raw = "bytes",
        find_index: FindIndex | None = None,
        handle: int | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._map, self.identity = _open_map(self.path, handle)
        try:
            check_raw(raw)
            find_index = find_index or scan_index(key_split)
            self.index = find_index(self.path, self._map, self.identity)
        except BaseException:
            # Now, and not when the error goes: who collects errors would collect open files.
            with suppress(BufferError):
                self._map.close()
            raise
        advise(self._map, "RANDOM")
        self._view = memoryview(self._map)
        self._fields = None if fields is None else frozenset(fields)
        self._read = _reader(self.path, self._map, self._view, self.index, self._fields, raw)
        self._check_after_s = time.monotonic() + _CHECK_EVERY_S

    @property
    def nbytes(self) -> int:
        """Length of the tar in bytes."""
        return self.identity.nbytes

    def __repr__(self) -> str:
        return f"Shard({self.path!r}: {len(self)} samples, {self.nbytes} bytes)"

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, local_index: int) -> RawSample:
        return self.read(position(local_index, len(self), self.path))

    def __iter__(self) -> Iterator[RawSample]:
        advise(self._map, "SEQUENTIAL")
        try:
            yield from map(self.read, range(len(self)))
        finally:
            advise(self._map, "RANDOM")

    def read(self, local_index: int) -> RawSample:
        """Read one sample, by its position from 0 on."""
        if time.monotonic() > self._check_after_s:
            self.check()
        return self._read(local_index)

    def read_many(self, local_indices: Sequence[int]) -> list[RawSample]:
        """Read samples, fastest in ascending order; cold ones are read from the disk together."""
        self.check()
        read, clock = self._read, time.perf_counter
        samples = []
        hint_after_s = _COLD_READ_S
        before_s = clock()
        for local_index in local_indices:
            samples.append(read(local_index))
            after_s = clock()
            # A slow read was one from the disk, so have the rest read at once. To ask for that each
            # time, for warm samples too, would cost as much as reading them.
            if after_s - before_s > hint_after_s:
                self.hint(local_indices[len(samples) :])
                hint_after_s = math.inf
            before_s = after_s
        return samples

    def hint(self, local_indices: Iterable[int]) -> None:
        """Tell the system that these samples will be read soon, so that it reads them together."""
        names, wanted = self.index.fields, self._fields
        starts, field_ids = self.index.member_starts.data, self.index.field_ids.data
        blocks, sizes = self.index.blocks.data, self.index.sizes.data
        for local_index in local_indices:
            start = stop = 0
            for member in range(starts[local_index], starts[local_index + 1]):
                if wanted is None or names[field_ids[member]] in wanted:
                    offset = blocks[member] * BLOCK_NBYTES
                    if offset - stop > mmap.PAGESIZE:  # not next to the member before
                        advise(self._map, "WILLNEED", start, stop - start)
                        start = offset
                    stop = offset + sizes[member]
            advise(self._map, "WILLNEED", start, stop - start)

    def find(self, key: str) -> int:
        """Give the local index of a key, or -1."""
        return self.index.find(key)

    def check(self) -> None:
        """Compare the file's present size with the indexed one.

        To touch a mapped page that the file has lost kills the process, so this comes first.
        """
        self._check_after_s = -math.inf  # if this fails, so does each read after it
        nbytes = self._map.size()
        if nbytes != self.nbytes:
            raise ShardFormatError(
                f"{self.path}: expected {self.nbytes} bytes as when it was opened, found {nbytes}; "
                "it was changed in place: open the dataset again, and replace shards by renaming"
            )
        if not self.index.is_intact():
            raise ShardFormatError(
                f"{self.path}: expected its index as when it was opened, found one of another "
                "length; it was changed in place: open the dataset again, and replace by renaming"
            )
        self._check_after_s = time.monotonic() + _CHECK_EVERY_S

    def close(self) -> None:
        """Let go of the file. Memoryviews that were handed out stay valid and keep it mapped."""
        self._view.release()
        with suppress(BufferError):  # views are out; the last of them closes the map
            self._map.close()

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reader(
    path: str,
    data: mmap.mmap,
    view: memoryview,
    index: ShardIndex,
    wanted: frozenset[str] | None,
    raw: Raw,
) -> Callable[[int], RawSample]:
    """Give the function that reads one sample: the innermost loop of all.

    A closure, because what it needs is then at hand without looking it up in an object, and because
    a memoryview gives plain ints, several times faster than an array does. It holds no shard, which
    would be a cycle that keeps the file open.
    """
    starts, blocks, sizes = index.member_starts.data, index.blocks.data, index.sizes.data
    field_ids, names = index.field_ids.data, index.fields
    text, text_start, key_starts = index.text, index.text_start, index.key_starts.data
    source: mmap.mmap | memoryview = view if raw == "view" else data
    wrap = WRAP[raw]
    heads, crcs = index.head_blocks.data, index.crcs.data if len(index.crcs) else None
    is_plain = crcs is None and index.sizes.max(initial=0) <= _LARGE_NBYTES

    def read(local_index: int) -> RawSample:
        sample: RawSample = {}
        for member in range(starts[local_index], starts[local_index + 1]):
            field = names[field_ids[member]]
            if wanted is not None and field not in wanted:
                continue
            offset, size = blocks[member] * BLOCK_NBYTES, sizes[member]
            if not is_plain:
                prepare(member, offset, size, field)
            value = source[offset : offset + size]
            sample[field] = value if wrap is None else wrap(value)
        start, stop = key_starts[local_index], key_starts[local_index + 1] - 1
        key = text[text_start + start : text_start + stop]
        sample["__key__"] = key.decode("utf-8", "surrogateescape")
        return sample

    def prepare(member: int, offset: int, size: int, field: str) -> None:
        """Hint at a large member, and hold the header before it against a published index."""
        if size > _LARGE_NBYTES:
            advise(data, "WILLNEED", offset, size)
        if crcs is None:
            return
        head = view[offset - heads[member] * BLOCK_NBYTES : offset]
        if zlib.crc32(head) != crcs[member]:
            raise ShardFormatError(
                f"{path}: at byte {offset - len(head)}: expected the header of a {field} as in the "
                "published index, found another; the tar was written anew: make the index anew "
                "too, or remove it"
            )

    return read


def advise(data: mmap.mmap, advice: str, start: int = 0, nbytes: int | None = None) -> None:
    """Give the system advice about a range of a mapped file, or all of it, where there is a way.

    The one place that does. Without advice, a cold read of a few kilobytes costs as much as the
    system's readahead, megabytes on some machines; with ``RANDOM`` alone it costs a wait for each
    page; with ``WILLNEED`` on the range, one wait for all.
    """
    option = getattr(mmap, f"MADV_{advice}", None)
    if option is None or nbytes == 0:
        return
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # it is advice, and a closed map needs none
        data.madvise(option, first, (len(data) if nbytes is None else start + nbytes) - first)


def _open_map(path: str, handle: int | None) -> tuple[mmap.mmap, TarIdentity]:
    try:
        if handle is None:
            handle = os.open(path, os.O_RDONLY)  # a third of the time that open() takes
    except OSError as error:
        raise local_error(path, error) from error
    except ValueError as error:
        raise FetchError(f"{path!r}: expected a path, found: {error}") from error
    try:
        status = os.fstat(handle)
        identity = TarIdentity(status.st_size, status.st_mtime_ns)
        if not identity.nbytes:
            raise ShardFormatError(
                f"{path}: expected a tar, found an empty file; write it or fetch it again"
            )
        return mmap.mmap(handle, identity.nbytes, access=mmap.ACCESS_READ), identity
    except OSError as error:  # a folder, a device
        raise local_error(path, error) from error
    except ValueError as error:
        if isinstance(error, ShardFormatError):
            raise
        raise ShardFormatError(f"{path}: it became shorter while it was opened") from error
    finally:
        os.close(handle)
