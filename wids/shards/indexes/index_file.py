"""Write a `ShardIndex` to a file, use the file in place, and store indexes in the cache folder.

A stored index is a cache that is checked, never an authority: an index that is damaged, or made for
another version, tar or rule, is treated as missing. specs/shard-index.md describes the file byte by
byte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from wids.shards.tars.headers import (
    BLOCK_NBYTES,
    KEY_SPLITS,
    KeySplit,
    to_bytes,
    to_text,
)
from wids.shards.tars.index import NO_TIME, Column, ShardIndex, TarIdentity
from wids.storage.cache.cache_names import default_folder, local_index_path, save_or_warn
from wids.storage.files import FileBytes, fastest_crc32, read_or_map

VERSION: Final = 2
ALIGNMENT: Final = 8
"""Sections begin at multiples of this, so that mapped numbers are aligned."""

_MAGIC: Final = b"wids-idx"
_HEADER: Final = struct.Struct("<8sIIQQqqQQQQII")
_SECTIONS: Final = struct.Struct("<20Q")
_CRC_START: Final = 16  # the CRC covers all bytes from here on
_COLUMNS: Final = (
    *("key_starts", "member_starts", "blocks", "sizes", "field_ids"),
    *("head_blocks", "head_crcs", "payload_crcs"),
)
_DTYPES: Final[dict[float, np.dtype[Any]]] = {n: np.dtype(f"<u{n}") for n in (1, 2, 4, 8)}


class _Header(NamedTuple):
    magic: bytes
    version: int
    crc: int
    nbytes: int
    tar_nbytes: int
    tar_mtime_ns: int
    tar_ctime_ns: int
    tar_inode: int
    num_samples: int
    num_members: int
    num_files: int
    key_split: int
    unused: int = 0

    def identity(self) -> TarIdentity:
        """Return the identity of the indexed tar."""
        return TarIdentity(self.tar_nbytes, self.tar_mtime_ns, self.tar_ctime_ns, self.tar_inode)


def dump(shard_index: ShardIndex, identity: TarIdentity) -> bytes:
    """Serialize an index, bound to a tar."""
    sections = [
        bytes(shard_index.text[shard_index.text_start : shard_index.text_stop]),
        b"\0".join(map(to_bytes, shard_index.fields)),
        *(
            column.astype(column.dtype.newbyteorder("<")).tobytes()
            for column in (getattr(shard_index, name) for name in _COLUMNS)
        ),
    ]
    position = _HEADER.size + _SECTIONS.size
    places = []
    body = bytearray()
    for section in sections:
        places += [position + len(body), len(section)]
        body += section
        body += bytes(-(position + len(body)) % ALIGNMENT)
    counts = len(shard_index), len(shard_index.blocks), shard_index.num_files
    key_split = KEY_SPLITS.index(shard_index.key_split)
    header = _Header(_MAGIC, VERSION, 0, position + len(body), *identity, *counts, key_split)
    rest = _HEADER.pack(*header)[_CRC_START:] + _SECTIONS.pack(*places) + body
    return _HEADER.pack(*header._replace(crc=zlib.crc32(rest)))[:_CRC_START] + rest


def parse(
    data: FileBytes, start: int, stop: int, identity: TarIdentity, key_split: KeySplit
) -> ShardIndex | None:
    """Return the index in ``data[start:stop]``, without a copy of its columns.

    Returns:
        None if it is damaged, or made for another version, tar or rule. A returned index was fully
        checked, and can be trusted to stay inside the tar.
    """
    header = _checked_header(data, start, stop, identity, key_split)
    if header is None:
        return None
    places = _SECTIONS.unpack_from(data, start + _HEADER.size)
    counts = (header.num_samples + 1,) * 2 + (header.num_members,) * 6
    columns = _parse_columns(data, start, stop, places[4:], counts)
    text_at, text_nbytes, fields_at, fields_nbytes = places[:4]
    if columns is None or max(text_at + text_nbytes, fields_at + fields_nbytes) > header.nbytes:
        return None
    fields = bytes(data[start + fields_at : start + fields_at + fields_nbytes])
    shard_index = ShardIndex(
        text=data,
        text_start=start + text_at,
        text_stop=start + text_at + text_nbytes,
        **dict(zip(_COLUMNS, columns, strict=True)),
        fields=tuple(map(to_text, fields.split(b"\0"))) if fields else (),
        key_split=key_split,
        num_files=header.num_files,
    )
    # An index with a time was written by this user, so its CRC is enough; a published one was not.
    if identity.mtime_ns == NO_TIME and not _is_sound(shard_index, header):
        return None
    return shard_index


def has_key(
    data: FileBytes, start: int, stop: int, local_index: int, key: bytes, key_split: KeySplit
) -> bool:
    """Whether a sample of the index in ``data[start:stop]`` has a key.

    Only the bytes of this key are read, in microseconds. The result can be True for an index that
    is damaged elsewhere; it is False for another rule, or for damage in this key.
    """
    header = _header_of(data, start, stop)
    if header is None or KEY_SPLITS[header.key_split : header.key_split + 1] != (key_split,):
        return False
    text_at, _, _, _, at, nbytes = _SECTIONS.unpack_from(data, start + _HEADER.size)[:6]
    width = nbytes // (header.num_samples + 1)
    at += start + width * local_index
    if not 0 <= local_index < header.num_samples or at + width > stop:
        return False
    first = start + text_at + int.from_bytes(data[at : at + width], "little")
    # With the NULs around it, so that the key is not a part of a longer one.
    return first < stop and data[first - 1 : first + len(key) + 1] == b"\0" + key + b"\0"


def _checked_header(
    data: FileBytes, start: int, stop: int, identity: TarIdentity, key_split: KeySplit
) -> _Header | None:
    """Return the header of an undamaged index for this version, tar and rule, or None."""
    header = _header_of(data, start, stop)
    if header is None or header.nbytes != stop - start:
        return None
    if not identity.fits(header.identity()):
        return None
    if KEY_SPLITS[header.key_split : header.key_split + 1] != (key_split,):
        return None
    with memoryview(data) as view, view[start + _CRC_START : stop] as rest:
        return header if fastest_crc32()(rest) == header.crc else None


def _header_of(data: FileBytes, start: int, stop: int) -> _Header | None:
    """Return the header of an index of this version, or None."""
    if stop > len(data) or stop - start < _HEADER.size + _SECTIONS.size:
        return None
    header = _Header._make(_HEADER.unpack_from(data, start))
    return header if (header.magic, header.version) == (_MAGIC, VERSION) else None


def _parse_columns(
    data: FileBytes, start: int, stop: int, places: tuple[int, ...], counts: tuple[int, ...]
) -> list[Column] | None:
    """Return columns as views of the data; None if one is misaligned, malformed or outside."""
    columns = []
    for at, length, count in zip(places[::2], places[1::2], counts, strict=True):
        dtype = _DTYPES.get(length / count) if length and count else _DTYPES[1]
        if dtype is None or at + length > stop - start or at % ALIGNMENT:
            return None
        columns.append(np.frombuffer(data, dtype, length // dtype.itemsize, start + at))
    return columns


def _is_sound(shard_index: ShardIndex, header: _Header) -> bool:
    """Whether an index from elsewhere can be used without further checks."""
    return (
        _has_right_lengths(shard_index, header)
        and _has_ascending_starts(shard_index)
        and _has_nuls_between_keys(shard_index)
        and (not header.num_members or _is_inside_tar(shard_index, header.tar_nbytes))
    )


def _has_right_lengths(shard_index: ShardIndex, header: _Header) -> bool:
    starts = (shard_index.key_starts, shard_index.member_starts)
    members = (
        *(shard_index.blocks, shard_index.sizes, shard_index.field_ids),
        *(shard_index.head_blocks, shard_index.head_crcs),
    )
    return (
        {len(column) for column in starts} == {header.num_samples + 1}
        and {len(column) for column in members} == {header.num_members}
        and len(shard_index.payload_crcs) in (0, header.num_members)
    )


def _has_ascending_starts(shard_index: ShardIndex) -> bool:
    """Whether the keys cover the whole text, and the samples all members, without gaps."""
    keys, members = shard_index.key_starts, shard_index.member_starts
    text_nbytes = shard_index.text_stop - shard_index.text_start
    return bool(
        (int(keys[0]), int(keys[-1])) == (1, text_nbytes)
        and (int(members[0]), int(members[-1])) == (0, len(shard_index.blocks))
        and (keys[1:] > keys[:-1]).all()
        and (members[1:] > members[:-1]).all()
    )


def _has_nuls_between_keys(shard_index: ShardIndex) -> bool:
    """Whether a NUL precedes each key and ends the last one, and no key contains one."""
    nbytes = shard_index.text_stop - shard_index.text_start
    text = np.frombuffer(shard_index.text, np.uint8, nbytes, shard_index.text_start)
    ends = shard_index.key_starts.astype(np.int64) - 1
    return bool(nbytes - np.count_nonzero(text) == len(ends) and not text.take(ends).any())


def _is_inside_tar(shard_index: ShardIndex, tar_nbytes: int) -> bool:
    """Whether all members and their headers are inside the tar, and all fields exist."""
    blocks, sizes = shard_index.blocks, shard_index.sizes
    last, largest = int(blocks.max()) * BLOCK_NBYTES, int(sizes.max())
    if max(last, largest) > tar_nbytes:
        return False
    if last + largest > tar_nbytes:  # otherwise each member ends inside, as in most tars
        # All values are at most the length of the tar, so the sum cannot overflow.
        ends = blocks.astype(np.int64) * BLOCK_NBYTES + sizes.astype(np.int64)
        if int(ends.max()) > tar_nbytes:
            return False
    return bool(
        int(shard_index.field_ids.max()) < len(shard_index.fields)
        and int(shard_index.head_blocks.min()) > 0
        and (shard_index.head_blocks <= blocks).all()
    )


def load(path: str, identity: TarIdentity, key_split: KeySplit) -> ShardIndex | None:
    """Return the index that this user stored at a path; None if there is none for this tar."""
    data = read_or_map(path, is_own=True)
    return None if data is None else parse(data, 0, len(data), identity, key_split)


def load_recorded(path: str) -> tuple[ShardIndex, TarIdentity] | None:
    """Return the index with checksums that this user stored at a path, by any key rule.

    Where that tar is not available locally, reads have to compare the checksums.

    Returns:
        The index, and the identity of the indexed tar; None if there is no valid index.
    """
    data = read_or_map(path, is_own=True)
    header = None if data is None else _header_of(data, 0, len(data))
    if data is None or header is None or header.key_split >= len(KEY_SPLITS):
        return None
    identity = header.identity()
    shard_index = parse(data, 0, len(data), identity, KEY_SPLITS[header.key_split])
    if shard_index is None or len(shard_index.head_crcs) != len(shard_index.blocks):
        return None
    return shard_index, identity


def index_paths(folder: str, path: str, key_split: KeySplit) -> Iterator[str]:
    """Yield the possible paths of a file's index: in the cache folder, then in the default one."""
    yield local_index_path(folder, path, key_split)
    own = default_folder()  # slower than all else here, and rarely needed
    if own != folder:
        yield local_index_path(own, path, key_split)


def load_index(
    paths: Iterable[str], identity: TarIdentity, key_split: KeySplit
) -> ShardIndex | None:
    """Return the first index at these paths that belongs to this tar, or None."""
    for path in paths:
        known = load(path, identity, key_split)
        if known is not None:
            return known
    return None


def stored_count(paths: Iterable[str], identity: TarIdentity, key_split: KeySplit) -> int | None:
    """Return the number of samples in the index that `load_index` returns, without its columns."""
    for path in paths:
        data = read_or_map(path, is_own=True)
        header = data and _checked_header(data, 0, len(data), identity, key_split)
        if header:
            return header.num_samples
    return None


def store_index(
    folder: str, paths: Iterable[str], shard_index: ShardIndex, identity: TarIdentity
) -> ShardIndex:
    """Store an index at the first of these paths that can be written.

    Returns:
        The stored index, whose memory all processes share; the argument if storing fails.
    """
    path = save_or_warn(folder, paths, dump(shard_index, identity))
    known = None if path is None else load(path, identity, shard_index.key_split)
    return shard_index if known is None else known
