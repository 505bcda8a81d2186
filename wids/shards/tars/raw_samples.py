"""Define raw samples, and what an open shard offers; all kinds of shards share this.

What reads samples needs a `ReadableShard`. `wids.shards.tars.shard.Shard` and
`wids.shards.remote_shard.RemoteShard` are more: each is an open tar, a `TarShard`. Fields, headers,
checksums, labels and errors are the same for both: whole samples come from the loop of
`samples.py`, which slices the map or what arrived, and parts of them from here.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from wids.errors import ShardFormatError, WidsError, printable
from wids.shards.tars.index import ShardIndex
from wids.storage.arrays import IntArray
from wids.storage.files import fastest_crc32

if TYPE_CHECKING:
    from typing_extensions import Self

Raw = Literal["stream", "bytes", "view"]
RawSample: TypeAlias = dict[str, Any]
"""The fields of a sample by their names with the leading dot, and its key under ``"__key__"``."""
Labels: TypeAlias = tuple[int, str, str]
"""What a dataset adds to the samples of a shard: the position of the first sample in the dataset,
the path or URL of the shard, and the name of the dataset."""
Span: TypeAlias = tuple[int, int]
"""Where bytes begin and end."""
WRAP: Final[dict[str, Callable[[Any], Any] | None]] = {
    "bytes": None,
    "view": memoryview,
    "stream": io.BytesIO,
}
"""Converts the bytes of a field to its form; None if no conversion is needed."""


def label(sample: RawSample, local_index: int, labels: Labels) -> None:
    """Add labels to a sample that say where it is."""
    start, shard, dataset = labels
    sample["__index__"] = start + local_index
    sample["__shard__"] = shard
    sample["__shardindex__"] = local_index
    sample["__dataset__"] = dataset


def check_raw(raw: str) -> None:
    """Raise `ValueError` for an unknown value of ``raw``."""
    if raw not in WRAP:
        raise ValueError(f'raw: expected "stream", "bytes" or "view", found {raw!r}')


def normalized_index(local_index: int, length: int, name: str) -> int:
    """Return an index counted from the start; a negative one counts from the end.

    Args:
        local_index: The index.
        length: Number of samples in the shard.
        name: The name of the shard in messages.
    """
    try:
        at = operator.index(local_index)
    except TypeError:
        kind = type(local_index).__name__
        text = f"{name}: expected an index, found {kind} {local_index!r:.80}"
        raise TypeError(printable(text)) from None
    if not -length <= at < length:
        text = f"{name}: index {local_index} is out of range for {length} samples"
        raise IndexError(printable(text))
    return at % length


def changed_header_error(name: str, at: int, field: str) -> ShardFormatError:
    """Return the error for a header, at a byte of a shard, that differs from its index."""
    return ShardFormatError(
        f"{name}: at byte {at}: expected the header of a {field} as in the published index, found "
        "another; the tar was written again after its index: rebuild the index too, or remove it"
    )


def changed_payload_error(name: str, member: str) -> ShardFormatError:
    """Return the error for a member whose bytes differ from the indexed ones."""
    return ShardFormatError(
        f'{name}: member "{member}": expected bytes with the checksum that the index of the shard '
        "states, found others; they were damaged after they were indexed: restore the file from "
        "where it came (or, if it was written again on purpose, rebuild its index)"
    )


class ReadableShard:
    """A shard whose samples can be read from any number of threads.

    Attributes:
        name: The shard in messages.
        index: Where the samples are.
    """

    name: str
    index: ShardIndex

    def read(
        self, local_index: int, verify: bool = False, labels: Labels | None = None
    ) -> RawSample:
        """Return one sample.

        Args:
            local_index: Its index, which must be 0 or more.
            verify: Whether to compare its members with the checksums in the index, if it has any.
                What is read by range is always compared, unless the dataset has ``verify="never"``.
            labels: What to add to the sample.

        Raises:
            ShardFormatError: A member is damaged, or the tar or its index has changed.
        """
        raise NotImplementedError

    def read_many(
        self, local_indices: Sequence[int], *, verify: bool = False, labels: Labels | None = None
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

    def read_starts(self, members: IntArray, nbytes: int) -> list[bytes]:
        """Return the first bytes of members, given in ascending order, or all of shorter ones.

        Headers are compared as by `read_members`; no checksum covers a part of a member.

        Raises:
            ShardFormatError: The tar or its index has changed.
        """
        return [value[:nbytes] for value in self.read_members(members)]

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return the bytes of one field from a start to a stop, or to its end."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `ShardFormatError` if a mapped file has changed its length since it was opened."""
        if not self.index.is_intact():
            raise ShardFormatError(
                f"{self.name}: expected its index as when it was opened, found one of another "
                "length; it was changed in place: open the dataset again, and replace files by "
                "renaming"
            )


class TarShard(ReadableShard):
    """An open tar, which is a sequence of raw samples.

    Attributes:
        nbytes: Length of the tar in bytes.
    """

    nbytes: int
    _fields: frozenset[str] | None

    def _buffers(
        self, spans: list[Span], *, is_compared: bool = False
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of spans, which mostly ascend.

        Args:
            spans: The spans.
            is_compared: Whether the caller compares them with the checksums in the index, if it has
                any, so that these decide whether they are of the indexed version.
        """
        raise NotImplementedError

    def _knows_head(self, member: int) -> bool:  # noqa: ARG002 - a file may change at any time
        """Whether the headers of a member need not be compared again."""
        return False

    def _note_head(self, member: int) -> None:
        """Note that the headers of a member were compared."""

    def read_members(self, members: IntArray, *, verify: bool = False) -> list[bytes]:
        """Return the bytes of members, given in ascending order."""
        values, index = self._bodies(members, is_compared=True), self.index
        if verify and len(index.payload_crcs):
            crcs = list(map(fastest_crc32(), values))
            for at in np.flatnonzero(index.payload_crcs[members] != crcs)[:1]:
                raise changed_payload_error(self.name, index.member_name(int(members[at])))
        return values

    def read_starts(self, members: IntArray, nbytes: int) -> list[bytes]:
        """Return the first bytes of members, given in ascending order, or all of shorter ones."""
        return self._bodies(members, nbytes)

    def _bodies(
        self, members: IntArray, most_nbytes: int | None = None, *, is_compared: bool = False
    ) -> list[bytes]:
        self.check()
        has_crcs = len(self.index.head_crcs) > 0
        heads, bodies, stops = self.index.spans(members)
        if most_nbytes is not None:
            stops = np.minimum(stops, bodies + most_nbytes)
        # With the headers, which are compared if the index is a published one.
        starts = heads if has_crcs else bodies
        spans = list(zip(starts.tolist(), stops.tolist(), strict=True))
        values = self._buffers(spans, is_compared=is_compared)
        self.check()  # the bytes are complete if the file still has its length
        if has_crcs:
            lengths = (bodies - starts).tolist()
            self._check_heads(members, [v[:n] for v, n in zip(values, lengths, strict=True)])
            values = [value[n:] for value, n in zip(values, lengths, strict=True)]
        return list(map(bytes, values))

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return the bytes of one field from a start to a stop, or to its end.

        Only these bytes are read, and the headers of the member, unless they are known.

        Raises:
            KeyError: The sample does not have the field.
            ShardFormatError: The tar or its index has changed.
        """
        self.check()
        member = self.index.member(local_index, field, self.name)
        head, body, end = (int(edge[0]) for edge in self.index.spans([member]))
        part = min(body + start, end), min(body + stop, end)
        spans = [part] if part[0] < part[1] else []
        compares = len(self.index.head_crcs) > 0 and not self._knows_head(member)
        if compares:
            spans.insert(0, (head, body))
        buffers = self._buffers(spans) if spans else []
        if compares:
            self._check_heads([member], buffers[:1])
            self._note_head(member)
        return bytes(buffers[-1]) if part[0] < part[1] else b""

    def _check_heads(
        self, members: IntArray | list[int], heads: Sequence[bytes | memoryview]
    ) -> None:
        """Compare the headers of members with the index."""
        index, crcs = self.index, np.array(list(map(fastest_crc32(), heads)), np.uint32)
        # A header has name and length, so another tar of the same length is noticed.
        for at in np.flatnonzero(index.head_crcs[members] != crcs)[:1]:
            field = index.fields[index.field_ids[members[at]]]
            raise changed_header_error(self.name, int(index.spans(members)[0][at]), field)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}({self.name!r}: {len(self)} samples, {self.nbytes} bytes)"

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.index)

    def __getitem__(self, local_index: int) -> RawSample:
        """Return one sample; negative indices count from the end."""
        return self.read(normalized_index(local_index, len(self), self.name))

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
