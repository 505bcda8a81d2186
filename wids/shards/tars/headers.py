"""Parse one tar header or PAX body, or raise a `HeaderError` that names the flaw.

These are pure functions of bytes. The formats are V7, ustar, GNU and PAX; specs/tar-shards.md
specifies what is accepted of each.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

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
    """A flaw in a header. Its arguments are what was expected and found, and what to do."""


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
    stated = parse_number(block[148:156]) if block[148:156].strip(b" \0") else None
    # POSIX: the eight bytes of the checksum count as blanks, since it is computed before it is
    # stored.
    unsigned = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if stated is None or stated == unsigned:
        return stated is not None
    # Old Sun tars summed signed bytes, so each byte over 127 counts 256 less.
    return stated == unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


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
            return f"text (perhaps YAML; a spec is JSON) that begins with {text[:50]!r}"
    return f"bytes that begin with {head[:16]!r}"


def show(name: bytes) -> str:
    """Return a stored name as text for a message."""
    # Not surrogateescape, as for sample keys: a message has to be printable on any stream.
    return name.decode("utf-8", "backslashreplace")
