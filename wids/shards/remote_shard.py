"""Read samples and fields of remote tars by byte range, where that is less than the shard.

Only the members of the requested samples are read, each with the headers before it. What arrived is
sliced and compared as the map of a file is, and read once more if it differs. A callable reads the
ranges. What a batch needs of all its shards is requested together by `wids.shards.batches`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from wids.errors import MismatchError, NotFoundError, ShardFormatError, WidsError
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import Labels, Raw, RawSample, Span, TarShard
from wids.shards.tars.samples import sample_readers
from wids.storage.arrays import IntArray
from wids.storage.ranges import (
    GAP_NBYTES,
    Arrived,
    ReadPart,
    WholeFileError,
    bytes_of,
    frugal_gap_nbytes,
    joined,
    read_all,
)
from wids.storage.transport.stream import PastEndError


class Part(NamedTuple):
    """A range to request, and the spans in it that are wanted."""

    read: ReadPart
    start: int
    stop: int
    spans: list[Span]


class Received:
    """The bytes of some spans of a tar, once they arrived; it is sliced as the whole tar would be.

    Args:
        parts: What is requested.
    """

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self.parts = parts
        self._values: dict[Span, bytes | WidsError] = {}

    def take(self, number: int, arrived: Arrived) -> None:
        """Take the spans of a part, or raise why it could not be read."""
        view, (_, start, _, spans) = bytes_of(arrived), self.parts[number]
        for span in spans:
            # Copies: parts of what was read would keep the whole range in memory, and have no
            # hash, since a buffer for received bytes has none.
            self._values[span] = bytes(view[span[0] - start : span[1] - start])

    def note(self, number: int, error: WidsError) -> None:
        """Note why a part could not be read, which is raised where its spans are needed."""
        self._values.update(dict.fromkeys(self.parts[number].spans, error))

    def __getitem__(self, span: slice) -> bytes:
        """Return the bytes of a span that was requested, or raise why they were not read."""
        value = self._values[span.start, span.stop]
        if isinstance(value, WidsError):
            raise value
        return value


_OTHER_VERSION: Final = MismatchError, NotFoundError, PastEndError
"""Errors of a server that may be a mirror, which states another version for equal bytes."""


class SpentError(WholeFileError):
    """A shard of which enough was read by range, so that it should be fetched."""


class RemoteShard(TarShard):
    """One remote tar as a sequence of raw samples.

    Safe to read from any number of threads and after a fork; holds nothing that must be closed.

    Args:
        name: The name of the tar in messages.
        index: Where its samples are, with checksums.
        nbytes: Length of the tar in bytes.
        read_range: Returns the bytes from a start to a stop.
        read_unchecked: Does the same for bytes that no checksum covers, and raises `MismatchError`
            if they may be of another version than those before; None for ``read_range``.
        fields: The only fields to read, or None for all.
        raw: The form of a field, as for `Shard`; the bytes of a ``"view"`` are its own.
        takes: Called with the bytes of each read before it begins; returns False if the whole tar
            should be fetched instead. None to take all.
        version: Returns the version of all that ``read_unchecked`` returns; None if not known.
        watch: Returns a block that notes errors which concern the whole shard.

    Raises:
        ValueError: The index has no checksums.
    """

    def __init__(
        self,
        name: str,
        index: ShardIndex,
        nbytes: int,
        read_range: ReadPart,
        *,
        read_unchecked: ReadPart | None = None,
        fields: Collection[str] | None = None,
        raw: Raw = "bytes",
        takes: Callable[[int], bool] | None = None,
        version: Callable[[], str | None] = lambda: None,
        watch: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.name = name
        self.index = index
        self.nbytes = nbytes
        self.takes = takes
        self._version = version
        self.watch = watch
        self._known_heads: dict[int, str] = {}  # the version in which each was compared
        self._read_range = read_range
        self._read_unchecked = read_unchecked or read_range
        self._received: Received | None = None
        self._fields = None if fields is None else frozenset(fields)
        if len(index.head_crcs) != len(index.blocks):
            raise ValueError(f"{name}: expected an index with checksums, found one without")
        # Each read receives other bytes, so nothing of them is known from the one before.
        unread = bytes(len(index))
        self._read = sample_readers(
            name, Received(), index, self._fields, raw, unread, lambda *_: None
        )[1]

    def read(
        self,
        local_index: int,
        verify: bool = True,  # noqa: ARG002 - the index has checksums to compare, or none
        labels: Labels | None = None,
    ) -> RawSample:
        """Return one sample; see `ReadableShard.read`."""
        return self.read_many([local_index], labels=labels)[0]

    def read_many(
        self,
        local_indices: Sequence[int],
        *,
        verify: bool = True,  # noqa: ARG002 - the index has checksums to compare, or none
        labels: Labels | None = None,
    ) -> list[RawSample]:
        """Return samples in the order of ``local_indices``; neighbors share a request.

        Raises:
            MismatchError, ShardFormatError: The tar or the index has changed.
            SpentError: The tar should be fetched instead.
            FetchError: The tar cannot be read.
        """
        samples: list[RawSample] = []
        if not len(local_indices):
            return samples
        if self._received is not None:
            self.check()
        source = self._received or self._request(self.parts(local_indices))
        try:
            self._read(local_indices, labels, samples.append, source)
        except (ShardFormatError, KeyError):  # transient damage, or none of what was requested
            left = local_indices[len(samples) :]
            self._read(left, labels, samples.append, self._request(self.parts(left)))
        return samples

    def parts(self, local_indices: Sequence[int]) -> list[Part]:
        """Return what `read_many` requests for some samples."""
        if not self.index.is_intact():
            self.check()
        # A set, so that a sample that is repeated in a batch is read once; of plain integers.
        wanted = set(map(operator.index, local_indices))
        members = sorted(self.index.places(wanted, self._fields))
        return _parts(self._read_range, members, frugal_gap_nbytes(members))

    def with_received(self, received: Received) -> RemoteShard:
        """Return the same shard, of which samples are read by what is received elsewhere."""
        shard = copy(self)
        shard._received = received  # noqa: SLF001 - of this class
        return shard

    def read_members(
        self,
        members: IntArray,
        *,
        verify: bool = True,  # noqa: ARG002 - the index has checksums to compare, or none
    ) -> list[bytes]:
        """Return the bytes of members, given in ascending order; neighbors share a request.

        Raises:
            MismatchError, ShardFormatError: The tar or the index has changed.
            FetchError: The tar cannot be read.
        """
        try:
            return super().read_members(members, verify=True)
        except ShardFormatError:  # damage on the way may be transient
            return super().read_members(members, verify=True)

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

    def takes_all(self, parts: Sequence[Part]) -> bool:
        """Whether to request parts, rather than to fetch the whole tar."""
        return self.takes is None or self.takes(sum(part.stop - part.start for part in parts))

    def _request(self, parts: Sequence[Part], *, decides: bool = True) -> Received:
        """Request parts together, and return what was received.

        Args:
            parts: The parts.
            decides: Whether an error may concern the whole shard.

        Raises:
            SpentError: The tar should be fetched instead.
            FetchError: It cannot be read.
        """
        received = Received(parts)
        with self.watch() if decides else nullcontext():  # asks nothing of a broken shard
            if not self.takes_all(parts):
                raise SpentError(
                    f"{self.name}: expected a shard of which little is read, found one of which "
                    "so much was read that it has to be fetched"
                )
            read_all([part[:3] for part in parts], received.take)
        return received

    def _buffers(self, spans: list[Span], *, is_compared: bool = False) -> list[bytes]:
        """Return the bytes of spans; near ones share a request."""
        read = self._read_range if is_compared else self._read_unchecked
        # If a checksum covers a member of which a part is read, an error decides nothing: the whole
        # member is read then.
        decides = is_compared or not len(self.index.payload_crcs)
        found = self._request(_parts(read, sorted(spans), GAP_NBYTES), decides=decides)
        return [found[start:stop] for start, stop in spans]


def _parts(read: ReadPart, places: Sequence[tuple[int, ...]], gap_nbytes: float) -> list[Part]:
    """Return what to request for places, which ascend, with the spans between their edges.

    Args:
        read: Reads a range.
        places: The edges of each: where it begins, where parts of it do, and where it ends.
        gap_nbytes: Most bytes between two places that are requested along with both.
    """
    parts = [Part(read, *each, []) for each in joined(places, gap_nbytes)]
    at = 0
    for edges in places:
        while edges[-1] > parts[at].stop:
            at += 1
        parts[at].spans.extend(pairwise(edges))
    return parts
