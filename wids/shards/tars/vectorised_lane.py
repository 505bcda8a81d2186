"""Verify runs of plain headers in batches: the lane of a scan for what packers usually write.

Header positions are guessed cheaply, by a search for the magic word or by hops from header to
header. Then the headers of a batch are verified together as a numpy matrix. Unusual headers are
only located here; the strict lane reads them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wids.shards.tars.archive import BLOCK_NBYTES, Archive, MemberColumns, TarBytes, padded
from wids.storage.array_types import IntArray

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
