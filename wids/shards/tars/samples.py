"""Define what an open shard offers, map its file, and make the loop that reads its samples.

What reads samples needs a `ReadableShard`. `wids.shards.tars.shard.Shard` and
`wids.shards.remote_shard.RemoteShard` are more: each is a `PooledShard`, which a pool keeps.

Touching a mapped page beyond the end of a shortened file kills the process, so callers compare the
length of a mapped file before they read.

The first read of a sample finds out its fields, and compares its headers with the index if that has
checksums of them. A number notes this, so that later reads do neither.

The functions are closures because local variables are faster than attributes, and they index
memoryviews because these return plain ints several times faster than arrays do. They calculate only
with these ints: an index may be a numpy integer, and 200 + 100 is 44 in 8 bits. They hold no shard:
that would be a reference cycle, which keeps the file open.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from wids.errors import FetchError, ShardFormatError, WidsError, local_error
from wids.shards.tars.headers import BLOCK_NBYTES
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import (
    WRAP,
    Labels,
    Raw,
    RawSample,
    changed_header_error,
    changed_index_error,
    changed_payload_error,
    label,
    position,
)
from wids.storage.arrays import IntArray
from wids.storage.files import fastest_crc32
from wids.storage.stages import checked

if TYPE_CHECKING:
    from typing_extensions import Self


class ReadableShard:
    """A shard whose samples can be read from any number of threads: a tar, or a joined one.

    Attributes:
        name: The shard in messages.
        index: Where the samples are.
        latest_labels: The name of the dataset for which a sample was read last, or None, and the
            labels of its samples. They stay the same nearly always.
    """

    name: str
    index: ShardIndex
    latest_labels: tuple[str | None, Labels] = None, (0, "", "")

    def read(
        self, local_index: int, verify: bool = False, labels: Labels | None = None
    ) -> RawSample:
        """Return one sample.

        Args:
            local_index: Its index, which must be 0 or more.
            verify: Whether to compare its members with the checksums in the index, if it has any.
                Ranges are always compared.
            labels: What to add to the sample.

        Raises:
            ShardFormatError: A member is damaged, or the tar or its index has changed.
        """
        return self.read_many([local_index], verify=verify, labels=labels)[0]

    def read_many(
        self,
        local_indices: Sequence[int],
        *,
        verify: bool = False,
        labels: Labels | None = None,
    ) -> list[RawSample]:
        """Return samples in the order of ``local_indices``; fastest if these ascend.

        Args:
            local_indices: Their indices.
            verify: As for `read`.
            labels: As for `read`.
        """
        raise NotImplementedError

    def read_members(self, members: IntArray, *, verify: bool = False) -> list[bytes]:
        """Return the bytes of members, given in ascending order.

        This is for bulk reading: one field of many samples, without a dict for each sample.

        Raises:
            ShardFormatError: A member is damaged, or the tar or its index has changed.
        """
        raise NotImplementedError

    def of_samples(
        self,
        local_indices: Sequence[int] | IntArray,  # noqa: ARG002 - of shards that have no such index
        on_damage: Callable[[WidsError], object] | None = None,  # noqa: ARG002 - the same
    ) -> ReadableShard:
        """Return a shard whose index has all fields of some samples: this one.

        A shard whose index lacks fields, as that of joined samples, reads the samples instead.

        Args:
            local_indices: The samples, ascending.
            on_damage: Takes the error of a damaged sample, which then has no fields; None to raise
                it.
        """
        return self

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return the bytes of one field from a start to a stop, or to its end."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `ShardFormatError` if a mapped file has changed its length since it was opened."""
        if not self.index.is_intact():
            raise changed_index_error(self.name)


class PooledShard(ReadableShard):
    """An open tar: what a pool keeps, which is a sequence of raw samples.

    Attributes:
        nbytes: Length of the tar in bytes.
        is_local: Whether the whole tar is a file on this machine.
    """

    nbytes: int
    is_local: bool

    @property
    def is_spent(self) -> bool:
        """Whether to open the local file from now on instead of this shard."""
        return False

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}({self.name!r}: {len(self)} samples, {self.nbytes} bytes)"

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.index)

    def __getitem__(self, local_index: int) -> RawSample:
        """Return one sample; negative indices count from the end."""
        return self.read(position(local_index, len(self), self.name))

    def __iter__(self) -> Iterator[RawSample]:
        """Iterate over all samples in order."""
        return map(self.read, range(len(self)))

    def find(self, key: str) -> int:
        """Return the local index of a key, or -1."""
        return self.index.find(key)

    def close(self) -> None:
        """Release what the shard holds; memoryviews that were handed out stay valid."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_or_errors(
    read: Callable[[Any], Iterable[Any]],
    wanted: Any,
    caught: type[WidsError],
    on_failure: Callable[[Any], object] = lambda _: None,
) -> list[Any]:
    """Read items in bulk, or one by one if that fails.

    Args:
        read: Returns the items at some indices, in their order.
        wanted: The indices: a list, a range or an array.
        caught: The error of an item that cannot be read.
        on_failure: Takes the error of reading in bulk; raises if no item can be read.

    Returns:
        The items, with an error in place of each item that cannot be read.
    """
    try:
        return list(read(wanted))
    except caught as error:
        on_failure(error)
    found: list[Any] = []
    for at in range(len(wanted)):
        try:
            found += read(wanted[at : at + 1])
        except caught as error:
            found.append(error)
    return found


FileBytes: TypeAlias = bytes | mmap.mmap

_SMALL_NBYTES: Final = 64 << 10
"""Files up to this size are read, larger ones mapped. Mapping takes as long as reading this many
bytes, and a file descriptor; reading takes memory that processes do not share."""


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


def read_or_map(path: str, *, file: FileIO | None = None, is_own: bool = False) -> FileBytes | None:
    """Read a small file, or map a larger one; return None if that is not possible.

    Args:
        path: The file.
        file: The file, if it is already open; always closed here.
        is_own: Whether to return None for a file of another user: in a shared cache folder, users
            trust only their own files.
    """
    try:
        with FileIO(path) if file is None else file as opened:
            status = os.fstat(opened.fileno())
            # INDEX-3. By the descriptor, not by the path, which another user can replace in
            # between. Windows has no such owner.
            if is_own and hasattr(os, "geteuid") and status.st_uid != os.geteuid():
                return None
            if status.st_size <= _SMALL_NBYTES:
                return opened.read(status.st_size)
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # a folder, or truncated to nothing after `fstat`
        return None


def advise(data: mmap.mmap, advice: str, start: int = 0, nbytes: int | None = None) -> None:
    """Advise the system about a range of a mapped file, or all of it, if the platform can.

    Without advice, a cold read of a few kilobytes costs as much as the system's readahead, which is
    megabytes on some machines. With ``RANDOM`` alone, each page costs a wait; with ``WILLNEED`` on
    the range, there is one wait for all.
    """
    # Windows has no madvise, and macOS lacks some of Linux's options.
    option = getattr(mmap, f"MADV_{advice}", None)
    if option is None or nbytes == 0:
        return
    # madvise accepts only addresses at the start of a page.
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # only advice, and a closed map needs none
        data.madvise(option, first, (len(data) if nbytes is None else start + nbytes) - first)


Append: TypeAlias = Callable[["RawSample"], None]

ReadSamples: TypeAlias = Callable[..., RawSample]
"""Reads samples by their indices, which must be 0 or more, with labels if given; passes each to a
callable if given; and returns the last one."""

Members: TypeAlias = list[tuple[str, int]]
"""The fields to read of a sample, each with the number of its member in the sample."""

Shape: TypeAlias = tuple[Callable[[], RawSample], Members, bool]
"""A function that returns a new sample with its names, and with the labels that all samples of a
shard share, since setting these takes a tenth of the time; its members; and whether one is large.
"""

Look: TypeAlias = Callable[[int, "Labels | None", "list[Shape | None]"], Shape]
"""Returns the shape of a sample, and adds it to the shapes that have these labels."""

LARGE_NBYTES: Final = 16 << 10
"""Larger members get a separate hint, which costs little compared with the copy."""

# What is known of a sample: nothing; that its headers are right, but its shape has no number; only
# that it has the same fields as all samples; or, from 4 on, that its headers are right and that its
# shape has this number, an odd one if it has a large member.
UNREAD, _UNNUMBERED, _UNREAD_UNIFORM, _UNIFORM, _END = 0, 1, 2, 4, 32
_UNCOMPARED: Final = UNREAD, _UNREAD_UNIFORM


def sample_readers(
    path: str,
    data: mmap.mmap,
    view: memoryview,
    index: ShardIndex,
    wanted: frozenset[str] | None,
    raw: Raw,
    known: bytearray,
) -> tuple[ReadSamples, ReadSamples]:
    """Return the function that reads samples, and one that also compares members with the index.

    Args:
        path: The name of the tar in messages.
        data: Its bytes.
        view: The same bytes, of which slices are not copies.
        index: Where its samples are.
        wanted: The only fields to read, or None for all.
        raw: The form of a field.
        known: What is known of each sample, which reads add to: `UNREAD` at first, or what
            `known_at_first` returns.
    """
    starts, blocks, sizes = index.member_starts.data, index.blocks.data, index.sizes.data
    key_starts, key_stops = index.key_starts.data, index.key_starts.data[1:]
    text, text_start, text_stop = index.text, index.text_start, index.text_start - 1
    source: mmap.mmap | memoryview = view if raw == "view" else data
    wrap, crc32 = WRAP[raw], fastest_crc32()
    timed_crc32 = partial(checked, crc32)

    compare = _compare(path, view, index, blocks) if len(index.head_crcs) else None
    look = _look(data, index, wanted, known, (starts, blocks, sizes), compare)

    def reader(crcs: memoryview | None) -> ReadSamples:
        # One tuple, so that threads with different labels cannot mix them up.
        latest: tuple[Any, list[Shape | None]] = (), []

        def read(
            local_indices: Sequence[int], labels: Labels | None, append: Append | None = None
        ) -> RawSample:
            nonlocal latest
            shared = latest
            if shared[0] is not labels and shared[0] != labels:
                shared = latest = labels, [None] * _END
            shapes = shared[1]
            for local_index in local_indices:
                shape = shapes[known[local_index]] or look(local_index, labels, shapes)
                new_sample, members, is_large = shape
                sample, first = new_sample(), starts[local_index]
                if is_large:
                    _hint(data, blocks, sizes, first, members)
                for field, at in members:
                    member = first + at
                    offset = blocks[member] * BLOCK_NBYTES
                    value = source[offset : offset + sizes[member]]
                    if crcs is not None:
                        computed = timed_crc32(value) if is_large else crc32(value)
                        if computed != crcs[member]:
                            raise changed_payload_error(path, index.member_name(member))
                    sample[field] = value if wrap is None else wrap(value)
                start, stop = text_start + key_starts[local_index], key_stops[local_index]
                sample["__key__"] = text[start : text_stop + stop].decode(errors="surrogateescape")
                if labels is not None:
                    sample["__index__"] = labels[0] + local_index
                    sample["__shardindex__"] = local_index
                if append is not None:
                    append(sample)
            return sample

        return read

    plain = reader(None)
    return plain, reader(index.payload_crcs.data) if len(index.payload_crcs) else plain


def _hint(
    data: mmap.mmap, blocks: memoryview, sizes: memoryview, first: int, members: Members
) -> None:
    """Advise the system to read ahead the large members of a sample."""
    for _, at in members:
        if sizes[first + at] > LARGE_NBYTES:
            advise(data, "WILLNEED", blocks[first + at] * BLOCK_NBYTES, sizes[first + at])


def _compare(
    path: str, view: memoryview, index: ShardIndex, blocks: memoryview
) -> Callable[[int, Members], None]:
    """Return the function that compares the headers of a sample with the index."""
    heads, crcs, crc32 = index.head_blocks.data, index.head_crcs.data, fastest_crc32()

    def compare(first: int, members: Members) -> None:
        for field, at in members:
            body = blocks[first + at] * BLOCK_NBYTES
            head = body - heads[first + at] * BLOCK_NBYTES
            if crc32(view[head:body]) != crcs[first + at]:
                raise changed_header_error(path, head, field)

    return compare


def _numbering() -> Callable[[bytes], int]:
    """Return the function for the number of a shape; `_END` or more if it has none."""
    numbers: dict[bytes, int] = {}
    new_number = count(_UNIFORM + 2, 2)

    def number_of(field_ids: bytes) -> int:
        number = numbers.get(field_ids)
        if number is None:
            number = next(new_number)
            if number < _END:
                numbers[field_ids] = number  # a shape that two threads meet may have two numbers
        return number

    return number_of


def _look(
    data: mmap.mmap,
    index: ShardIndex,
    wanted: frozenset[str] | None,
    known: bytearray,
    columns: tuple[memoryview, memoryview, memoryview],
    compare: Callable[[int, Members], None] | None,
) -> Look:
    """Return the function that is called for samples whose shape is not known with their labels."""
    starts, blocks, sizes = columns
    stops, field_ids, number_of = starts[1:], index.field_ids.data, _numbering()

    def look(local_index: int, labels: Labels | None, shapes: list[Shape | None]) -> Shape:
        state, first = known[local_index], starts[local_index]
        number = _UNIFORM if state == _UNREAD_UNIFORM else state & ~1
        if not number:
            number = number_of(field_ids[first : stops[local_index]].tobytes())
        shape = shapes[number] if number < _END else None
        if shape is None:
            ids = field_ids[first : stops[local_index]]
            shape = _shape([index.fields[field_id] for field_id in ids], wanted, labels)
        members = shape[1]
        is_large = False
        for _, at in members:
            is_large = is_large or sizes[first + at] > LARGE_NBYTES
        if compare is not None and state in _UNCOMPARED:
            if is_large:
                # So that the headers are not waited for alone.
                _hint(data, blocks, sizes, first, members)
            compare(first, members)
        if number >= _END:
            known[local_index] = _UNNUMBERED
            return shape[0], members, is_large
        shapes[number] = shape
        if is_large:
            number += 1
            shape = shapes[number] = shape[0], members, True
        known[local_index] = number
        return shape

    return look


def _shape(fields: list[str], wanted: frozenset[str] | None, labels: Labels | None) -> Shape:
    """Return the shape of a sample with these fields, as if it had no large member."""
    members = [(f, at) for at, f in enumerate(fields) if wanted is None or f in wanted]
    blank: RawSample = dict.fromkeys([*(field for field, _ in members), "__key__"])
    if labels is not None:
        label(blank, 0, labels)
    return blank.copy, members, False


def known_at_first(index: ShardIndex) -> int:
    """Return what is known of all samples before they are read; looks at the whole index."""
    if not len(index):
        return UNREAD
    num_fields = int(index.member_starts[1])
    if (index.member_starts != np.arange(len(index) + 1) * num_fields).any():
        return UNREAD
    if index.field_ids[:num_fields].tobytes() * len(index) != index.field_ids.tobytes():
        return UNREAD
    is_large = index.sizes.max(initial=0) > LARGE_NBYTES
    return _UNREAD_UNIFORM if is_large or len(index.head_crcs) else _UNIFORM
