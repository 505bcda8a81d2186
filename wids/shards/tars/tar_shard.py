"""Read the members of an open tar by its index, wherever its bytes come from.

Headers, checksums and errors are the same for a mapped file and for one that is read by range; only
`TarShard._buffers` differs. Whole samples are read by each in its own way: a mapped file in one
loop for many of them (`samples.py`), ranges in as few requests as possible.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from wids.shards.tars.raw_samples import (
    RawSample,
    ReadableShard,
    changed_header_error,
    changed_payload_error,
    position,
)
from wids.storage.arrays import IntArray
from wids.storage.files import fastest_crc32

if TYPE_CHECKING:
    from typing_extensions import Self

Span: TypeAlias = tuple[int, int]
"""Where bytes begin and end."""


class TarShard(ReadableShard):
    """An open tar, which is a sequence of raw samples.

    Attributes:
        nbytes: Length of the tar in bytes.
    """

    nbytes: int

    def _buffers(self, spans: list[Span]) -> Sequence[bytes | memoryview]:
        """Return the bytes of spans, which mostly ascend."""
        raise NotImplementedError

    def _knows_head(self, member: int) -> bool:  # noqa: ARG002 - a file may change at any time
        """Whether the headers of a member need not be compared again."""
        return False

    def _note_head(self, member: int) -> None:
        """Note that the headers of a member were compared."""

    def read_members(self, members: IntArray, *, verify: bool = False) -> list[bytes]:
        """Return the bytes of members, given in ascending order."""
        values, index = self._bodies(members), self.index
        if verify and len(index.payload_crcs):
            crcs = list(map(fastest_crc32(), values))
            for at in np.flatnonzero(index.payload_crcs[members] != crcs)[:1]:
                raise changed_payload_error(self.name, index.member_name(int(members[at])))
        return values

    def read_starts(self, members: IntArray, nbytes: int) -> list[bytes]:
        """Return the first bytes of members, given in ascending order, or all of shorter ones."""
        return self._bodies(members, nbytes)

    def _bodies(self, members: IntArray, most_nbytes: int | None = None) -> list[bytes]:
        self.check()
        has_crcs = len(self.index.head_crcs) > 0
        heads, bodies, stops = self.index.spans(members)
        if most_nbytes is not None:
            stops = np.minimum(stops, bodies + most_nbytes)
        # With the headers, which are compared if the index is a published one.
        starts = heads if has_crcs else bodies
        values = self._buffers(list(zip(starts.tolist(), stops.tolist(), strict=True)))
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
            self._check_head(member, head, buffers[0])
            self._note_head(member)
        return bytes(buffers[-1]) if part[0] < part[1] else b""

    def _check_head(self, member: int, start: int, head: bytes | memoryview) -> None:
        """Compare the headers of a member, which begin at a byte of the tar, with the index."""
        # A header has name and length, so another tar of the same length is noticed.
        index = self.index
        if zlib.crc32(head) != index.head_crcs[member]:
            raise changed_header_error(self.name, start, index.fields[index.field_ids[member]])

    def _check_heads(self, members: IntArray, heads: Sequence[bytes | memoryview]) -> None:
        """Do the same for many members."""
        crcs = np.array(list(map(fastest_crc32(), heads)), np.uint32)
        for at in np.flatnonzero(self.index.head_crcs[members] != crcs)[:1]:
            start = int(self.index.spans(members)[0][at])
            self._check_head(int(members[at]), start, heads[at])

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
