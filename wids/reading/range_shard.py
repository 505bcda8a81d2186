"""One remote tar as a sequence of raw samples, read by byte range; the same protocol as a `Shard`.

What is read are the members of the samples that are asked for, with the headers before them, which
must be those that the index was made from. This room knows neither URLs nor protocols: it is given
a callable that reads a range.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final

from wids.errors import ShardFormatError
from wids.tars.index import ShardIndex
from wids.tars.samples import WRAP, Raw, RawSample, ReadRange, position
from wids.tars.tar import BLOCK_NBYTES

_GAP_NBYTES: Final = 64 << 10
"""Bytes between two members that are rather read than asked for separately: what a connection
carries in about the time that it takes to ask."""

_REQUEST_NBYTES: Final = 8 << 20
"""Neighbours are read together up to this length, so that several requests share the work."""

_MAX_REQUESTS: Final = 8
"""Requests at a time."""


class RemoteShard:
    """One remote tar as a sequence of raw samples.

    Safe to read from any number of threads and after a fork; holds nothing that has to be closed.

    Args:
        name: How messages name the tar.
        index: Where its samples are, with checksums.
        nbytes: Length of the tar in bytes.
        read_range: Gives the bytes from a start to a stop.
        fields: The only fields to read, or None for all.
        raw: What a field is, as for `Shard`; a ``"view"`` is one of the bytes that were read.
        enough_nbytes: How much to read this way; then it would have been better to fetch the whole.
        is_here: Tells whether the whole is on this machine by now.

    Attributes:
        num_read_nbytes: Bytes that were asked for so far.
    """

    is_local: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        index: ShardIndex,
        nbytes: int,
        read_range: ReadRange,
        *,
        fields: Collection[str] | None = None,
        raw: Raw = "bytes",
        enough_nbytes: float = math.inf,
        is_here: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.index = index
        self.nbytes = nbytes
        self.num_read_nbytes = 0
        self.enough_nbytes = enough_nbytes
        self._is_here = is_here
        self._read_range = read_range
        self._fields = None if fields is None else frozenset(fields)
        self._raw: Raw = raw
        if len(index.crcs) != len(index.blocks):
            raise ValueError(f"{name}: expected an index with checksums, found one without")

    @property
    def is_spent(self) -> bool:
        """Whether to open the whole from now on: it is here, or so much was read already."""
        return self.num_read_nbytes >= self.enough_nbytes or self._is_here()

    def __repr__(self) -> str:
        return f"RemoteShard({self.name!r}: {len(self)} samples, {self.nbytes} bytes)"

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, local_index: int) -> RawSample:
        return self.read(position(local_index, len(self), self.name))

    def __iter__(self) -> Iterator[RawSample]:
        return map(self.read, range(len(self)))

    def read(self, local_index: int) -> RawSample:
        """Read one sample, by its position from 0 on."""
        return self.read_many([local_index])[0]

    def read_many(self, local_indices: Sequence[int]) -> list[RawSample]:
        """Read samples, neighbours together.

        Raises:
            MismatchError, ShardFormatError: The tar, or the index, is not what it was.
            FetchError: It cannot be read.
        """
        self.check()
        members = {i: self._members_of(i) for i in local_indices}
        spans = _joined(sorted({self._span(m) for some in members.values() for m in some}))
        self.num_read_nbytes += sum(stop - start for start, stop in spans)
        if len(spans) > 1:
            threads = ThreadPoolExecutor(min(len(spans), _MAX_REQUESTS))
            try:
                parts = list(threads.map(lambda span: self._read_range(*span), spans))
            finally:
                # After an error, or Ctrl-C, the other requests are not waited for.
                threads.shutdown(wait=False, cancel_futures=True)
        else:
            parts = [self._read_range(*span) for span in spans]
        starts, views = [start for start, _ in spans], [memoryview(part) for part in parts]
        return [self._sample(i, members[i], starts, views) for i in local_indices]

    def find(self, key: str) -> int:
        """Give the local index of a key, or -1."""
        return self.index.find(key)

    def check(self) -> None:
        """Raise `ShardFormatError` if a mapped index has changed its length."""
        if not self.index.is_intact():
            raise ShardFormatError(
                f"{self.name}: expected its index as when it was opened, found one of another "
                "length; it was changed in place: open the dataset again, and replace by renaming"
            )

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def __enter__(self) -> RemoteShard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _members_of(self, local_index: int) -> list[int]:
        index, wanted = self.index, self._fields
        members = range(*map(int, index.member_starts[local_index : local_index + 2]))
        return [m for m in members if wanted is None or index.fields[index.field_ids[m]] in wanted]

    def _span(self, member: int) -> tuple[int, int]:
        """Give where the header of a member begins, and where its bytes end."""
        start, size = int(self.index.blocks[member]) * BLOCK_NBYTES, int(self.index.sizes[member])
        return start - int(self.index.head_blocks[member]) * BLOCK_NBYTES, start + size

    def _sample(
        self, local_index: int, members: list[int], starts: list[int], views: list[memoryview]
    ) -> RawSample:
        wrap, sample = WRAP[self._raw], RawSample()
        for member in members:
            start, stop = self._span(member)
            at = bisect_right(starts, start) - 1
            base, piece = starts[at], views[at]
            body = int(self.index.blocks[member]) * BLOCK_NBYTES
            field = self.index.fields[self.index.field_ids[member]]
            if zlib.crc32(piece[start - base : body - base]) != self.index.crcs[member]:
                raise ShardFormatError(
                    f"{self.name}: at byte {start}: expected the header of a {field} as in the "
                    "published index, found another; the tar was written anew: make the index "
                    "anew too, or remove it"
                )
            value = piece[body - base : stop - base]
            if self._raw == "view":
                sample[field] = value
            else:
                sample[field] = bytes(value) if wrap is None else wrap(value)
        sample["__key__"] = self.index.key(local_index)
        return sample


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ascending spans with small gaps between them, up to a length worth a request."""
    joined: list[tuple[int, int]] = []
    for start, stop in spans:
        if joined:
            first, last = joined[-1]
            if start - last <= _GAP_NBYTES and max(stop, last) - first <= _REQUEST_NBYTES:
                joined[-1] = (first, max(stop, last))
                continue
        joined.append((start, stop))
    return joined
