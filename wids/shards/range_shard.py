"""Read raw samples of one remote tar by byte range; see `tars.readable_shard`.

Only the members of the requested samples are read, each with the headers before it, which must be
those that the index was made from. A callable reads the ranges.
"""

from __future__ import annotations

import operator
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from functools import partial
from typing import TypeAlias

import numpy as np

from wids.errors import ShardFormatError
from wids.shards.tars.archive import BLOCK_NBYTES
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.member_names import to_bytes
from wids.shards.tars.raw_samples import (
    WRAP,
    Labels,
    Raw,
    RawSample,
    ReadRange,
    changed_header_error,
    changed_payload_error,
    label,
)
from wids.shards.tars.readable_shard import PooledShard
from wids.storage.array_types import IntArray
from wids.storage.checksums import fastest_crc32
from wids.storage.joined_ranges import GAP_NBYTES, Span, frugal_gap_nbytes, joined
from wids.storage.range_reader import RangeError
from wids.storage.reading_threads import in_threads
from wids.storage.stages import checked

ReadSpans: TypeAlias = Callable[[Sequence[Span]], list[memoryview]]
"""Returns the bytes of several ranges of one tar."""


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
        fields: The only fields to read, or None for all.
        raw: The form of a field, as for `Shard`; the bytes of a ``"view"`` are its own.
        takes: Called with the bytes of each read before it begins, and with 0 to ask whether
            anything will be read; returns False if the whole tar should be fetched instead.
        has_copy: Whether a local copy of the tar exists by now.
        version: Returns the version of all that ``read_range`` returns; None if it is not known.
        index_name: The file of another program that the index was made from, which has no
            checksums: headers are compared with names and lengths instead.

    Raises:
        ValueError: The index has no checksums, and is not one of these.
    """

    is_local = False

    def __init__(
        self,
        name: str,
        index: ShardIndex,
        nbytes: int,
        read_range: ReadRange,
        *,
        fields: Collection[str] | None = None,
        raw: Raw = "bytes",
        takes: Callable[[int], bool] = lambda _: True,
        has_copy: Callable[[], bool] = lambda: False,
        version: Callable[[], str | None] = lambda: None,
        index_name: str | None = None,
    ) -> None:
        self.name = name
        self.index = index
        self.nbytes = nbytes
        self.takes = takes
        self._has_copy = has_copy
        self._version = version
        self._known_heads: dict[int, str] = {}  # the version in which each was compared
        self._read_range = read_range
        self._read_spans: ReadSpans = self.read_ranges
        self._fields = None if fields is None else frozenset(fields)
        self._raw: Raw = raw
        self._index_name = index_name
        if index_name is None and len(index.head_crcs) != len(index.blocks):
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
        spans = self._spans_of(members.values())
        starts, views = [start for start, _ in spans], self._read_spans(spans)
        samples = [self._sample(i, members[i], starts, views) for i in local_indices]
        if labels is not None:
            for local_index, sample in zip(local_indices, samples, strict=True):
                label(sample, local_index, labels)
        return samples

    def spans(self, local_indices: Sequence[int]) -> list[Span]:
        """Return the ranges that `read_many` reads for some samples."""
        self.check()
        return self._spans_of(map(self._members_of, local_indices))

    def read_by(self, read_spans: ReadSpans) -> RemoteShard:
        """Return the same shard, whose samples are cut out of ranges that a callable returns."""
        shard = copy(self)
        shard._read_spans = read_spans  # noqa: SLF001 - of this class
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
        spans = joined(sorted(map(self._span, members.tolist())))
        starts, views = [start for start, _ in spans], self._read_spans(spans)
        return [bytes(self._value(member, starts, views)) for member in members.tolist()]

    def request_nbytes(self, members: IntArray) -> int:
        """Return the cost of reading members in bytes; a request counts as the largest gap."""
        index = self.index
        members = members[np.argsort(index.blocks[members], kind="stable")]
        bodies = index.blocks[members].astype(np.int64) * BLOCK_NBYTES
        heads = bodies - index.head_blocks[members].astype(np.int64) * BLOCK_NBYTES
        stops = bodies + index.sizes[members].astype(np.int64)
        gaps = np.minimum(np.maximum(heads[1:] - stops[:-1], 0), GAP_NBYTES)
        return int((stops - heads).sum() + gaps.sum()) + GAP_NBYTES

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return the bytes of one field from a start to a stop, or to its end.

        Only these bytes are read; and the headers of the member, unless they were compared before
        and are known to be of the same version.

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
        views = self._read_spans(spans)
        if not is_known:
            self._check_head(member, head, views[0][: body - head])
            found = self._version()
            if found is not None and version in (None, found):
                self._known_heads[member] = found
        base = spans[-1][0]
        return bytes(views[-1][part[0] - base : part[1] - base])

    def read_range(self, span: Span) -> bytes | memoryview:
        """Return the bytes of one range, which the caller has had counted by `takes`."""
        return self._read_range(*span)

    def read_ranges(self, spans: Sequence[Span]) -> list[memoryview]:
        """Return the bytes of ranges as memoryviews, so that slices do not copy.

        Raises:
            SpentError: The tar should be fetched instead.
            FetchError: The tar cannot be read.
        """
        if not self.takes(sum(stop - start for start, stop in spans)):
            raise SpentError(
                f"{self.name}: expected a shard of which little is read, found one of which so "
                "much was read that it has to be fetched"
            )
        tasks = [partial(self._read_range, *span) for span in spans]
        return [memoryview(data) for data in in_threads(tasks, "wids-ranges")]

    def _members_of(self, local_index: int) -> list[int]:
        """Return the members of a sample to read."""
        members, wanted = self.index.members(local_index), self._fields
        return [members[field] for field in members if wanted is None or field in wanted]

    def _spans_of(self, members: Iterable[Sequence[int]]) -> list[Span]:
        """Return the ranges to read for the members of samples."""
        # A set, so that a sample that is repeated in a batch is read once.
        spans = sorted({self._span(member) for some in members for member in some})
        return joined(spans, frugal_gap_nbytes(spans))

    def _span(self, member: int) -> tuple[int, int]:
        """Return where the headers of a member begin and where its bytes end."""
        start, size = int(self.index.blocks[member]) * BLOCK_NBYTES, int(self.index.sizes[member])
        return start - int(self.index.head_blocks[member]) * BLOCK_NBYTES, start + size

    def _check_head(self, member: int, start: int, head: memoryview) -> None:
        """Compare the headers of a member, which begin at a byte of the tar, with the index."""
        # A header has name and length, so another tar of the same length is noticed.
        index = self.index
        if self._index_name is None:
            if zlib.crc32(head) != index.head_crcs[member]:
                raise changed_header_error(self.name, start, index.fields[index.field_ids[member]])
            return
        from wids.shards.tars.head_check import header_problem  # most indexes have checksums

        name, size = index.member_name(member), int(index.sizes[member])
        problem = header_problem(bytes(head), start, self.nbytes, to_bytes(name), size)
        if problem is not None:
            raise ShardFormatError(
                f'{self.name}: at byte {start}: expected the header of "{name}" with {size} bytes, '
                f"as {self._index_name} states, found {problem}; make that index again or remove "
                "it, or describe the shards with `wids create` and open that spec"
            )

    def _is_intact(self, member: int, value: memoryview) -> bool:
        """Whether these bytes have a member's checksum; True if the index has none."""
        crcs = self.index.payload_crcs
        return not len(crcs) or checked(fastest_crc32(), value) == crcs[member]

    def _sample(
        self, local_index: int, members: list[int], starts: list[int], views: list[memoryview]
    ) -> RawSample:
        """Cut a sample out of the ranges that were read, and check its members.

        Args:
            local_index: The sample.
            members: Its members.
            starts: Where each range begins in the tar, in ascending order.
            views: The bytes of each range.
        """
        wrap, sample = memoryview if self._raw == "view" else WRAP[self._raw], RawSample()
        for member in members:
            field = self.index.fields[self.index.field_ids[member]]
            # A copy, also for a view: that of what was read would keep the whole range in memory,
            # and have no hash, since a buffer for received bytes has none.
            value = bytes(self._value(member, starts, views))
            sample[field] = value if wrap is None else wrap(value)
        sample["__key__"] = self.index.key(local_index)
        return sample

    def _value(self, member: int, starts: list[int], views: list[memoryview]) -> memoryview:
        """Cut a member out of the ranges that were read, and check it."""
        start, stop = self._span(member)
        which = bisect_right(starts, start) - 1
        base, view = starts[which], views[which]
        body = int(self.index.blocks[member]) * BLOCK_NBYTES
        self._check_head(member, start, view[start - base : body - base])
        value = view[body - base : stop - base]
        if not self._is_intact(member, value):
            value = memoryview(self._read_range(body, stop))  # once more: damage may be transient
            if not self._is_intact(member, value):
                raise changed_payload_error(self.name, self.index.member_name(member))
        return value
