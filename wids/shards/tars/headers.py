"""Parse tar headers, split member names into key and field, and hold the state of a scan.

Parsers are pure functions of bytes. The formats are V7, ustar, GNU and PAX; specs/tar-shards.md
specifies what is accepted of each. Names are bytes, as a tar stores them. A name is split in its
last path component, at the first dot (or at the last one, on request): ``a.b/c.seg.png`` is field
``.seg.png`` of the sample with key ``a.b/c``.

An `Archive` is the state of a scan, which both lanes of `wids.shards.tars.scan` read and extend.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from mmap import mmap
from posixpath import normpath
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, get_args, overload

import numpy as np

from wids.errors import ShardFormatError, printable
from wids.storage.arrays import IntArray
from wids.storage.sizes import count_text

_logger = logging.getLogger(__name__)


TarBytes: TypeAlias = bytes | mmap


class TarData(Protocol):
    """The bytes of a tar by position: all in memory, or read when a slice is taken."""

    def __len__(self) -> int:
        """Return the length of the tar in bytes."""

    def __getitem__(self, span: slice, /) -> bytes:
        """Return the bytes from a start to a stop."""


BLOCK_NBYTES: Final = 512

_MAX_REMARKS: Final = 100  # of each level; a hostile tar can cause millions
_ZERO_BLOCK = bytes(BLOCK_NBYTES)


class TarMembers(NamedTuple):
    """The regular files of one tar, in archive order.

    Attributes:
        names: Member names as stored, one for each member.
        offsets: Where the members' bytes begin, shape ``(num_members,)``, in bytes from the start.
        sizes: Lengths of the members, shape ``(num_members,)``, in bytes.
        heads: Where the headers that end at ``offsets`` begin, including the extended ones that
            name the member, shape ``(num_members,)``; for a hard link the headers of its target.
        remarks: Oddities of the archive that are not errors, one sentence each.
        links: Names of symbolic links that have an extension, as files of samples have.
    """

    names: list[bytes]
    offsets: IntArray
    sizes: IntArray
    heads: IntArray
    remarks: tuple[str, ...] = ()
    links: tuple[bytes, ...] = ()


class MemberColumns:
    """The members found so far, as columns that grow by single members and by batches."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._columns = array("q"), array("q"), array("q")  # offsets, sizes and heads
        self._by_name: dict[bytes, tuple[int, int, int]] = {}
        self._num_by_name = 0  # members that _by_name covers

    def append(self, name: bytes, offset: int, size: int, head: int) -> None:
        """Add one member."""
        self.names.append(name)
        for column, value in zip(self._columns, (offset, size, head), strict=True):
            column.append(value)

    def extend(
        self, names: list[bytes], offsets: IntArray, sizes: IntArray, heads: IntArray
    ) -> None:
        """Add a batch of members."""
        self.names += names
        for column, values in zip(self._columns, (offsets, sizes, heads), strict=True):
            column.frombytes(values.tobytes())

    def columns(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return offsets, sizes and heads, one array each."""
        offsets, sizes, heads = (np.array(column, np.int64) for column in self._columns)
        return offsets, sizes, heads

    def last(self) -> tuple[int, int, int]:
        """Return the offset, size and head of the last member added."""
        offsets, sizes, heads = self._columns
        return offsets[-1], sizes[-1], heads[-1]

    def find(self, name: bytes) -> tuple[int, int, int] | None:
        """Return the offset, size and head of the last member with a name, or None.

        ``./a`` and ``a`` are one name, as for readers that unpack the archive into a folder.
        """
        # Built here, not in `extend`: most tars have no hard links, and a dict of all names costs
        # more than the scan.
        if self._num_by_name < len(self.names):
            new = slice(self._num_by_name, None)
            places = zip(*(column[new] for column in self._columns), strict=True)
            self._by_name.update(zip(map(normpath, self.names[new]), places, strict=True))
            self._num_by_name = len(self.names)
        return self._by_name.get(normpath(name))


class Archive:
    """One tar while it is scanned.

    Attributes:
        data: Its bytes.
        path: Its name in messages.
        nbytes: Its length in bytes.
        members: The members found so far.
        global_records: The PAX records of global headers that apply from here on.
        start: Where the last archive in the file begins.
        has_end: Whether that archive has an end marker.
        remarks: The oddities found so far.
    """

    def __init__(self, data: TarData, path: str) -> None:
        self.data = data
        self.path = path
        self.nbytes = len(data)
        if not self.nbytes:
            raise self.error(0, "a tar", "an empty file", "write it or fetch it again")
        self.members = MemberColumns()
        self.global_records: dict[bytes, bytes] = {}
        self.start = 0
        self.has_end = False
        self.links: list[bytes] = []
        self.remarks: list[str] = []
        self._num_remarks: Counter[int] = Counter()  # by level

    def block(self, position: int) -> bytes:
        """Return the block at a position; it is shorter at the end of the file."""
        return self.data[position : position + BLOCK_NBYTES]

    def is_end_at(self, position: int) -> bool:
        """Whether a zero block or less than one block begins at a position."""
        return self.nbytes - position < BLOCK_NBYTES or self.block(position) == _ZERO_BLOCK

    def remark(self, level: int, text: str) -> None:
        """Log something odd and add it to the remarks, up to a limit for each level."""
        # The limit covers the log too: an archive with many ends would flood it. Each level has its
        # own limit, or a hundred archives in one file would hide that the last end is missing.
        self._num_remarks[level] += 1
        if self._num_remarks[level] <= _MAX_REMARKS:
            self.remarks.append(text)
            _logger.log(level, "%s: %s", printable(self.path), text)

    def error(self, position: int, expected: str, found: str, remedy: str) -> ShardFormatError:
        """Return the error for what was found at a position."""
        return ShardFormatError(
            f"{self.path}: at byte {position}: expected {expected}, found {found}; {remedy}"
        )

    def remark_end(self) -> None:
        """Remark on a missing end marker and on links, after the whole tar was scanned."""
        if self.links:
            _logger.warning("%s: %s", printable(self.path), links_text(self.links))
        if not self.has_end:
            self.remark(logging.WARNING, "no end marker; it may have been cut between two members")

    def result(self) -> TarMembers:
        """Return the members found so far."""
        columns = self.members.columns()
        return TarMembers(self.members.names, *columns, tuple(self.remarks), tuple(self.links))


@overload
def padded(size: int) -> int: ...
@overload
def padded(size: IntArray) -> IntArray: ...
def padded(size: int | IntArray) -> int | IntArray:
    """Round up to whole blocks."""
    return (size + (BLOCK_NBYTES - 1)) & -BLOCK_NBYTES


def links_text(names: Sequence[bytes]) -> str:
    """Return what to know of symbolic links in a tar."""
    return (
        f'{count_text(len(names), "symbolic link")} such as "{show(names[0])}": a link has no '
        "bytes and is in no sample; `tar -h` packs the file that it leads to"
    )


NOT_FROM_A_PACKER: Final = "no packer writes this; fetch or write it again"
"""What to do about headers that only damage or malice produces."""

SPARSE: Final = b"sparse"
"""Key that stands for all PAX records that make a file sparse."""

# Rounded up to a block, with a header before it, a size still fits in an int64.
_MAX_NBYTES: Final = (1 << 63) - 1 - 2 * 512
_PAX_KEYS: Final = (b"path", b"linkpath", b"size")
_LENGTH_NUM_DIGITS: Final = 20  # as many as tarfile reads; some writers pad the length with zeros
_SPARSE_PREFIXES: Final = (b"GNU.sparse.", b"SCHILY.realsize")
_OCTAL: Final = re.compile(rb" *([0-7]*)[ \0]*")

_LOOKALIKES: Final = (
    (b"\x1f\x8b", "gzip data (a .tar.gz; unpack it with gunzip)"),
    (b"\x28\xb5\x2f\xfd", "zstd data (unpack it with zstd -d)"),
    (b"\xfd7zXZ", "xz data (unpack it with xz -d)"),
    (b"BZh", "bzip2 data (unpack it with bunzip2)"),
    (b"PK\x03\x04", "a zip archive (pack its files as a tar)"),
    (b"<", "HTML or XML (perhaps a login page, or an error page that was saved as a shard)"),
    (b"{", "JSON (perhaps a spec or an error message)"),
)


class HeaderError(ValueError):
    """A flaw in a header: what was expected and found, and what to do; `scan` adds where."""


class Header(NamedTuple):
    """One header block."""

    kind: bytes
    name: bytes
    link: bytes
    size: int


def parse_header(block: bytes) -> Header:
    """Parse a header block whose checksum is right."""
    size = parse_number(block[124:136])
    name = block[:100].partition(b"\0")[0]
    if size is None:
        raise HeaderError(
            f'a size for member "{show(name)}"', repr(block[124:136]), NOT_FROM_A_PACKER
        )
    # Only ustar has a prefix. GNU writes "ustar " with a blank and has times in these bytes; V7
    # leaves them undefined.
    if block[257:263] == b"ustar\0" and block[345]:
        # The xstar format has "tar" at the very end and stores two times after its prefix.
        prefix = block[345 : 476 if block[508:512] == b"tar\0" else 500].partition(b"\0")[0]
        name = prefix + b"/" + name
    return Header(block[156:157], name, block[157:257].partition(b"\0")[0], size)


def has_checksum(block: bytes) -> bool:
    """Whether a block is a header, which states its own checksum."""
    # An empty field would be parsed as 0, which is the signed sum of some texts, such as names in
    # the body of an extended header.
    checksum = parse_number(block[148:156]) if block[148:156].strip(b" \0") else None
    # POSIX: the eight bytes of the checksum count as blanks, since it is computed before it is
    # stored.
    unsigned = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if checksum is None or checksum == unsigned:
        return checksum is not None
    # Old Sun tars summed signed bytes, so each byte over 127 counts 256 less.
    return checksum == unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def parse_number(field: bytes) -> int | None:
    """Return an octal or base-256 number; None if it is neither, or negative or too large."""
    # `int` alone would accept signs, underscores and "0o", unlike other readers.
    if field[:1] == b"\x80":
        value = int.from_bytes(field[1:], "big")
    else:
        match = _OCTAL.fullmatch(field)
        if not match:
            return None
        value = int(match[1] or b"0", 8)
    return value if value <= _MAX_NBYTES else None


def parse_size(text: bytes, name: bytes) -> int:
    """Return the size that a PAX record states for a member."""
    # Length first: Python refuses to convert thousands of digits, with its own error.
    if not text.isdigit() or len(text) > len(str(_MAX_NBYTES)) or int(text) > _MAX_NBYTES:
        raise HeaderError(
            f'a PAX size for member "{show(name)}"', repr(text[:40]), NOT_FROM_A_PACKER
        )
    return int(text)


def parse_records(body: bytes) -> dict[bytes, bytes]:
    """Return the records of a PAX body that affect names, sizes or links."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        record = _parse_record(body, at)
        if record is None:
            break
        key, value, at = record
        if key in _PAX_KEYS:
            if not value or b"\0" in value:
                raise HeaderError(f"a PAX {key.decode()}", repr(value[:40]), "pack it again")
            # Without leading zeros, so that one size in two headers does not look like two.
            is_number = key == b"size" and value.isdigit()
            records[key] = value.lstrip(b"0") or b"0" if is_number else value
        elif key.startswith(_SPARSE_PREFIXES):
            # The strict lane rejects it, with the file's name if a record states one.
            records[SPARSE] = value if key == b"GNU.sparse.name" else records.get(SPARSE, b"")
    return records


def parse_long_name(body: bytes) -> bytes:
    """Return the name in the body of a GNU long name or long link."""
    name, _, rest = body.partition(b"\0")
    # The size includes a NUL, and with some writers the padding. Other NULs are a hole in the name,
    # which no checksum covers.
    is_padded = not len(body) % 512 and len(rest) < 512
    if not name or (rest and not is_padded) or rest.strip(b"\0"):
        raise HeaderError(
            f"a GNU long name of {len(body)} bytes with a NUL at its end",
            f"one that ends after {len(name)} bytes",
            "the tar is damaged there: fetch or write it again",
        )
    return name


def _parse_record(body: bytes, at: int) -> tuple[bytes, bytes, int] | None:
    """Return the key and value of the record at a position, and where the next one is.

    Returns:
        None if only padding follows: some writers include it in the size.
    """
    # The limit also keeps `int` cheap: a hostile body could have a megabyte of digits.
    blank = body.find(b" ", at, at + _LENGTH_NUM_DIGITS + 1)
    digits = body[at:blank]
    stop = at + int(digits) if blank > at and digits.isdigit() else 0
    key, equals, value = body[blank + 1 : stop - 1].partition(b"=")
    # `at < stop` ensures that the loop over records ends: a record of length 0 would never advance.
    if at < stop <= len(body) and equals and key and body[stop - 1] == ord("\n"):
        return key, value, stop
    # Padding never begins a block. A block of NULs is a hole: its records are lost, perhaps
    # including the name.
    if at % 512 and not body[at:].strip(b"\0"):
        return None
    raise HeaderError(
        'PAX records of the form "LENGTH KEY=VALUE"',
        repr(body[at : at + 40]),
        "pack it again with `tar --format=pax`",
    )


def describe(head: bytes, *, is_start: bool) -> str:
    """Describe what the first bytes of something that is not a header look like.

    Args:
        head: The bytes.
        is_start: Whether they begin the file, where the magic of another format is meaningful.
    """
    if is_start:
        for magic, what in _LOOKALIKES:
            # HTML and JSON may begin with blank lines.
            if head.lstrip().startswith(magic):
                # The text of the page says why the server sent it.
                text = head.lstrip().decode("utf-8", "replace")
                return f"{what} that begins with {text[:50]!r}" if magic == b"<" else what
        text = head.decode("utf-8", "ignore")  # the last character may be cut
        if text and all(character.isprintable() or character in "\t\r\n" for character in text):
            advice = "a spec is JSON, and a list of shards is named .txt"
            return f"text ({advice}) that begins with {text[:50]!r}"
    return f"bytes that begin with {head[:16]!r}"


def show(name: bytes) -> str:
    """Return a stored name as text for a message."""
    # Not surrogateescape, as for sample keys: a message has to be printable on any stream.
    return name.decode("utf-8", "backslashreplace")


KeySplit = Literal["first", "last"]
KEY_SPLITS: tuple[KeySplit, ...] = get_args(KeySplit)


class SplitNames(NamedTuple):
    """Many names in one run of bytes, and where each of them is split.

    Name ``i`` has the key ``joined[starts[i]:dots[i]]`` and the field ``joined[dots[i]:ends[i]]``;
    ``dots[i]`` is 0 if the name has no key or no field.
    """

    joined: bytes
    starts: IntArray
    dots: IntArray
    ends: IntArray

    def parts(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys, and the fields without their first dot, of names that have both."""
        # One split in C: slicing each name in Python takes four times as long.
        is_split = self.dots > 0
        text = np.frombuffer(self.joined, np.uint8).copy()
        text[self.dots[is_split]] = 0
        if not is_split.all():
            text = text[np.repeat(is_split, self.ends + 1 - self.starts)]
        parts = text.tobytes().split(b"\0")
        return parts[:-1:2], parts[1::2]


def split_names(names: list[bytes], key_split: KeySplit = "first") -> SplitNames:
    """Split member names, which must not contain a NUL, into keys and fields.

    A name without a key or without a field in its last path component belongs to no sample, and
    neither does one of metadata, nor the ``._`` files of macOS. The cost is a few numpy passes over
    all bytes.
    """
    # The final NUL marks the end of the last name. No tar name contains one.
    joined = b"\0".join([*names, b""])
    text = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(text == 0)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    slashes = np.flatnonzero(text == ord("/"))
    dots = np.flatnonzero(text == ord("."))
    bases = np.maximum(starts, _last_before(slashes, ends) + 1)
    # The next dot may belong to a later name, or be the sentinel after the last one. Both are after
    # the end of this name, so `is_split` drops them.
    if key_split == "first":
        splits = np.append(dots, len(joined))[np.searchsorted(dots, bases)]
    else:
        splits = _last_before(dots, ends)
    is_split = (splits > bases) & (splits < ends - 1)  # key and field are not empty
    if key_split == "last":  # with the first dot, their key is empty
        dotted = np.flatnonzero(is_split & (text[bases] == ord(".")))
        is_split[dotted[text[bases[dotted] + 1] == ord("_")]] = False
    for number in np.flatnonzero(is_split & (text[starts] == ord("_"))).tolist():
        is_split[number] = not is_metadata(names[number])
    return SplitNames(joined, starts, np.where(is_split, splits, 0), ends)


def is_metadata(name: bytes) -> bool:
    """Whether the first path component of a name is ``__…__``, which webdataset skips (KEY-5)."""
    first = name.partition(b"/")[0]
    return len(first) >= len(b"____") and first[:2] == first[-2:] == b"__"


def _last_before(positions: IntArray, limits: IntArray) -> IntArray:
    """For each limit, return the last of the ascending positions before it, or -1."""
    return np.concatenate(([-1], positions))[np.searchsorted(positions, limits)]


def split_name(name: bytes, key_split: KeySplit = "first") -> tuple[bytes, bytes] | None:
    """Return key and field (with its leading dot) of one member name, or None."""
    _, _, dots, _ = split_names([name], key_split)
    return (name[: dots[0]], name[dots[0] :]) if dots[0] else None


def to_text(name: bytes) -> str:
    """Return a stored name as text; bytes that are not UTF-8 become lone surrogates."""
    # TAR-5: not "replace", because two different names could then become the same key.
    return name.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Return the stored bytes of a name; the inverse of `to_text`."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other lone surrogates, which no stored name has
        return b"\0"  # no stored name equals this, so that a search finds nothing
