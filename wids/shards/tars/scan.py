"""Find the members of a tar, and check each header once, so that readers can trust the result.

Two lanes share the work. The vectorised lane guesses the positions of headers, by a search for the
magic word or by hops from header to header, and verifies a batch of them as one numpy matrix. It
reads plain headers and locates unusual ones. The strict lane reads these, one member at a time,
with the extended headers before it, or the end of the archive. Only the strict lane decides what is
read, skipped and rejected, as specified in specs/tar-shards.md, and its errors state the position.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from wids.errors import ShardFormatError
from wids.shards.tars.headers import (
    BLOCK_NBYTES,
    NOT_FROM_A_PACKER,
    SPARSE,
    Archive,
    Header,
    HeaderError,
    MemberColumns,
    TarBytes,
    TarMembers,
    describe,
    has_checksum,
    padded,
    parse_header,
    parse_long_name,
    parse_records,
    parse_size,
    show,
)
from wids.storage.arrays import IntArray

# TAR-14. Both limits bound how much a hostile tar can make a scan read and keep before the first
# member.
MAX_EXTENDED_NBYTES: Final = 1 << 20
"""Largest body of a PAX or GNU extended header; real ones hold a name and a few times."""
MAX_EXTENDED_RUN: Final = 8
"""Most extended headers that may precede one member."""

_END_NBYTES: Final = 2 * BLOCK_NBYTES
_RECORD_NBYTES: Final = 20 * BLOCK_NBYTES  # most packers pad an archive to a multiple of this
_MAX_PADDING_NBYTES: Final = _END_NBYTES + _RECORD_NBYTES
_DESCRIBED_NBYTES: Final = 64

_FILE_TYPES: Final = b"0\x007"  # plain, plain in V7, contiguous
# TAR-15: some readers skip the stated bytes of these types, others read them as the next header.
# That is a way to smuggle members, so a size here is an error.
_EMPTY_TYPES: Final = b"123456"  # hard link, symlink, two kinds of device, folder, FIFO
_SKIPPED_TYPES: Final = b"VD"  # GNU: volume label, list of a folder's files
_EXTENDED_TYPES: Final = b"xXgLK"  # PAX, old Sun PAX, global PAX, GNU long name, GNU long link
_INCOMPLETE: Final = "it is incomplete: delete it and fetch or write it again"
_NOT_A_TAR: Final = (
    "only plain, uncompressed tars can be read in place; if a server sent it, check the URL, and "
    "whether it wants a token (storage_options)"
)

_T = TypeVar("_T")


def read_next(archive: Archive, position: int) -> int:
    """Read the member or the end marker at a position; return the position after it."""
    if archive.is_end_at(position):
        return _read_end(archive, position)
    header, extended, head, position = _read_headers(archive, position)
    name = extended.get(b"path", header.name)
    # TAR-11. The stored bytes of a sparse file are not the file's bytes: its holes are left out.
    if header.kind == b"S" or SPARSE in extended:
        _refuse(archive, position, extended.get(SPARSE) or name, "a sparse file")
    size = header.size
    # The record also determines where the next header is (TAR-2), so it is parsed first.
    if b"size" in extended:
        size = _parsed(archive, position, lambda: parse_size(extended[b"size"], name))
    # Before ustar, a folder was a file whose name ends in a slash.
    is_folder = header.kind == b"\0" and name.endswith(b"/")
    is_empty = is_folder or header.kind in _EMPTY_TYPES
    _check_size(archive, position, header.kind, name, size, is_empty=is_empty)
    start = position + BLOCK_NBYTES
    # TAR-13: only earlier members are targets. A later one is not known yet, and a link to itself
    # would have no bytes.
    if header.kind == b"1":
        link = extended.get(b"linkpath", header.link)
        archive.members.append(name, *_link_target(archive, position, name, link))
    elif header.kind in _FILE_TYPES and not is_folder:
        archive.members.append(name, start, size, head)
    elif header.kind == b"2" and b"." in name.rpartition(b"/")[2]:  # of a field, as a file
        archive.links.append(name)
    elif not is_empty and header.kind not in _SKIPPED_TYPES:
        _refuse(archive, position, name, f"type {header.kind!r}")
    return start + padded(size)


def _check_size(
    archive: Archive, position: int, kind: bytes, name: bytes, size: int, *, is_empty: bool
) -> None:
    """Raise an error if a member must not have bytes, or has more bytes than the file."""
    if is_empty and size:
        raise archive.error(
            position,
            f'no data for member "{show(name)}" of type {kind.decode()}',
            f"{size} bytes, which readers of tars disagree about",
            "pack it again with GNU tar",
        )
    start = position + BLOCK_NBYTES
    if size > archive.nbytes - start:
        raise ShardFormatError(
            f'{archive.path}: member "{show(name)}" needs bytes {start} to {start + size}, '
            f"but the file has {archive.nbytes}; {_INCOMPLETE}"
        )


def _link_target(archive: Archive, position: int, name: bytes, link: bytes) -> tuple[int, int, int]:
    """Return the offset, size and head of the member that a hard link names."""
    target = archive.members.find(link)
    if target is None:
        raise archive.error(
            position,
            f'hard link "{show(name)}" to an earlier member',
            f'"{show(link)}", which is not one',
            "pack it again with `tar --hard-dereference`",
        )
    return target


def _refuse(archive: Archive, position: int, name: bytes, found: str) -> NoReturn:
    raise archive.error(
        position,
        f'member "{show(name)}" as a plain file',
        found,
        "pack it again with `tar --format=pax` and without --sparse",
    )


# Headers.


def _read_headers(archive: Archive, position: int) -> tuple[Header, dict[bytes, bytes], int, int]:
    """Read a member's header and the extended headers before it.

    Returns:
        The header; the records of the extended headers (path, linkpath, size); where the first
        extended header with such a record begins, or else the header; and where the header begins.
    """
    local: dict[bytes, bytes] = {}
    head: int | None = None
    for _ in range(MAX_EXTENDED_RUN + 1):
        header = _read_header(archive, position)
        if header.kind not in _EXTENDED_TYPES:
            # TAR-2: local records take precedence over global ones.
            return (
                header,
                {**archive.global_records, **local},
                position if head is None else head,
                position,
            )
        records = _read_records(archive, position, header)
        # An extended header with only a time does not name the member: the vectorised lane skips
        # it, and both lanes make the same index.
        if records and head is None:
            head = position
        if header.kind == b"g":
            # Not checked for contradictions: a later global header may replace an earlier one.
            archive.global_records.update(records)
        else:
            _add_records(archive, position, local, records)
        following = position + BLOCK_NBYTES + padded(header.size)
        if archive.is_end_at(following):
            if header.kind == b"g" and not local:
                # A comment at the very end, as `git archive` writes for an empty tree. Treat it as
                # an empty folder in the header's last block, so that the end is read next.
                last = following - BLOCK_NBYTES
                return Header(b"5", b"", b"", 0), {}, last, last
            raise archive.error(
                following,
                "the member that an extended header announces",
                "the end of the archive",
                _INCOMPLETE,
            )
        position = following
    raise archive.error(
        position,
        f"at most {MAX_EXTENDED_RUN} extended headers before a member",
        "more",
        NOT_FROM_A_PACKER,
    )


def _read_header(archive: Archive, position: int) -> Header:
    """Read and verify one header block."""
    block = archive.block(position)
    if not has_checksum(block):
        raise archive.error(
            position,
            "the header of a member",
            describe(block[:_DESCRIBED_NBYTES], is_start=position == 0),
            _NOT_A_TAR if position == 0 else "the tar is damaged there: fetch or write it again",
        )
    return _parsed(archive, position, lambda: parse_header(block))


def _read_records(archive: Archive, position: int, header: Header) -> dict[bytes, bytes]:
    """Return what an extended header at a position states."""
    if header.size > MAX_EXTENDED_NBYTES:
        raise archive.error(
            position,
            f"an extended header of at most {MAX_EXTENDED_NBYTES} bytes",
            f"{header.size} bytes",
            NOT_FROM_A_PACKER,
        )
    start = position + BLOCK_NBYTES
    if header.size > archive.nbytes - start:
        raise archive.error(
            position,
            f"an extended header with bytes {start} to {start + header.size}",
            f"a file of {archive.nbytes} bytes",
            _INCOMPLETE,
        )
    body = archive.data[start : start + header.size]
    if header.kind not in b"LK":
        return _parsed(archive, position, lambda: parse_records(body))
    key = b"path" if header.kind == b"L" else b"linkpath"
    return {key: _parsed(archive, position, lambda: parse_long_name(body))}


def _add_records(
    archive: Archive, position: int, local: dict[bytes, bytes], records: dict[bytes, bytes]
) -> None:
    """Add records to those of the same member, unless they contradict each other."""
    for key, value in records.items():
        # TAR-14. Equal values are harmless: all readers agree on them.
        if local.setdefault(key, value) != value:
            raise archive.error(
                position,
                f"one {key.decode()} for a member",
                f'"{show(local[key])}" and "{show(value)}"',
                "pack it again: readers of tars disagree about which one counts",
            )


def _parsed(archive: Archive, position: int, parse: Callable[[], _T]) -> _T:
    """Call a parser, and add the path of the tar and a position to its errors."""
    try:
        return parse()
    except HeaderError as flaw:
        raise archive.error(position, *flaw.args) from None


# The end marker, and what may follow it.


def _read_end(archive: Archive, position: int) -> int:
    """Read what follows the last member; return the next header, or the length of the file."""
    data, nbytes = archive.data, archive.nbytes
    if nbytes - position < BLOCK_NBYTES and data[position:].strip(b"\0"):
        head = data[position : position + _DESCRIBED_NBYTES]
        raise archive.error(
            position,
            f"a header of {BLOCK_NBYTES} bytes",
            describe(head, is_start=True) if position == 0 else f"{nbytes - position} bytes",
            _NOT_A_TAR if position == 0 else "it is incomplete: fetch or write it again",
        )
    # One zero block is enough: readers stop there, although packers write two.
    archive.has_end = nbytes - position >= BLOCK_NBYTES
    first_nonzero = _find_nonzero(archive, position)
    if first_nonzero < 0:
        if nbytes - position > _MAX_PADDING_NBYTES:
            archive.remark(
                logging.WARNING, f"{nbytes - position} bytes of zeros at the end, from {position}"
            )
        return nbytes
    following = position + (first_nonzero - position) // BLOCK_NBYTES * BLOCK_NBYTES
    # Use the checksum, not the magic: V7 headers have no magic, and an archive after an end marker
    # may have signed checksums too.
    if not has_checksum(archive.block(following)):
        archive.remark(
            logging.WARNING,
            f"unknown bytes from byte {first_nonzero} on, after the end marker at {position}; "
            "ignored",
        )
        return nbytes
    # Zeros that no packer writes may be a hole where members were, followed by a tar inside one of
    # them.
    num_zeros = following - position
    is_ending = num_zeros == _END_NBYTES or not (following - archive.start) % _RECORD_NBYTES
    is_hole = not is_ending or not _END_NBYTES <= num_zeros <= _MAX_PADDING_NBYTES
    archive.remark(
        logging.WARNING if is_hole else logging.INFO,
        f"another archive at byte {following}, after {num_zeros} bytes of zeros",
    )
    archive.start = following
    # The next archive needs its own end marker, or its truncation would go unnoticed (TAR-8).
    archive.has_end = False
    return following


def _find_nonzero(archive: Archive, position: int) -> int:
    """Return the offset of the first nonzero byte from a position on, or -1."""
    start, step = position, BLOCK_NBYTES  # usually it is near, sometimes very far
    while start < archive.nbytes:
        chunk = archive.data[start : start + step]
        rest = chunk.lstrip(b"\0")
        if rest:
            return start + len(chunk) - len(rest)
        start += len(chunk)
        # The growing step keeps the cost proportional to the zeros. Otherwise an archive with
        # twenty thousand ends would copy a megabyte at each.
        step = min(2 * step, 1 << 20)
    return -1


Flags: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint64]

_BATCH: Final = 1024  # headers; half a MiB, so that a batch stays in the processor's cache
_PROBE: Final = 256  # blocks to search first; the kernel reads as many at once
_DENSITY: Final = 4  # blocks to search for each header; beyond twice as many, hops are cheaper

_MAGIC: Final = np.uint64(int.from_bytes(b"\0ustar\0\0", "little"))  # bytes 256 to 264
_MAGIC_MASK: Final = np.uint64(int.from_bytes(b"\0\xff\xff\xff\xff\xff\0\0", "little"))
_EVEN_BYTES: Final = np.uint64(0x00FF00FF00FF00FF)


class Batch(NamedTuple):
    """Verified headers that follow each other in the archive.

    Attributes:
        headers: Their bytes, shape ``(num_headers, 512)``; valid until the next batch is read.
        offsets: Where they begin.
        sizes: The sizes that they state.
        is_plain: Which of them are members by themselves.
        is_special: Which of them the strict lane has to read. Headers that are neither plain nor
            special are PAX headers that state only a time.
        stop: Where the header after the batch begins.
    """

    headers: Bytes
    offsets: IntArray
    sizes: IntArray
    is_plain: Flags
    is_special: Flags
    stop: int

    def add_plain(self, members: MemberColumns, start: int, stop: int) -> None:
        """Append the plain members among the rows from ``start`` to ``stop``."""
        rows = np.flatnonzero(self.is_plain[start:stop]) + start
        if not len(rows):
            return
        # numpy's byte strings drop the NULs at their end, as tar names do.
        names = np.ascontiguousarray(self.headers[rows, :100]).view("S100").ravel().tolist()
        if b"\0" in b"".join(names):
            names = [name.partition(b"\0")[0] for name in names]
        offsets = self.offsets[rows]
        members.extend(names, offsets + BLOCK_NBYTES, self.sizes[rows], offsets)


class VectorisedLane:
    """A reader of batches of plain headers, for one call of `scan`."""

    def __init__(self, archive: Archive, data: TarBytes) -> None:
        self._archive = archive
        num_blocks = archive.nbytes // BLOCK_NBYTES
        blocks = np.frombuffer(data, np.uint8, num_blocks * BLOCK_NBYTES)
        self._blocks = blocks.reshape(-1, BLOCK_NBYTES)
        # Memory for one batch, reused: fresh memory costs ten times the copy.
        self._headers = np.empty((_BATCH, BLOCK_NBYTES), np.uint8)
        self._scratch = np.empty((2, _BATCH, BLOCK_NBYTES // 8), np.uint64)
        self._width = _BATCH  # headers to guess at a time
        self._is_dense = True  # until headers are far apart, or were found inside members

    def release(self) -> None:
        """Release the archive's bytes, so that they can be unmapped."""
        # An array over a map exports its buffer, and a map with an exported buffer cannot be
        # closed.
        self._blocks = self._headers

    def next_batch(self, position: int) -> Batch | None:
        """Return the headers from a position on; None if the first one is unusual."""
        archive = self._archive
        # Global records can change any member that follows, so the strict lane reads them all.
        if archive.global_records:
            return None
        offsets = self._guess(position)
        if not len(offsets):
            return None
        headers = self._headers[: len(offsets)]
        # Not mode="raise": with `out`, numpy would copy through another buffer. All offsets are
        # inside the file, so nothing is clipped.
        np.take(self._blocks, offsets // BLOCK_NBYTES, axis=0, out=headers, mode="clip")
        sizes = _canonical_sizes(headers, self._scratch)
        follows = offsets + BLOCK_NBYTES + padded(sizes)
        # No overflow: eleven octal digits are at most 2**33 - 1, and larger sizes (base 256) count
        # as bad here.
        is_bad = (sizes < 0) | (offsets + BLOCK_NBYTES + sizes > archive.nbytes)
        num_good = _first(is_bad)
        # The search may have found headers inside a member.
        num_good = min(num_good, 1 + _first(follows[:-1] != offsets[1:]))
        if not num_good:
            self._width = 1 + self._width // 8  # guesses are wasted if all headers are unusual
            return None
        self._width = min(_BATCH, 4 * self._width)
        # A valid header that does not follow the last member usually belongs to a tar inside it. A
        # search may find many more of them; hops find none, because they follow the sizes.
        if num_good < len(offsets) and not is_bad[num_good]:
            self._is_dense = False
        stop = int(follows[num_good - 1])
        headers, offsets, sizes = headers[:num_good], offsets[:num_good], sizes[:num_good]
        return Batch(headers, offsets, sizes, *self._classify(headers, offsets, sizes), stop)

    def _classify(self, headers: Bytes, offsets: IntArray, sizes: IntArray) -> tuple[Flags, Flags]:
        """Return which headers are plain members, and which are for the strict lane."""
        kinds = headers[:, 156]
        # A ustar prefix, a V7 folder or anything but a plain file needs a closer look. Bytes from
        # 345 on are a prefix in ustar only; GNU (a blank in the magic) stores times there.
        is_plain = ((kinds == ord("0")) | (kinds == ord("7"))) & (
            (headers[:, 345] == 0) | (headers[:, 262] == ord(" "))
        )
        is_special = ~is_plain
        # A PAX header before a plain file that states only a time changes nothing.
        timed = np.flatnonzero((kinds[:-1] == ord("x")) & is_plain[1:])
        is_special[timed] = ~self._are_timestamps(offsets[timed], sizes[timed])
        return is_plain, is_special

    def _guess(self, position: int) -> IntArray:
        """Return where the next headers may be, for the caller to verify."""
        if self._is_dense:
            offsets = self._search(position)
            if len(offsets):
                return offsets
            self._is_dense = False
        return self._hop(position)

    def _search(self, position: int) -> IntArray:
        """Search all blocks for the magic word; return nothing if members are not small.

        This reads a word of every block, which is free only if every page has a header anyway.
        """
        first = position // BLOCK_NBYTES
        # The short window comes first, so that an archive of large members costs a look at a few
        # pages instead of a read of all of them.
        for num_blocks in (_PROBE, self._width * _DENSITY):
            window = self._blocks[first : first + num_blocks]
            magic = window.view("<u8")[:, 32] & _MAGIC_MASK
            rows = np.flatnonzero(magic == _MAGIC)[: self._width]
            if not len(rows) or rows[0] or len(rows) * 2 * _DENSITY < len(window):
                return np.empty(0, np.int64)
        return (first + rows) * BLOCK_NBYTES

    def _hop(self, position: int) -> IntArray:
        """Hop from header to header by sizes of eleven octal digits."""
        data, last = self._archive.data, self._archive.nbytes - BLOCK_NBYTES
        positions = []
        try:
            for _ in range(self._width):
                if position > last:
                    break
                # `int` is more lenient than the format, which is harmless: a hop is a guess, which
                # `_canonical_sizes` verifies.
                size = int(data[position + 124 : position + 135], 8)
                if size < 0:
                    break
                positions.append(position)
                position += BLOCK_NBYTES + (size + 511 & -512)
        except ValueError:
            pass  # the end marker, a base-256 size, or not a header: for the strict lane
        return np.array(positions, np.int64)

    def _are_timestamps(self, offsets: IntArray, sizes: IntArray) -> Flags:
        """Return which PAX headers consist of one record with the modification time."""
        result = np.zeros(len(offsets), np.bool_)
        for size in np.unique(sizes).tolist():
            # The stated length must be that of the body. Otherwise a second record, which may
            # change the name or the size, would go unread.
            start = b"%d mtime=" % size
            if not len(start) < size <= BLOCK_NBYTES:
                continue
            rows = np.flatnonzero(sizes == size)
            bodies = self._blocks[offsets[rows] // BLOCK_NBYTES + 1, :size]
            is_line_end = bodies == ord("\n")
            result[rows] = (
                (bodies[:, : len(start)] == np.frombuffer(start, np.uint8)).all(axis=1)
                & is_line_end[:, -1]
                & (is_line_end.sum(axis=1) == 1)
            )
        return result


def _canonical_sizes(headers: Bytes, scratch: Words) -> IntArray:
    """Return each header's size, or -1 if checksum or size are wrong or unusually written."""
    # The sum over 512 bytes, as 64 words with four 16-bit lanes: 2 * 64 * 255 < 2**16.
    words = headers.view("<u8")
    odd, even = scratch[:, : len(words)]
    np.right_shift(words, 8, out=odd)
    odd &= _EVEN_BYTES
    odd += np.bitwise_and(words, _EVEN_BYTES, out=even)
    sums = odd.sum(axis=1).view(np.uint16).reshape(-1, 4).sum(axis=1, dtype=np.int64)
    # Columns become rows from here on: numpy is fast along long rows.
    checksum = np.ascontiguousarray(headers[:, 148:156].T)
    sums += 8 * ord(" ") - checksum.sum(axis=0, dtype=np.int64)
    sizes, is_size = _octal(np.ascontiguousarray(headers[:, 124:136].T), 11)
    stated, is_checksum = _octal(checksum, 6)
    return np.where(is_size & is_checksum & (stated == sums), sizes, -1)


def _octal(columns: Bytes, num_digits: int) -> tuple[IntArray, Flags]:
    """Return numbers with a fixed number of digits, and flags for those with this form.

    Args:
        columns: Bytes of the fields, one row for each column of the field.
        num_digits: Digits; NULs or blanks have to follow them.
    """
    # Bytes below "0" wrap around to large uint8 numbers, so one comparison with 7 excludes both
    # sides.
    digits, ends = columns[:num_digits] - np.uint8(ord("0")), columns[num_digits:]
    values = np.zeros(columns.shape[1], np.int64)
    # int64, since a product of uint8 would wrap at 256.
    for digit in digits:
        values *= 8
        values += digit
    return values, (digits <= 7).all(axis=0) & ((ends == 0) | (ends == ord(" "))).all(axis=0)


def _first(flags: Flags) -> int:
    """Return the position of the first flag that is set, or the number of flags."""
    return int(flags.argmax()) if flags.any() else len(flags)


def scan(data: TarBytes, path: str = "tar") -> TarMembers:
    """Return the regular files of a tar without reading their contents.

    Hard links to an earlier member are members with that member's bytes. Folders, symbolic links
    and devices are skipped.

    Args:
        data: The complete tar; released after the call.
        path: Its name in messages.

    Raises:
        ShardFormatError: The tar breaks a rule of specs/tar-shards.md.

    The cost is one read of each header. Safe to call from any thread.
    """
    archive = Archive(data, path)
    lane = VectorisedLane(archive, data)
    try:
        position = 0
        # Each step advances by at least one block, so a hostile tar cannot make the scan endless.
        while position < archive.nbytes:
            batch = lane.next_batch(position)
            position = _add_batch(archive, batch) if batch else read_next(archive, position)
    finally:
        lane.release()  # or an error's traceback would keep the data mapped
    archive.remark_end()
    return archive.result()


def _add_batch(archive: Archive, batch: Batch) -> int:
    """Add the members of a batch in order, and return where the next header is."""
    offsets = batch.offsets
    num_done = 0
    for row in np.flatnonzero(batch.is_special).tolist():
        if row < num_done:
            continue  # the member of an extended header, read together with it
        # Plain members before the unusual one come first: samples keep the order of the archive
        # (KEY-3), and a hard link finds its target among earlier members (TAR-13).
        batch.add_plain(archive.members, num_done, row)
        position = read_next(archive, int(offsets[row]))
        num_done = int(np.searchsorted(offsets, position))
        # An extended header can change a size, so that the next guesses were not headers.
        if num_done >= len(offsets) or offsets[num_done] != position or archive.global_records:
            return position
    batch.add_plain(archive.members, num_done, len(offsets))
    return batch.stop
