"""Bytes of a tar → a validated `TarIndex` of its members.

Every header is checked once, here, and the readers above trust the result. This room knows the tar
formats (V7, ustar, GNU, PAX) and their traps; it knows nothing of samples, keys or fields. What is
read, skipped and rejected is written down in specs/tar-shards.md.

How it is fast: the way from header to header is guessed with one slice and one `int` per header,
then a batch of headers is verified as a numpy matrix. Rows that are not plain files in canonical
form, and everything after a wrong guess, go through the strict, one-at-a-time routine, which is the
only place that decides about anything unusual.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from mmap import mmap
from typing import Final, NamedTuple, NoReturn, overload

import numpy as np
import numpy.typing as npt

from wids.errors import ShardFormatError

IntArray = npt.NDArray[np.int64]
TarBytes = bytes | mmap

BLOCK_NBYTES: Final = 512
MAX_EXTENDED_NBYTES: Final = 1 << 20
"""Largest body of a PAX or GNU extended header; real ones hold a name and a few times."""
MAX_EXTENDED_RUN: Final = 8
"""Most extended headers that may precede one member."""

_MAX_PADDING_NBYTES: Final = 22 * BLOCK_NBYTES  # two blocks, then up to a record of twenty
_MAX_NBYTES: Final = (1 << 63) - 1 - 2 * BLOCK_NBYTES
_MAX_REMARKS: Final = 100  # enough to see that something is odd
_BATCH: Final = 1024  # headers; half a MiB, so that a batch stays in the processor's cache

_PROBE: Final = 256  # blocks to look at before many are; the kernel reads as many at once
_DENSITY: Final = 4  # blocks a header, with its member, that are so few that all may be looked at
_MAGIC = np.uint64(int.from_bytes(b"\0ustar\0\0", "little"))  # bytes 256 to 264, less three
_MAGIC_MASK = np.uint64(int.from_bytes(b"\0\xff\xff\xff\xff\xff\0\0", "little"))

_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_ZERO_BLOCK = bytes(BLOCK_NBYTES)

_FILE_TYPES = b"0\x007"  # plain, plain in V7, contiguous
_EMPTY_TYPES = b"123456"  # hard link, symlink, two kinds of device, folder, FIFO
_SKIPPED_TYPES = b"VD"  # GNU: volume label, list of a folder's files
_PAX_KEYS = (b"path", b"linkpath", b"size")
_SPARSE = b"sparse"  # stands for all records that make a file sparse

_logger = logging.getLogger("wids")


@dataclass(frozen=True)
class TarIndex:
    """The regular files of one tar, in archive order.

    Attributes:
        names: Member names as stored, one for each member.
        offsets: Where the members' bytes begin, shape ``(num_members,)``, in bytes from the start.
        sizes: Lengths of the members, shape ``(num_members,)``, in bytes.
        heads: Where the headers begin that end at ``offsets``, with the extended ones that name
            the member, shape ``(num_members,)``; for a hard link those of its target.
        remarks: What is odd about the archive but no error, one sentence each.
    """

    names: list[bytes]
    offsets: IntArray
    sizes: IntArray
    heads: IntArray
    remarks: tuple[str, ...] = ()


def scan(data: TarBytes, path: str = "tar") -> TarIndex:
    """Index the regular files of a tar without reading their contents.

    Hard links to an earlier member are members with that member's bytes. Folders, symbolic links
    and devices are skipped.

    Args:
        data: The complete tar. Not kept after the call.
        path: How messages name it.

    Raises:
        ShardFormatError: The tar breaks a rule of specs/tar-shards.md.

    Cost is one read of each header. Safe to call from any thread.
    """
    one_pass = _Scan(data, path)
    try:
        return one_pass.run()
    finally:
        one_pass.blocks = one_pass.headers  # or an error's traceback would keep the data mapped


class _Header(NamedTuple):
    kind: bytes
    name: bytes
    link: bytes
    size: int


class _Scan:
    """One pass over one tar; lives for one call of `scan`."""

    def __init__(self, data: TarBytes, path: str) -> None:
        self.data = data
        self.path = path
        self.nbytes = len(data)
        blocks = np.frombuffer(data, np.uint8, self.nbytes // BLOCK_NBYTES * BLOCK_NBYTES)
        self.blocks = blocks.reshape(-1, BLOCK_NBYTES)
        # Room for one batch, used again and again: fresh memory would cost ten times the copy.
        self.headers = np.empty((_BATCH, BLOCK_NBYTES), np.uint8)
        self.scratch = np.empty((2, _BATCH, BLOCK_NBYTES // 8), np.uint64)
        self.names: list[bytes] = []
        self.offsets: list[IntArray] = []
        self.sizes: list[IntArray] = []
        self.heads: list[IntArray] = []
        self.remarks: list[str] = []
        self.global_records: dict[bytes, bytes] = {}
        self.member_by_name: dict[bytes, tuple[int, int, int]] = {}
        self.num_linkable = 0  # members that member_by_name knows
        self.has_end = False
        self.width = _BATCH  # headers to guess at a time
        self.is_dense = True  # until headers turn out to be far apart, or to be inside members

    def run(self) -> TarIndex:
        if not self.nbytes:
            self.fail(0, "a tar", "an empty file", "write it or fetch it again")
        position = 0
        while position < self.nbytes:
            position = self.batch(position)
        if not self.has_end:
            self.remark(logging.WARNING, "no end marker; it may have been cut between two members")
        return TarIndex(
            self.names,
            _joined(self.offsets),
            _joined(self.sizes),
            _joined(self.heads),
            tuple(self.remarks),
        )

    # The fast lane: whole batches of plain headers.

    def batch(self, position: int) -> int:
        """Take the members from ``position`` on, a batch at most; give the next position."""
        offsets = np.empty(0, np.int64) if self.global_records else self.guess(position)
        if not len(offsets):
            return self.strict(position)
        headers = self.headers[: len(offsets)]
        np.take(self.blocks, offsets // BLOCK_NBYTES, axis=0, out=headers, mode="clip")
        sizes = _canonical_sizes(headers, self.scratch)
        follows = offsets + BLOCK_NBYTES + _padded(sizes)
        bad = (sizes < 0) | (offsets + BLOCK_NBYTES + sizes > self.nbytes)
        num_good = _first(bad)
        # Where headers were looked for, some may have been found inside a member.
        num_good = min(num_good, 1 + _first(follows[:-1] != offsets[1:]))
        if not num_good:
            self.width = 1 + self.width // 8  # where all are unusual, guessing is for nothing
            return self.strict(position)
        self.width = min(_BATCH, 4 * self.width)
        kinds = headers[:, 156]
        # A ustar prefix, a V7 folder or anything but a plain file needs a closer look. Bytes from
        # 345 on are a prefix in ustar only; GNU (a blank in the magic) keeps times there.
        plain = ((kinds == ord("0")) | (kinds == ord("7"))) & (
            (headers[:, 345] == 0) | (headers[:, 262] == ord(" "))
        )
        plain[num_good:] = False
        special = ~plain
        special[num_good:] = False
        # A PAX header that only states a time, before a plain file, changes nothing.
        timed = np.flatnonzero((kinds[:-1] == ord("x")) & plain[1:])
        special[timed] = ~self.are_timestamps(offsets[timed], sizes[timed])
        done = 0
        for row in np.flatnonzero(special).tolist():
            if row < done:
                continue
            self.extend(headers, offsets, sizes, plain, done, row)
            position = self.strict(int(offsets[row]))
            done = int(np.searchsorted(offsets, position))
            if done >= num_good or offsets[done] != position or self.global_records:
                return position
        self.extend(headers, offsets, sizes, plain, done, num_good)
        if num_good < len(offsets) and not bad[num_good]:
            self.is_dense = False
        return int(follows[num_good - 1])

    def guess(self, position: int) -> IntArray:
        """Guess where the next headers are; verified by the caller."""
        if self.is_dense:
            offsets = self.look(position)
            if len(offsets):
                return offsets
            self.is_dense = False
        return self.hop(position)

    def look(self, position: int) -> IntArray:
        """Look for the magic word in all blocks, where members are small; none where they are not.

        This reads a word of every block, which costs nothing only where every page has a header.
        """
        first = position // BLOCK_NBYTES
        for num_blocks in (_PROBE, self.width * _DENSITY):
            window = self.blocks[first : first + num_blocks]
            magic = window.view("<u8")[:, 32] & _MAGIC_MASK
            found = np.flatnonzero(magic == _MAGIC)[: self.width]
            if not len(found) or found[0] or len(found) * 2 * _DENSITY < len(window):
                return np.empty(0, np.int64)
        return (first + found) * BLOCK_NBYTES

    def hop(self, position: int) -> IntArray:
        """Hop from header to header, believing eleven octal digits."""
        data, last = self.data, self.nbytes - BLOCK_NBYTES
        positions = []
        try:
            for _ in range(self.width):
                if position > last:
                    break
                size = int(data[position + 124 : position + 135], 8)
                if size < 0:
                    break
                positions.append(position)
                position += BLOCK_NBYTES + (size + 511 & -512)
        except ValueError:
            pass  # the end marker, a base-256 size, or no header at all: for the strict routine
        return np.array(positions, np.int64)

    def are_timestamps(self, offsets: IntArray, sizes: IntArray) -> npt.NDArray[np.bool_]:
        """Tell which PAX headers consist of one record with the time of modification."""
        found = np.zeros(len(offsets), np.bool_)
        for size in np.unique(sizes).tolist():
            start = b"%d mtime=" % size
            if not len(start) < size <= BLOCK_NBYTES:
                continue
            rows = np.flatnonzero(sizes == size)
            bodies = self.blocks[offsets[rows] // BLOCK_NBYTES + 1, :size]
            is_line_end = bodies == ord("\n")
            found[rows] = (
                (bodies[:, : len(start)] == np.frombuffer(start, np.uint8)).all(axis=1)
                & is_line_end[:, -1]
                & (is_line_end.sum(axis=1) == 1)
            )
        return found

    def extend(
        self,
        headers: npt.NDArray[np.uint8],
        offsets: IntArray,
        sizes: IntArray,
        plain: npt.NDArray[np.bool_],
        start: int,
        stop: int,
    ) -> None:
        """Append the plain members among the rows from ``start`` to ``stop``."""
        rows = np.flatnonzero(plain[start:stop]) + start
        if not len(rows):
            return
        # numpy's byte strings drop the NULs at their end, as a tar name wants.
        names = np.ascontiguousarray(headers[rows, :100]).view("S100").ravel().tolist()
        if b"\0" in b"".join(names):
            names = [name.partition(b"\0")[0] for name in names]
        self.names += names
        self.offsets.append(offsets[rows] + BLOCK_NBYTES)
        self.sizes.append(sizes[rows])
        self.heads.append(offsets[rows])

    # The strict lane: one member, with everything that may stand before it.

    def strict(self, position: int) -> int:
        """Take what stands at ``position``: a member, or the end; give the next position."""
        if self.nbytes - position < BLOCK_NBYTES or self.is_zero_block(position):
            return self.end(position)
        first = position
        header, extended, position = self.header_with_extensions(position)
        name = extended.get(b"path", header.name)
        if header.kind == b"S" or _SPARSE in extended:
            self.refuse(position, extended.get(_SPARSE) or name, "a sparse file")
        size = self.size_of(extended, header.size, name, position)
        # Before ustar, a folder was a file whose name ends in a slash.
        is_folder = header.kind == b"\0" and name.endswith(b"/")
        is_empty = is_folder or header.kind in _EMPTY_TYPES
        if is_empty and size:
            self.fail(
                position,
                f'no data for member "{_show(name)}" of type {header.kind.decode()}',
                f"{size} bytes, which readers of tars disagree about",
                "pack it again with GNU tar",
            )
        start = position + BLOCK_NBYTES
        if size > self.nbytes - start:
            raise ShardFormatError(
                f'{self.path}: member "{_show(name)}" needs bytes {start}..{start + size}, '
                f"file has {self.nbytes}; it is incomplete: delete it and fetch or write it again"
            )
        if header.kind == b"1":
            self.append(name, *self.target(name, extended.get(b"linkpath", header.link), position))
        elif header.kind in _FILE_TYPES and not is_folder:
            self.append(name, start, size, first)
        elif not is_empty and header.kind not in _SKIPPED_TYPES:
            self.refuse(position, name, f"type {header.kind!r}")
        return start + _padded(size)

    def header_with_extensions(self, position: int) -> tuple[_Header, dict[bytes, bytes], int]:
        """Read a member's header and the extended headers before it.

        Returns:
            The header, what the extended headers say (path, linkpath, size), and where it stands.
        """
        local: dict[bytes, bytes] = {}
        for _ in range(MAX_EXTENDED_RUN + 1):
            header = self.header(position)
            if header.kind not in b"xXgLK":
                return header, {**self.global_records, **local}, position
            if header.size > MAX_EXTENDED_NBYTES:
                self.fail(
                    position,
                    f"an extended header of at most {MAX_EXTENDED_NBYTES} bytes",
                    f"{header.size} bytes",
                    "this is no tar that a packer writes; fetch or write it again",
                )
            if header.kind in b"LK":
                key = b"path" if header.kind == b"L" else b"linkpath"
                records = {key: self.body(position, header.size).partition(b"\0")[0]}
                if not records[key]:
                    self.fail(position, "a GNU long name", "an empty one", "pack it again")
            else:
                records = self.pax_records(position, header.size)
            if header.kind == b"g":
                self.global_records.update(records)
            else:
                for key, value in records.items():
                    if local.setdefault(key, value) != value:
                        self.fail(
                            position,
                            f"one {key.decode()} for a member",
                            f'"{_show(local[key])}" and "{_show(value)}"',
                            "pack it again: readers of tars disagree about which one counts",
                        )
            following = position + BLOCK_NBYTES + _padded(header.size)
            if self.nbytes - following < BLOCK_NBYTES or self.is_zero_block(following):
                if header.kind == b"g" and not local:
                    # A comment at the very end, as `git archive` leaves for an empty tree.
                    return _Header(b"5", b"", b"", 0), {}, following - BLOCK_NBYTES
                self.fail(
                    following,
                    "the member that an extended header announces",
                    "the end of the archive",
                    "it is incomplete: delete it and fetch or write it again",
                )
            position = following
        return self.fail(
            position,
            f"at most {MAX_EXTENDED_RUN} extended headers before a member",
            "more",
            "this is no tar that a packer writes; fetch or write it again",
        )

    def header(self, position: int) -> _Header:
        """Read and verify one header block."""
        block = self.data[position : position + BLOCK_NBYTES]
        if not self.has_header(position):
            self.fail(
                position,
                "the header of a member",
                self.describe(position),
                "only plain, uncompressed tars can be read in place; delete this one and fetch or "
                "write it again",
            )
        size = _number(block[124:136])
        name = block[:100].partition(b"\0")[0]
        if size is None:
            self.fail(
                position,
                f'a size for member "{_show(name)}"',
                repr(block[124:136]),
                "this is no tar that a packer writes; fetch or write it again",
            )
        if block[257:263] == b"ustar\0" and block[345]:
            # The xstar format says "tar" at the very end and keeps two times behind its prefix.
            prefix = block[345 : 476 if block[508:512] == b"tar\0" else 500].partition(b"\0")[0]
            name = prefix + b"/" + name
        return _Header(block[156:157], name, block[157:257].partition(b"\0")[0], size)

    def has_header(self, position: int) -> bool:
        """Tell whether a block is a header, by its checksum."""
        block = self.data[position : position + BLOCK_NBYTES]
        stated = _number(block[148:156])
        unsigned = sum(block) - sum(block[148:156]) + 8 * ord(" ")
        # Old Sun tars summed signed bytes, so each byte over 127 counts 256 less.
        signed = unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
        return stated is not None and stated in (unsigned, signed)

    def body(self, position: int, size: int) -> bytes:
        """Read the body of an extended header that stands at ``position``."""
        start = position + BLOCK_NBYTES
        if size > self.nbytes - start:
            self.fail(
                position,
                f"an extended header with bytes {start}..{start + size}",
                f"a file of {self.nbytes} bytes",
                "it is incomplete: delete it and fetch or write it again",
            )
        return self.data[start : start + size]

    def pax_records(self, position: int, size: int) -> dict[bytes, bytes]:
        """Read the records of a PAX header that bear on names, sizes or links."""
        body = self.body(position, size)
        records = {}
        at = 0
        while at < size:
            blank = body.find(b" ", at, at + 8)
            digits = body[at:blank]
            stop = at + int(digits) if blank > at and digits.isdigit() else 0
            key, equals, value = body[blank + 1 : stop - 1].partition(b"=")
            if not (at < stop <= size and equals and key and body[stop - 1] == ord("\n")):
                if not body[at:].strip(b"\0"):
                    break  # some writers count the padding
                self.fail(
                    position,
                    'PAX records of the form "LENGTH KEY=VALUE"',
                    repr(body[at : at + 40]),
                    "pack it again with `tar --format=pax`",
                )
            if key in _PAX_KEYS:
                if not value or b"\0" in value:
                    self.fail(position, f"a PAX {key.decode()}", repr(value[:40]), "pack it again")
                records[key] = value
            elif key.startswith((b"GNU.sparse.", b"SCHILY.realsize")):
                # For the caller to refuse, with the file's name where this record has it.
                records[_SPARSE] = value if key == b"GNU.sparse.name" else records.get(_SPARSE, b"")
            at = stop
        return records

    def size_of(
        self, extended: dict[bytes, bytes], header_size: int, name: bytes, position: int
    ) -> int:
        """Give the size that governs: the PAX one where there is one."""
        text = extended.get(b"size")
        if text is None:
            return header_size
        if not text.isdigit() or len(text) > len(str(_MAX_NBYTES)) or int(text) > _MAX_NBYTES:
            self.fail(
                position,
                f'a PAX size for member "{_show(name)}"',
                repr(text[:40]),
                "this is no tar that a packer writes; fetch or write it again",
            )
        return int(text)

    def refuse(self, position: int, name: bytes, found: str) -> NoReturn:
        self.fail(
            position,
            f'member "{_show(name)}" as a plain file',
            found,
            "pack it again with `tar --format=pax` and without --sparse",
        )

    def append(self, name: bytes, offset: int, size: int, head: int) -> None:
        self.names.append(name)
        self.offsets.append(np.array([offset], np.int64))
        self.sizes.append(np.array([size], np.int64))
        self.heads.append(np.array([head], np.int64))

    def target(self, name: bytes, link: bytes, position: int) -> tuple[int, int, int]:
        """Give offset, size and head of the member that a hard link names."""
        if self.num_linkable < len(self.names):
            columns = [_joined(column) for column in (self.offsets, self.sizes, self.heads)]
            self.offsets, self.sizes, self.heads = ([column] for column in columns)
            new = slice(self.num_linkable, None)
            places = zip(*(column[new].tolist() for column in columns), strict=True)
            self.member_by_name.update(zip(self.names[new], places, strict=True))
            self.num_linkable = len(self.names)
        found = self.member_by_name.get(link)
        if found is None:
            self.fail(
                position,
                f'hard link "{_show(name)}" to an earlier member',
                f'"{_show(link)}", which is none',
                "pack it again with `tar --hard-dereference`",
            )
        return found

    # The end, and what may follow it.

    def is_zero_block(self, position: int) -> bool:
        return self.data[position : position + BLOCK_NBYTES] == _ZERO_BLOCK

    def end(self, position: int) -> int:
        """Look at what follows the last member; give where to go on, or the end of the file."""
        if self.nbytes - position < BLOCK_NBYTES and self.data[position:].strip(b"\0"):
            self.fail(
                position,
                f"a header of {BLOCK_NBYTES} bytes",
                self.describe(0) if position == 0 else f"{self.nbytes - position} bytes",
                "it is incomplete or no tar: delete it and fetch or write it again",
            )
        self.has_end = self.nbytes - position >= BLOCK_NBYTES
        found = _find_nonzero(self.data, position)
        if found < 0:
            if self.nbytes - position > _MAX_PADDING_NBYTES:
                self.remark(
                    logging.WARNING,
                    f"{self.nbytes - position} bytes of zeros at the end, from {position}",
                )
            return self.nbytes
        follows = position + (found - position) // BLOCK_NBYTES * BLOCK_NBYTES
        if self.has_header(follows):
            # More zeros than a packer leaves may be a hole where members were.
            is_odd = follows - position > _MAX_PADDING_NBYTES
            self.remark(
                logging.WARNING if is_odd else logging.INFO,
                f"another archive at byte {follows}, after {follows - position} bytes of zeros",
            )
            self.has_end = False
            return follows
        self.remark(
            logging.WARNING,
            f"unknown bytes from byte {found} on, after the end marker at {position}; ignored",
        )
        return self.nbytes

    def remark(self, level: int, text: str) -> None:
        if len(self.remarks) < _MAX_REMARKS:
            self.remarks.append(text)
            _logger.log(level, "%s: %s", self.path, text)

    def describe(self, position: int) -> str:
        """Say what stands where a header was expected."""
        head = bytes(self.data[position : position + 64])
        if position == 0:
            for magic, what in _LOOKALIKES:
                if head.lstrip().startswith(magic):
                    return what
        return f"bytes that begin with {head[:16]!r}"

    def fail(self, position: int, expected: str, found: str, remedy: str) -> NoReturn:
        raise ShardFormatError(
            f"{self.path}: at byte {position}: expected {expected}, found {found}; {remedy}"
        )


def _canonical_sizes(headers: npt.NDArray[np.uint8], scratch: npt.NDArray[np.uint64]) -> IntArray:
    """Give each header's size, or -1 where checksum or size are wrong or unusually written."""
    # The sum over 512 bytes, as 64 words with four 16-bit lanes: 2 * 64 * 255 < 2**16.
    words = headers.view("<u8")
    odd, even = scratch[:, : len(words)]
    np.right_shift(words, 8, out=odd)
    odd &= _EVEN_BYTES
    odd += np.bitwise_and(words, _EVEN_BYTES, out=even)
    sums = odd.sum(axis=1).view(np.uint16).reshape(-1, 4).sum(axis=1, dtype=np.int64)
    # Columns as rows from here on: numpy is fast along long ones.
    checksum = np.ascontiguousarray(headers[:, 148:156].T)
    sums += 8 * ord(" ") - checksum.sum(axis=0, dtype=np.int64)
    sizes, good = _octal(np.ascontiguousarray(headers[:, 124:136].T), 11)
    stated, is_octal = _octal(checksum, 6)
    return np.where(good & is_octal & (stated == sums), sizes, -1)


def _octal(
    columns: npt.NDArray[np.uint8], num_digits: int
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Read numbers of so many digits and then NULs or blanks; say which are written like that."""
    digits, ends = columns[:num_digits] - np.uint8(ord("0")), columns[num_digits:]
    values = np.zeros(columns.shape[1], np.int64)
    for digit in digits:
        values *= 8
        values += digit
    return values, (digits <= 7).all(axis=0) & ((ends == 0) | (ends == ord(" "))).all(axis=0)


_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)


def _first(flags: npt.NDArray[np.bool_]) -> int:
    """Give the position of the first that is set, or their number."""
    return int(flags.argmax()) if flags.any() else len(flags)


_LOOKALIKES = (
    (b"\x1f\x8b", "gzip data (a .tar.gz; unpack it with gunzip)"),
    (b"\x28\xb5\x2f\xfd", "zstd data (unpack it with zstd -d)"),
    (b"\xfd7zXZ", "xz data (unpack it with xz -d)"),
    (b"BZh", "bzip2 data (unpack it with bunzip2)"),
    (b"PK\x03\x04", "a zip archive (pack its files as a tar)"),
    (b"<", "HTML or XML (perhaps an error page that was saved as a shard)"),
    (b"{", "JSON (perhaps a spec or an error message)"),
)


def _joined(columns: list[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *columns])


@overload
def _padded(size: int) -> int: ...
@overload
def _padded(size: IntArray) -> IntArray: ...
def _padded(size: int | IntArray) -> int | IntArray:
    """Round up to whole blocks."""
    return (size + (BLOCK_NBYTES - 1)) & -BLOCK_NBYTES


def _number(field: bytes) -> int | None:
    """Read an octal or base-256 number; None where it is neither, negative or too large."""
    if field[:1] == b"\x80":
        value = int.from_bytes(field[1:], "big")
    else:
        match = _OCTAL.fullmatch(field)
        if not match:
            return None
        value = int(match[1] or b"0", 8)
    return value if value <= _MAX_NBYTES else None


def _find_nonzero(data: TarBytes, position: int) -> int:
    """Give the offset of the first byte that is not zero, or -1."""
    start, step = position, BLOCK_NBYTES  # most often it is near, and sometimes very far
    while start < len(data):
        chunk = data[start : start + step]
        rest = chunk.lstrip(b"\0")
        if rest:
            return start + len(chunk) - len(rest)
        start += len(chunk)
        step = min(2 * step, 1 << 20)
    return -1


def _show(name: bytes) -> str:
    """Give a name for a message."""
    return name.decode("utf-8", "backslashreplace")
