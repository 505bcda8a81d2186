"""Read one member of a tar, however unusual, or raise an error: the strict lane of a scan.

Only this lane decides what is read, skipped and rejected, by the rules of specs/tar-shards.md. It
reads one member at a time, with the extended headers before it, or the end of the archive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from wids.errors import ShardFormatError
from wids.shards.tars.archive import BLOCK_NBYTES, Archive, padded
from wids.shards.tars.headers import (
    NOT_FROM_A_PACKER,
    SPARSE,
    Header,
    HeaderError,
    describe,
    has_checksum,
    parse_header,
    parse_long_name,
    parse_records,
    parse_size,
    show,
)

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
                logging.WARNING,
                f"{nbytes - position} bytes of zeros at the end, from {position}",
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
