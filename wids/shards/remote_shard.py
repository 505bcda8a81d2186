"""Read samples and fields of remote tars by byte range, where that is less than the shard.

Only the members of the requested samples are read, each with the headers before it, which must be
those that the index was made from. A callable reads the ranges.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from wids.errors import MismatchError, NotFoundError, WidsError
from wids.shards.tars.headers import BLOCK_NBYTES
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import (
    WRAP,
    Labels,
    Raw,
    RawSample,
    changed_payload_error,
    label,
)
from wids.shards.tars.tar_shard import Span, TarShard
from wids.storage.arrays import IntArray
from wids.storage.files import fastest_crc32
from wids.storage.ranges import (
    GAP_NBYTES,
    Arrived,
    RangeError,
    Read,
    bytes_of,
    frugal_gap_nbytes,
    joined,
    read_all,
)
from wids.storage.stages import checked
from wids.storage.transport.stream import PastEndError

Value: TypeAlias = "bytes | WidsError"
"""A member that was read and compared with the index, or why it cannot be returned."""


class MemberRange(NamedTuple):
    """A range to read, and the members in it."""

    start: int
    stop: int
    members: list[int]


_OTHER_VERSION: Final = MismatchError, NotFoundError, PastEndError
"""Errors of a server that may be a mirror, which states another version for equal bytes."""


class SpentError(RangeError):
    """A shard of which enough was read by range, so that it should be fetched."""


class RemoteShard(TarShard):
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
        takes: Called with the bytes of each read before it begins; returns False if the whole tar
            should be fetched instead.
        version: Returns the version of all that ``read_part`` returns; None if it is not known.
        watch: Returns a block that notes errors which concern the whole shard.

    Raises:
        ValueError: The index has no checksums.
    """

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
        takes: Callable[[int], bool] | None = None,
        version: Callable[[], str | None] = lambda: None,
        watch: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.name = name
        self.index = index
        self.nbytes = nbytes
        self.takes = takes or (lambda _: True)
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
        try:
            return super().read_starts(members, nbytes)
        except _OTHER_VERSION:
            if not len(self.index.payload_crcs):
                raise
            return [value[:nbytes] for value in self.read_members(members)]

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
        try:
            return super().read_part(local_index, field, start, stop)
        except _OTHER_VERSION:
            if not len(self.index.payload_crcs):
                raise
            # If it is not a mirror that states another version, this read raises the error of all
            # reads of a shard that has changed.
            member = self.index.member(local_index, field, self.name)
            return self.read_members(np.array([member]))[0][start:stop]

    def _knows_head(self, member: int) -> bool:
        version = self._version()
        return version is not None and self._known_heads.get(member) == version

    def _note_head(self, member: int) -> None:
        version = self._version()
        if version is not None:
            self._known_heads[member] = version

    def _read_ranges(self, ranges: Sequence[MemberRange]) -> dict[int, Value]:
        """Return the members of ranges."""
        with self._watch():  # nothing is requested of a broken shard
            pass
        self._count(sum([each.stop - each.start for each in ranges]))
        values: dict[int, Value] = {}
        for members in read_all(
            [self.to_read(each) for each in ranges],
            lambda number, arrived: self.members_of(ranges[number], arrived),
        ):
            values.update(members)
        return values

    def _buffers(self, spans: list[Span]) -> list[memoryview]:
        """Return bytes that no checksum covers; near spans share a request.

        If one does cover the member, an error decides nothing: the whole member is read then.
        """
        ranges = joined(sorted(spans))
        self._count(sum([stop - start for start, stop in ranges]))
        watch = nullcontext if len(self.index.payload_crcs) else self._watch

        def use(_: int, arrived: Arrived) -> memoryview:
            with watch():
                return bytes_of(arrived)

        views = read_all([(self._read_part, *each) for each in ranges], use)
        starts, found = [start for start, _ in ranges], []
        for start, stop in spans:
            at = bisect_right(starts, start) - 1
            found.append(views[at][start - starts[at] : stop - starts[at]])
        return found

    def _count(self, nbytes: int) -> None:
        """Have bytes that will be read counted.

        Raises:
            SpentError: The tar should be fetched instead.
        """
        if not self.takes(nbytes):
            raise SpentError(
                f"{self.name}: expected a shard of which little is read, found one of which so "
                "much was read that it has to be fetched"
            )

    def _members_of(self, local_index: int) -> list[int]:
        """Return the members of a sample to read."""
        members, wanted = self.index.members(local_index), self._fields
        if wanted is None:
            return list(members.values())
        return [member for field, member in members.items() if field in wanted]

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
