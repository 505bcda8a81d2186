"""Group the members of a tar into samples by the key rule, and hold the samples as columns.

Members with one key form one sample wherever they are in the shard. Samples come in the order in
which their keys first appear. Two members of one name may be two samples of one key, so they are an
error, unless the caller wants the last one.

Columns are arrays or runs of bytes, in memory as in a file: a stored index is used in place, and an
open shard needs no Python object for each of its samples.

A writer records members in a `MemberLog`, and gets the index that a scan of the finished tar finds.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import operator
import os
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wids.errors import ShardFormatError, printable
from wids.shards.tars import headers
from wids.storage.arrays import IntArray
from wids.storage.files import fastest_crc32
from wids.storage.sizes import count_text, first_of

_logger = logging.getLogger(__name__)


Column: TypeAlias = npt.NDArray[Any]
"""Unsigned integers of the narrowest type that holds them."""

Repeated = Literal["error", "last"]
"""What members of one name are: an error, or all but the last are ignored."""


NO_TIME: Final = -1
"""A time that does not identify a tar, as in a published index."""
NO_INODE: Final = 0
"""An inode that does not identify a tar; no file has it."""


class TarIdentity(NamedTuple):
    """What distinguishes one tar from another without reading it.

    Attributes:
        nbytes: Length of the file.
        mtime_ns: When its bytes were last changed; programs can set this time. -1 for a published
            index, which is bound to the length and to the checksums of the headers instead.
        ctime_ns: When the file was last changed in any way, which no program can set; -1 if
            unknown, and for a copy, which is renamed after it is indexed.
        inode: Number of the file in its file system; 0 if unknown.
    """

    nbytes: int
    mtime_ns: int = NO_TIME
    ctime_ns: int = NO_TIME
    inode: int = NO_INODE

    @classmethod
    def of_file(cls, status: os.stat_result) -> TarIdentity:
        """Return the identity of a local file."""
        # Windows has inodes of 128 bits.
        inode = status.st_ino & (1 << 64) - 1
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)

    def of_copy(self, *, is_own: bool) -> TarIdentity:
        """Return the identity of a copy of a remote file, without ctime, which each use changes.

        Args:
            is_own: Whether the cache fetched it, under a name made from its URL or digest; it
                stays the same file if the cache is moved.
        """
        return self._replace(ctime_ns=NO_TIME, inode=NO_INODE if is_own else self.inode)

    def fits(self, stored: TarIdentity) -> bool:
        """Whether the stored index may belong to this tar."""
        return (
            self[:2] == stored[:2]
            and self.ctime_ns in (NO_TIME, stored.ctime_ns)
            and self.inode in (NO_INODE, stored.inode)
        )


@dataclass(frozen=True, eq=False, repr=False)
class ShardIndex:
    r"""The samples of one shard.

    Sample ``i`` has the members ``member_starts[i]`` to ``member_starts[i + 1]``, in archive order.

    Attributes:
        text: Bytes that contain the samples' keys, each between NULs: ``b"\0k0\0k1\0"``.
        text_start, text_stop: Where in ``text`` these keys are.
        key_starts: Where each key begins, counted from ``text_start``, and the end; shape
            ``(num_samples + 1,)``.
        member_starts: Each sample's first member, and the end; shape ``(num_samples + 1,)``.
        blocks: Where members' bytes begin, in blocks of 512 bytes; shape ``(num_members,)``.
        sizes: Their lengths in bytes, shape ``(num_members,)``.
        field_ids: Their fields, as positions in ``fields``; shape ``(num_members,)``.
        head_blocks: Length of the headers that precede and name a member, in blocks; shape
            ``(num_members,)``.
        head_crcs: CRC-32 of those headers, which reads compare with the tar; empty if the tar is
            known to be the indexed one.
        payload_crcs: CRC-32 of the members' bytes, which reads can compare; empty if the bytes were
            not read.
        fields: Every field that occurs, with its leading dot.
        key_split: The rule by which names were split.
        num_files: Number of files in the tar: members, files without a key or a field, and
            duplicates.
    """

    text: bytes | mmap.mmap
    text_start: int
    text_stop: int
    key_starts: Column
    member_starts: Column
    blocks: Column
    sizes: Column
    field_ids: Column
    head_blocks: Column
    head_crcs: Column
    payload_crcs: Column
    fields: tuple[str, ...]
    key_split: headers.KeySplit
    num_files: int

    def __len__(self) -> int:
        return len(self.key_starts) - 1

    def key(self, local_index: int) -> str:
        """Return the key of one sample."""
        local_index = operator.index(local_index)  # sums of narrow numpy integers overflow
        start, stop = self.key_starts[local_index], self.key_starts[local_index + 1]
        return headers.to_text(
            self.text[self.text_start + int(start) : self.text_start + int(stop) - 1]
        )

    def stored_keys(self) -> list[bytes]:
        """Return the keys of all samples as they are stored."""
        text = bytes(self.text[self.text_start : self.text_stop])
        return text.split(b"\0")[1:-1] if len(self) else []

    def members(self, local_index: int) -> dict[str, int]:
        """Return the members of one sample by their fields, in the order of the archive."""
        local_index = operator.index(local_index)
        first, stop = map(int, self.member_starts[local_index : local_index + 2])
        fields = map(self.fields.__getitem__, self.field_ids[first:stop].tolist())
        return dict(zip(fields, range(first, stop), strict=True))

    def member(self, local_index: int, field: str, name: str) -> int:
        """Return the member with a field of one sample.

        Raises:
            KeyError: The sample does not have the field; ``name`` is that of the tar.
        """
        member = self.members(local_index).get(field)
        if member is None:
            raise KeyError(f"{name}: the sample {self.key(local_index)!r} has no field {field}")
        return member

    def place(self, local_index: int, field: str, name: str) -> tuple[int, int]:
        """Return where a field of one sample begins in the tar, and its length in bytes.

        Raises:
            KeyError: As for `member`.
        """
        member = self.member(local_index, field, name)
        return int(self.blocks[member]) * headers.BLOCK_NBYTES, int(self.sizes[member])

    def member_name(self, member: int) -> str:
        """Return the name of a member: the key of its sample, and its field."""
        local_index = int(np.searchsorted(self.member_starts, member, side="right")) - 1
        field: str = self.fields[self.field_ids[member]]
        return self.key(local_index) + field

    def members_in(self, local_indices: IntArray) -> tuple[IntArray, IntArray]:
        """Return the members of some samples, sample by sample, and how many each has."""
        starts = self.member_starts[local_indices].astype(np.int64)
        counts = self.member_starts[local_indices + 1].astype(np.int64) - starts
        # The members of each sample are consecutive: where they start, less how many precede.
        firsts = np.repeat(starts - np.cumsum(counts) + counts, counts)
        return firsts + np.arange(len(firsts)), counts

    def members_of(self, field: str) -> tuple[IntArray, IntArray]:
        """Return the samples that have a field, ascending, and the member of each."""
        if field not in self.fields:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        members = np.flatnonzero(self.field_ids == self.fields.index(field))
        return np.searchsorted(self.member_starts, members, side="right") - 1, members

    def spans(self, members: Any = slice(None)) -> tuple[IntArray, IntArray, IntArray]:
        """Return where the headers of members begin, where their bytes begin, and where these end.

        Args:
            members: The members; all by default.
        """
        bodies = self.blocks[members].astype(np.int64) * headers.BLOCK_NBYTES
        heads = bodies - self.head_blocks[members].astype(np.int64) * headers.BLOCK_NBYTES
        return heads, bodies, bodies + self.sizes[members].astype(np.int64)

    def places(
        self, local_indices: Iterable[int], wanted: Container[str] | None
    ) -> list[tuple[int, int, int]]:
        """Return where the headers, the bytes and the end of each member of some samples are.

        Args:
            local_indices: The samples.
            wanted: The only fields of which members are wanted; None for all.
        """
        starts, field_ids, names = self.member_starts.data, self.field_ids.data, self.fields
        heads, blocks, sizes = self.head_blocks.data, self.blocks.data, self.sizes.data
        stops = starts[1:]
        found = []
        for local_index in local_indices:
            for member in range(starts[local_index], stops[local_index]):
                if wanted is None or names[field_ids[member]] in wanted:
                    body = blocks[member] * headers.BLOCK_NBYTES
                    head = body - heads[member] * headers.BLOCK_NBYTES
                    found.append((head, body, body + sizes[member]))
        return found

    def without_payload_crcs(self) -> ShardIndex:
        """Return the same index without checksums of members, so that reads do not compare them."""
        return replace(self, payload_crcs=np.empty(0, np.uint32))

    def is_intact(self) -> bool:
        """Whether the file that the index is mapped from, if any, still has its length."""
        return not isinstance(self.text, mmap.mmap) or self.text.size() == len(self.text)

    def find(self, key: str) -> int:
        """Return the local index of a key, or -1; one search through the bytes of all keys."""
        wanted = headers.to_bytes(key)
        at = self.text.find(b"\0" + wanted + b"\0", self.text_start, self.text_stop)
        if at < 0 or b"\0" in wanted:
            return -1
        return int(np.searchsorted(self.key_starts, at + 1 - self.text_start))


def build_index(
    members: headers.TarMembers,
    key_split: headers.KeySplit = "first",
    path: str = "tar",
    repeated: Repeated = "last",
) -> ShardIndex:
    """Group the members of a tar into samples.

    Args:
        members: The members.
        key_split: Where a name is split: at the ``"first"`` or the ``"last"`` dot of its last part.
        path: The name of the tar in messages.
        repeated: What members of one name are.

    Raises:
        ShardFormatError: A name has a NUL in it, or is repeated.
    """
    if key_split not in headers.KEY_SPLITS:
        raise ValueError(f'key_split: expected "first" or "last", found {key_split!r}')
    names = headers.split_names(members.names, key_split)
    if len(names.ends) != len(members.names):
        raise ShardFormatError(f"{path}: a member name has a NUL in it; pack the shard again")
    if names.joined.startswith(b"__") or b"\0__" in names.joined:  # most tars have no such name
        _remark_on_metadata(members.names, path)
    belongs = np.flatnonzero(names.dots)
    keys, extensions = names.parts()
    sample_of, unique_keys = _numbered(keys)
    field_of, unique_extensions = _numbered(extensions)

    order = _in_samples(sample_of, field_of, len(unique_extensions))
    if len(order) < len(belongs) and repeated == "error":
        raise _repeated_error(path, [members.names[member] for member in belongs.tolist()])
    text = b"\0" + b"\0".join(unique_keys) + b"\0" if unique_keys else b"\0"
    return ShardIndex(
        text=text,
        text_start=0,
        text_stop=len(text),
        key_starts=_narrow(np.flatnonzero(np.frombuffer(text, np.uint8) == 0) + 1),
        member_starts=_narrow(np.searchsorted(sample_of[order], np.arange(len(unique_keys) + 1))),
        blocks=_narrow(members.offsets[belongs][order] // headers.BLOCK_NBYTES),
        sizes=_narrow(members.sizes[belongs][order]),
        field_ids=_narrow(field_of[order]),
        head_blocks=_narrow(
            (members.offsets - members.heads)[belongs][order] // headers.BLOCK_NBYTES
        ),
        head_crcs=np.empty(0, np.uint32),
        payload_crcs=np.empty(0, np.uint32),
        fields=tuple(f".{headers.to_text(extension)}" for extension in unique_extensions),
        key_split=key_split,
        num_files=len(members.names),
    )


def _remark_on_metadata(names: list[bytes], path: str) -> None:
    skipped = list(filter(headers.is_metadata, names))
    if skipped:
        _logger.info(
            "%s: %d members such as %s belong to no sample, since webdataset keeps names that "
            "begin with __…__ for metadata",
            printable(path),
            len(skipped),
            printable(headers.to_text(skipped[0])),
        )


class RepeatedNamesError(ShardFormatError):
    """A tar that has several members of one name."""


def _repeated_error(path: str, names: list[bytes]) -> ShardFormatError:
    found = [repr(headers.to_text(name)) for name, count in Counter(names).items() if count > 1]
    shown = first_of(found)
    names_text = "a name that occurs" if len(found) == 1 else f"{len(found)} names that occur"
    return RepeatedNamesError(
        f"{path}: expected each name once, found {names_text} more than once: {shown}; samples "
        'with the same key would become one: pass repeated="last" (--repeated last) to read the '
        "last member of each name, or write the shard with different keys"
    )


def _numbered(items: list[bytes]) -> tuple[IntArray, list[bytes]]:
    """Return each item's number, by first appearance, and the distinct items."""
    table: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
    numbers = np.fromiter(map(table.__getitem__, items), np.int64, len(items))
    return numbers, list(table)


def _in_samples(sample_of: IntArray, field_of: IntArray, num_fields: int) -> IntArray:
    """Return members sorted by sample, then as in the archive; of equal names only the last."""
    pairs = sample_of * num_fields + field_of
    members = np.arange(len(pairs))
    if (np.diff(pairs) > 0).all():  # as packers write them: nothing to sort, no duplicates
        return members
    distinct, last_seen = np.unique(pairs[::-1], return_index=True)
    if len(distinct) < len(pairs):
        members = np.sort(len(pairs) - 1 - last_seen)
    return members[np.argsort(sample_of[members], kind="stable")]


def _narrow(values: IntArray) -> Column:
    """Return non-negative values in the narrowest unsigned type that holds them."""
    largest = int(values.max(initial=0))
    return values.astype(np.min_scalar_type(largest) if largest else np.uint8)


def index_tar(
    data: headers.TarBytes,
    key_split: headers.KeySplit = "first",
    path: str = "tar",
    *,
    checksums: bool = False,
    repeated: Repeated = "error",
) -> ShardIndex:
    """Scan a tar and return the index of its samples.

    Args:
        data: The complete tar.
        key_split: As for `build_index`.
        path: The name of the tar in messages.
        checksums: Whether to add the checksums that reading by range and publishing need, which
            reads the whole tar; see `with_checksums`.
        repeated: As for `build_index`.

    Raises:
        ShardFormatError: The tar breaks a rule of specs/tar-shards.md.
    """
    from wids.shards.tars.scan import (
        scan,  # both lanes take 1.2 ms, and most tars are already indexed
    )

    started_s = time.monotonic()
    shard_index = build_index(scan(data, path), key_split, path, repeated)
    shard_index = (with_checksums if checksums else with_head_crcs)(shard_index, data)
    seconds, count = time.monotonic() - started_s, count_text(len(shard_index), "sample")
    _logger.info("%s: indexed, %s in %.1f s", printable(path), count, seconds)
    return shard_index


def with_head_crcs(shard_index: ShardIndex, tar: headers.TarBytes) -> ShardIndex:
    """Return the index with the CRCs of all headers, by which reads notice another tar."""
    heads, bodies, _ = (edges.tolist() for edges in shard_index.spans())
    crc32 = fastest_crc32()
    with memoryview(tar) as view:
        crcs = [crc32(view[head:body]) for head, body in zip(heads, bodies, strict=True)]
    return replace(shard_index, head_crcs=np.array(crcs, np.uint32))


def with_checksums(shard_index: ShardIndex, tar: headers.TarBytes) -> ShardIndex:
    """Return the index with the CRCs of all headers and members; reads the whole members.

    By member CRCs reads notice that a bit of a member has changed.
    """
    bodies = shard_index.blocks.astype(np.int64) * headers.BLOCK_NBYTES
    members = list(zip(bodies.tolist(), shard_index.sizes.tolist(), strict=True))
    crc32 = fastest_crc32()
    with memoryview(tar) as view:
        # Each span once: a hostile tar can have a million hard links to one large member.
        payload = {(at, size): crc32(view[at : at + size]) for at, size in dict.fromkeys(members)}
    return replace(
        with_head_crcs(shard_index, tar),
        payload_crcs=np.array([payload[member] for member in members], np.uint32),
    )


class MemberLog:
    """The members written so far."""

    def __init__(self) -> None:
        self._names: list[bytes] = []
        self._places = array("q")
        self._crc32 = fastest_crc32()

    def add(self, name: bytes, start: int, header: bytes, nbytes: int, crc: int) -> None:
        """Record a member.

        Args:
            name: Its name.
            start: Where its header begins in the tar.
            header: Its header, which must state only the name, the size and what fits one block.
            nbytes: Length of its bytes, which follow the header.
            crc: Their checksum.
        """
        self._names.append(name)
        self._places.extend((start, start + len(header), nbytes, self._crc32(header), crc))

    def extend(
        self,
        names: list[bytes],
        starts: IntArray,
        head_nbytes: int,
        sizes: IntArray,
        head_crcs: list[int],
        crcs: list[int],
    ) -> None:
        """Record several members whose headers have the same length, as `add` does."""
        self._names += names
        places = np.stack((starts, starts + head_nbytes, sizes, head_crcs, crcs), 1)
        self._places.frombytes(places.astype(np.int64).tobytes())

    def index(self) -> ShardIndex:
        """Return the index of all members, with checksums."""
        places = np.frombuffer(self._places, np.int64).reshape(-1, 5).T
        heads, offsets, sizes, head_crcs, payload_crcs = np.ascontiguousarray(places)
        return replace(
            build_index(headers.TarMembers(self._names, offsets, sizes, heads), "first"),
            head_crcs=head_crcs.astype(np.uint32),
            payload_crcs=payload_crcs.astype(np.uint32),
        )
