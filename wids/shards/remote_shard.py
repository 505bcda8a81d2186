"""Read samples and fields of remote tars by byte range, where that is less than the shard.

Only the members of the requested samples are read, each with the headers before it, which must be
those that the index was made from. A callable reads the ranges.

Nobody knows what a program will read next. A shard is fetched as soon as that is at most twice the
cost of the best choice in hindsight (decision 0093). A sampler does know: it announces the shards
of its pass, which are then fetched when they are first needed.
"""

from __future__ import annotations

import io
import math
import operator
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from wids.errors import MismatchError, NotFoundError, WidsError
from wids.shards.tars.headers import BLOCK_NBYTES
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import (
    WRAP,
    Labels,
    PooledShard,
    Raw,
    RawSample,
    ReadableShard,
    changed_header_error,
    changed_payload_error,
    label,
)
from wids.storage.arrays import IntArray
from wids.storage.cache import cache_names
from wids.storage.files import fastest_crc32
from wids.storage.ranges import (
    GAP_NBYTES,
    Arrived,
    RangeError,
    Read,
    Span,
    bytes_of,
    frugal_gap_nbytes,
    joined,
    read_all,
)
from wids.storage.shared_numbers import SharedArray
from wids.storage.stages import checked
from wids.storage.transport.stream import PastEndError

Value: TypeAlias = "bytes | WidsError"
"""A member that was read and compared with the index, or why it cannot be returned."""


class MemberRange(NamedTuple):
    """A range to read, and the members in it."""

    start: int
    stop: int
    members: list[int]


class SpentError(RangeError):
    """A shard of which enough was read by range, so that it should be fetched."""


class RemoteShard(PooledShard):
    """One remote tar as a sequence of raw samples.

    Safe to read from any number of threads and after a fork; holds nothing that must be closed.

    Args:
        name: The name of the tar in messages.
        index: Where its samples are, with checksums.
        nbytes: Length of the tar in bytes.
        read_range: Returns the bytes from a start to a stop.
        read_part: Does the same for bytes that no checksum covers, and raises `MismatchError` if
            they may be of another version than those before; None for ``read_range``.
        fields: The only fields to read, or None for all.
        raw: The form of a field, as for `Shard`; the bytes of a ``"view"`` are its own.
        takes: Called with the bytes of each read before it begins, and with 0 to ask whether
            anything will be read; returns False if the whole tar should be fetched instead.
        has_copy: Whether a local copy of the tar exists by now.
        version: Returns the version of all that ``read_part`` returns; None if it is not known.
        watch: Returns a block that notes errors which concern the whole shard.

    Raises:
        ValueError: The index has no checksums.
    """

    is_local = False

    def __init__(
        self,
        name: str,
        index: ShardIndex,
        nbytes: int,
        read_range: Read,
        *,
        read_part: Read | None = None,
        fields: Collection[str] | None = None,
        raw: Raw = "bytes",
        takes: Callable[[int], bool] = lambda _: True,
        has_copy: Callable[[], bool] = lambda: False,
        version: Callable[[], str | None] = lambda: None,
        watch: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.name = name
        self.index = index
        self.nbytes = nbytes
        self.takes = takes
        self._has_copy = has_copy
        self._version = version
        self._watch = watch
        self._known_heads: dict[int, str] = {}  # the version in which each was compared
        self._read_range = read_range
        self._read_part = read_part or read_range
        self._arrived: Mapping[int, Value] = {}
        self._fields = None if fields is None else frozenset(fields)
        self._raw: Raw = raw
        if len(index.head_crcs) != len(index.blocks):
            raise ValueError(f"{name}: expected an index with checksums, found one without")

    @property
    def is_spent(self) -> bool:
        """Whether to open the whole tar from now on: enough of it was read, or a copy exists."""
        return not self.takes(0) or self._has_copy()

    def read_many(
        self,
        local_indices: Sequence[int],
        *,
        verify: bool = True,  # noqa: ARG002 - all that comes over a network is compared
        labels: Labels | None = None,
    ) -> list[RawSample]:
        """Return samples in the order of ``local_indices``; neighbors share a request.

        Raises:
            MismatchError, ShardFormatError: The tar or the index has changed.
            SpentError: The tar should be fetched instead.
            FetchError: The tar cannot be read.
        """
        self.check()
        local_indices = list(map(operator.index, local_indices))  # numpy integers may be narrow
        members = {i: self._members_of(i) for i in local_indices}
        # A set, so that a sample that is repeated in a batch is read once.
        wanted, values = {member for some in members.values() for member in some}, self._arrived
        if not wanted <= values.keys():
            values = self._read_ranges(self._ranges(wanted))
        samples = [self._sample(i, members[i], values) for i in local_indices]
        if labels is not None:
            for local_index, sample in zip(local_indices, samples, strict=True):
                label(sample, local_index, labels)
        return samples

    def ranges(self, local_indices: Sequence[int]) -> list[MemberRange]:
        """Return the ranges that `read_many` reads for some samples.

        Raises:
            WidsError: The shard is known to be broken.
        """
        self.check()
        with self._watch():
            pass
        return self._ranges({member for i in local_indices for member in self._members_of(i)})

    def to_read(self, wanted: MemberRange) -> tuple[Read, int, int]:
        """Return what `read_all` needs to read a range, which the caller has had counted."""
        return self._read_range, wanted.start, wanted.stop

    def members_of(self, wanted: MemberRange, arrived: Arrived) -> dict[int, Value]:
        """Return the members of a range that was read.

        Raises:
            WidsError: It could not be read.
        """
        with self._watch():
            view = bytes_of(arrived)
        return {member: self._value(member, wanted.start, view) for member in wanted.members}

    def with_values(self, values: Mapping[int, Value]) -> RemoteShard:
        """Return the same shard, with members that were read."""
        shard = copy(self)
        shard._arrived = values  # noqa: SLF001 - of this class
        return shard

    def read_members(
        self,
        members: IntArray,
        *,
        verify: bool = True,  # noqa: ARG002 - all that comes over a network is compared
    ) -> list[bytes]:
        """Return the bytes of members, given in ascending order; neighbors share a request.

        Raises:
            MismatchError, ShardFormatError: The tar or the index has changed.
            FetchError: The tar cannot be read.
        """
        self.check()
        wanted = members.tolist()
        values = self._read_ranges(self._ranges(wanted, GAP_NBYTES))
        return [_intact(values[member]) for member in wanted]

    def read_starts(self, members: IntArray, nbytes: int) -> list[bytes]:
        """Return the first bytes of members, given in ascending order; neighbors share a request.

        Raises:
            MismatchError, ShardFormatError: The tar or the index has changed.
            FetchError: The tar cannot be read.
        """
        self.check()
        heads, bodies, stops = self.index.spans(members)
        edges = [each.tolist() for each in (heads, bodies, np.minimum(stops, bodies + nbytes))]
        ranges = joined(sorted(zip(edges[0], edges[2], strict=True)), GAP_NBYTES)
        try:
            views = self._read_parts(ranges)
        except (MismatchError, NotFoundError, PastEndError):
            if not len(self.index.payload_crcs):
                raise
            return super().read_starts(members, nbytes)  # of whole members, which are compared
        starts, values = [start for start, _ in ranges], []
        for member, head, body, stop in zip(members.tolist(), *edges, strict=True):
            number = bisect_right(starts, head) - 1
            view, start = views[number], starts[number]
            self._check_head(member, head, view[head - start : body - start])
            values.append(bytes(view[body - start : stop - start]))
        return values

    def request_nbytes(self, members: IntArray, most_nbytes: int | None = None) -> int:
        """Return the cost of reading members in bytes; a request counts as the largest gap.

        Args:
            members: The members.
            most_nbytes: How many first bytes to read of each; None for all.
        """
        members = members[np.argsort(self.index.blocks[members], kind="stable")]
        heads, bodies, stops = self.index.spans(members)
        if most_nbytes is not None:
            stops = np.minimum(stops, bodies + most_nbytes)
        gaps = np.minimum(np.maximum(heads[1:] - stops[:-1], 0), GAP_NBYTES)
        return int((stops - heads).sum() + gaps.sum()) + GAP_NBYTES

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return the bytes of one field from a start to a stop, or to its end.

        Only these bytes are read; and the headers of the member, unless they were compared before
        and are known to be of the same version. If the server states another version for them, the
        whole member is read, and compared with its checksum.

        Raises:
            KeyError: The sample does not have the field.
            MismatchError, ShardFormatError: The tar or the index has changed.
            FetchError: The tar cannot be read.
        """
        self.check()
        member = self.index.member(local_index, field, self.name)
        head, end = self._span(member)
        body = int(self.index.blocks[member]) * BLOCK_NBYTES
        part = min(body + start, end), min(body + stop, end)
        version = self._version()
        is_known = version is not None and self._known_heads.get(member) == version
        heads = [] if is_known else [(head, body)]
        spans = joined([*heads, part] if part[0] < part[1] else heads)
        if not spans:
            return b""
        try:
            views = self._read_parts(spans)
        except (MismatchError, NotFoundError, PastEndError):
            if not len(self.index.payload_crcs):
                raise
            # If it is not a mirror that states another version, this read raises the error of all
            # reads of a shard that has changed.
            return _intact(self._read_ranges(self._ranges([member]))[member])[start:stop]
        if not is_known:
            self._check_head(member, head, views[0][: body - head])
            found = self._version()
            if found is not None and version in (None, found):
                self._known_heads[member] = found
        base = spans[-1][0]
        return bytes(views[-1][part[0] - base : part[1] - base])

    def _read_ranges(self, ranges: Sequence[MemberRange]) -> dict[int, Value]:
        """Return the members of ranges."""
        with self._watch():  # nothing is requested of a broken shard
            pass
        self._count((each.start, each.stop) for each in ranges)
        values: dict[int, Value] = {}
        for members in read_all(
            [self.to_read(each) for each in ranges],
            lambda number, arrived: self.members_of(ranges[number], arrived),
        ):
            values.update(members)
        return values

    def _read_parts(self, spans: Sequence[Span]) -> list[memoryview]:
        """Return bytes that no checksum covers.

        If one does cover the member, this error decides nothing: the whole member is read then.
        """
        self._count(spans)
        watch = nullcontext if len(self.index.payload_crcs) else self._watch

        def use(_: int, arrived: Arrived) -> memoryview:
            with watch():
                return bytes_of(arrived)

        return read_all([(self._read_part, *span) for span in spans], use)

    def _count(self, spans: Iterable[Span]) -> None:
        """Have ranges that will be read counted.

        Raises:
            SpentError: The tar should be fetched instead.
        """
        if not self.takes(sum(stop - start for start, stop in spans)):
            raise SpentError(
                f"{self.name}: expected a shard of which little is read, found one of which so "
                "much was read that it has to be fetched"
            )

    def _members_of(self, local_index: int) -> list[int]:
        """Return the members of a sample to read."""
        members, wanted = self.index.members(local_index), self._fields
        return [members[field] for field in members if wanted is None or field in wanted]

    def _ranges(self, members: Iterable[int], gap_nbytes: float | None = None) -> list[MemberRange]:
        """Return the ranges to read for members, with gaps of at most so many bytes."""
        places = sorted((self._span(member), member) for member in members)
        spans = [span for span, _ in places]
        gap_nbytes = frugal_gap_nbytes(spans) if gap_nbytes is None else gap_nbytes
        ranges = [MemberRange(*span, []) for span in joined(spans, gap_nbytes)]
        starts = [each.start for each in ranges]
        for (start, _), member in places:
            ranges[bisect_right(starts, start) - 1].members.append(member)
        return ranges

    def _span(self, member: int) -> tuple[int, int]:
        """Return where the headers of a member begin and where its bytes end."""
        start, size = int(self.index.blocks[member]) * BLOCK_NBYTES, int(self.index.sizes[member])
        return start - int(self.index.head_blocks[member]) * BLOCK_NBYTES, start + size

    def _check_head(self, member: int, start: int, head: memoryview) -> None:
        """Compare the headers of a member, which begin at a byte of the tar, with the index."""
        # A header has name and length, so another tar of the same length is noticed.
        index = self.index
        if zlib.crc32(head) != index.head_crcs[member]:
            raise changed_header_error(self.name, start, index.fields[index.field_ids[member]])

    def _is_intact(self, member: int, value: memoryview) -> bool:
        """Whether these bytes have a member's checksum; True if the index has none."""
        crcs = self.index.payload_crcs
        return not len(crcs) or checked(fastest_crc32(), value) == crcs[member]

    def _sample(
        self, local_index: int, members: list[int], values: Mapping[int, Value]
    ) -> RawSample:
        """Return a sample of members that were read."""
        wrap, sample = memoryview if self._raw == "view" else WRAP[self._raw], RawSample()
        for member in members:
            field = self.index.fields[self.index.field_ids[member]]
            value = _intact(values[member])
            sample[field] = value if wrap is None else wrap(value)
        sample["__key__"] = self.index.key(local_index)
        return sample

    def _value(self, member: int, start: int, view: memoryview) -> Value:
        """Take a member out of a range that begins at ``start``, and compare it with the index."""
        head, stop = self._span(member)
        body = int(self.index.blocks[member]) * BLOCK_NBYTES
        try:
            self._check_head(member, head, view[head - start : body - start])
            value = view[body - start : stop - start]
            if not self._is_intact(member, value):
                with self._watch():
                    value = memoryview(self._read_range(body, stop))  # damage may be transient
                if not self._is_intact(member, value):
                    return changed_payload_error(self.name, self.index.member_name(member))
        except WidsError as error:  # concerns the samples of this member alone
            return error
        # A copy, also for a view: that of what was read would keep the whole range in memory, and
        # have no hash, since a buffer for received bytes has none.
        return bytes(value)


def _intact(value: Value) -> bytes:
    if isinstance(value, WidsError):
        raise value
    return value


_ANNOUNCED: Final = 1 << 62
"""Stands for the bytes read of a shard that was announced."""

_SMALL_NBYTES: Final = 8 << 20
"""A shard that arrives about as soon as a part of it: batches wait for it."""


class RangeBudget:
    """Bytes that were read by range of each shard of a dataset, and which shards were announced.

    Shared with the processes that are started later, forked and spawned ones alike. A copy that is
    pickled for another machine starts from the current values. There is no lock: of two processes
    or threads that add at the same moment, one may not be counted, which only delays a fetch.

    Args:
        num_shards: Number of shards.
    """

    def __init__(self, num_shards: int) -> None:
        # For each shard, and the bytes of `let_ahead`.
        self._shared = SharedArray("q", num_shards + 1)

    def takes(self, number: int, shard_nbytes: int, nbytes: int) -> bool:
        """Whether to read this many bytes of a shard by range, which are then counted.

        Args:
            number: The shard.
            shard_nbytes: Its length.
            nbytes: Bytes to read; 0 to ask whether anything more is read by range.
        """
        values = self._shared.values
        read_nbytes = values[number]
        if read_nbytes == _ANNOUNCED:
            free_nbytes = values[-1]
            if shard_nbytes <= _SMALL_NBYTES or free_nbytes < max(nbytes, 1):
                return False
            values[-1] = free_nbytes - nbytes
            return True
        # What is transferred until its copy is evicted is then at most twice what the best choice
        # would transfer, whatever is read later (decision 0093).
        if read_nbytes + 2 * nbytes >= shard_nbytes:
            return False
        values[number] = read_nbytes + nbytes
        return True

    def announce(self, numbers: Iterable[int]) -> None:
        """Note shards that a pass reads whole, or in large part."""
        for number in numbers:
            self._shared.values[number] = _ANNOUNCED

    def forget_announced(self) -> None:
        """Count all shards that were announced from zero again."""
        for number in range(len(self._shared.values) - 1):
            if self._shared.values[number] == _ANNOUNCED:
                self._shared.values[number] = 0

    def let_ahead(self, nbytes: int) -> None:
        """Let batches read this many bytes of announced shards while these are being fetched.

        Without them, each batch waits for its shards.
        """
        self._shared.values[-1] = nbytes

    def note_fetched(self, number: int) -> None:
        """Count from zero again: if the copy of the shard is evicted, the choice is a new one."""
        if self._shared.values[number] != _ANNOUNCED:
            self._shared.values[number] = 0


_BUFFER_NBYTES: Final = 256 << 10
"""Bytes of a request: video is read in steps of 32 kB, each of which would cost a round trip."""


def open_field(
    open_shard: Callable[..., ReadableShard],
    place: tuple[int, int],
    field: str,
    limit_nbytes: float = math.inf,
    cache_folder: str | None = None,
) -> io.BufferedReader:
    """Open a field as a binary file that can seek.

    Args:
        open_shard: Opens a shard by its number, as `ShardReader.open` does.
        place: The number of the shard that has the sample, and its index there.
        field: The field, with its leading dot.
        limit_nbytes: Most bytes to read in all; reading more is an error.
        cache_folder: Where what a decoder finds out about the field is kept; None for nowhere.

    Raises:
        KeyError: The sample does not have the field.
        FetchError: The shard cannot be opened.
    """
    number, local_index = place
    shard = open_shard(number, local=False)
    index, kept = shard.index, None
    if cache_folder is not None and len(index.payload_crcs):
        member = index.member(local_index, field, f"shard {number}")
        facts = index.member_name(member), int(index.payload_crcs[member]), int(index.sizes[member])
        path = cache_names.frames_path(cache_folder, shard.name, *facts)
        kept = partial(cache_names.saved_or_made, path)
    _, nbytes = shard.index.place(local_index, field, f"shard {number}")
    left_nbytes = limit_nbytes

    def read(start: int, stop: int) -> bytes:
        nonlocal left_nbytes
        left_nbytes -= stop - start
        if left_nbytes < 0:
            raise OSError(f"more than {limit_nbytes:,} bytes would have to be read")
        # Opened for each part: a copy that stays open cannot be evicted (CACHE-7).
        return open_shard(number, local=False).read_part(local_index, field, start, stop)

    return io.BufferedReader(_FieldFile(nbytes, read, kept), _BUFFER_NBYTES)


class _FieldFile(io.RawIOBase):
    """The bytes of a field, by a callable that reads from a start to a stop.

    Attributes:
        kept: Returns what a decoder has found out about the field in an earlier process, or calls
            a callable that finds it out; None if that is not kept.
    """

    def __init__(
        self,
        nbytes: int,
        read: Callable[[int, int], bytes],
        kept: Callable[[Callable[[], bytes]], bytes] | None,
    ) -> None:
        self.kept = kept
        self._nbytes = nbytes
        self._read = read
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        if base + offset < 0:
            raise ValueError(f"expected a position of 0 or more, found {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        stop = min(self._at + len(buffer), self._nbytes)
        if stop <= self._at:
            return 0
        data = self._read(self._at, stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
