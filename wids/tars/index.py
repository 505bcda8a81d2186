"""`TarIndex` + the key rule → `ShardIndex`: the samples of one shard, as columns; kept in files.

Members of one key form one sample wherever they stand in the shard; samples come in the order in
which their keys first appear. Everything is an array or a run of bytes, in memory as in a file, so
that a stored index is mapped and used as it lies, by all processes together, and an open shard
costs no Python object for each of its samples. A *pack* holds the indexes of all shards of a
dataset. The files are described byte by byte in specs/shard-index.md; whatever is wrong with one,
it is as if it were not there. This room never sees the members' bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import IO, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wids.errors import ShardFormatError
from wids.tars.names import KEY_SPLITS, KeySplit, split_names, to_bytes, to_text
from wids.tars.tar import BLOCK_NBYTES, IntArray, TarBytes, TarIndex, scan

Column = npt.NDArray[Any]  # of unsigned integers, as narrow as their values allow

VERSION: Final = 1
_MAGIC: Final = b"wids-idx"
_PACK_MAGIC: Final = b"wids-pak"
_HEADER = struct.Struct("<8sIIQQqQQQQQII")
_SECTIONS = struct.Struct("<18Q")
_PACK_HEADER = struct.Struct("<8sIIQQQQQQQQII")
PACK_HEADER_NBYTES: Final = _PACK_HEADER.size
_SMALL_NBYTES: Final = 64 << 10
"""Indexes up to this size are read, larger ones mapped: to map costs as much time as to read this,
and a file descriptor; to read costs memory that processes do not share."""
_ALIGNMENT: Final = 8
_DTYPES: Final[dict[float, np.dtype[Any]]] = {n: np.dtype(f"<u{n}") for n in (1, 2, 4, 8)}
_NO_TIME: Final = -1


class TarIdentity(NamedTuple):
    """What tells one tar from another without reading it.

    Attributes:
        nbytes: Length of the file.
        mtime_ns: When it was last changed; -1 for a published index, which is bound to the length
            and to the checksums of the headers instead.
    """

    nbytes: int
    mtime_ns: int = _NO_TIME


@dataclass(frozen=True, eq=False)
class ShardIndex:
    r"""The samples of one shard.

    Sample ``i`` has the members ``member_starts[i]`` to ``member_starts[i + 1]``, in archive order.

    Attributes:
        text: Bytes with the samples' keys in them, each between NULs: ``b"\0k0\0k1\0"``.
        text_start, text_stop: Where in ``text`` that run of keys is.
        key_starts: Where keys begin in the run, and its end; shape ``(num_samples + 1,)``.
        member_starts: Each sample's first member, and the end; shape ``(num_samples + 1,)``.
        blocks: Where members' bytes begin, in blocks of 512 bytes; shape ``(num_members,)``.
        sizes: Their lengths in bytes, shape ``(num_members,)``.
        field_ids: Their fields, as positions in ``fields``; shape ``(num_members,)``.
        head_blocks: Length of the headers before a member's bytes that name it, in blocks; shape
            ``(num_members,)``.
        crcs: CRC-32 of those headers, to be held against the tar at each read; empty where the tar
            is known to be the one that was indexed.
        fields: Every field that occurs, with its leading dot.
        key_split: The rule by which names were split.
        num_files: Files in the tar: members, orphans and duplicates.
        num_orphans: Files whose name gives no key or no field.
        num_duplicates: Files that a later one of the same name replaces.
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
    crcs: Column
    fields: tuple[str, ...]
    key_split: KeySplit
    num_files: int
    num_orphans: int
    num_duplicates: int

    def __len__(self) -> int:
        return len(self.key_starts) - 1

    def key(self, local_index: int) -> str:
        """Give the key of one sample."""
        start, stop = self.key_starts[local_index], self.key_starts[local_index + 1]
        return to_text(self.text[self.text_start + int(start) : self.text_start + int(stop) - 1])

    def is_intact(self) -> bool:
        """Whether the file that it is mapped from still has its length."""
        return not isinstance(self.text, mmap.mmap) or self.text.size() == len(self.text)

    def find(self, key: str) -> int:
        """Give the local index of a key, or -1, by one search through the bytes of all keys."""
        wanted = to_bytes(key)
        at = self.text.find(b"\0" + wanted + b"\0", self.text_start, self.text_stop)
        if at < 0 or b"\0" in wanted:
            return -1
        return int(np.searchsorted(self.key_starts, at + 1 - self.text_start))


def build(tar: TarIndex, key_split: KeySplit = "first", path: str = "tar") -> ShardIndex:
    """Group the members of a tar into samples.

    Args:
        tar: The members.
        key_split: Where a name is split: at the ``"first"`` or the ``"last"`` dot of its last part.
        path: How messages name the tar.
    """
    if key_split not in KEY_SPLITS:
        raise ValueError(f'key_split: expected "first" or "last", found {key_split!r}')
    joined, starts, dots, ends = split_names(tar.names, key_split)
    if len(ends) != len(tar.names):
        raise ShardFormatError(f"{path}: a member name has a NUL in it; pack the shard again")
    belongs = np.flatnonzero(dots)
    dot_list = dots[belongs].tolist()
    keys = [joined[a:b] for a, b in zip(starts[belongs].tolist(), dot_list, strict=True)]
    fields = [joined[a:b] for a, b in zip(dot_list, ends[belongs].tolist(), strict=True)]
    sample_of, unique_keys = _numbered(keys)
    field_of, unique_fields = _numbered(fields)

    order = _in_samples(sample_of, field_of, len(unique_fields))
    text = b"\0" + b"\0".join(unique_keys) + b"\0" if unique_keys else b"\0"
    return ShardIndex(
        text=text,
        text_start=0,
        text_stop=len(text),
        key_starts=_narrow(np.flatnonzero(np.frombuffer(text, np.uint8) == 0) + 1),
        member_starts=_narrow(np.searchsorted(sample_of[order], np.arange(len(unique_keys) + 1))),
        blocks=_narrow(tar.offsets[belongs][order] // BLOCK_NBYTES),
        sizes=_narrow(tar.sizes[belongs][order]),
        field_ids=_narrow(field_of[order]),
        head_blocks=_narrow((tar.offsets - tar.heads)[belongs][order] // BLOCK_NBYTES),
        crcs=np.empty(0, np.uint32),
        fields=tuple(map(to_text, unique_fields)),
        key_split=key_split,
        num_files=len(tar.names),
        num_orphans=len(tar.names) - len(belongs),
        num_duplicates=len(belongs) - len(order),
    )


def _numbered(items: list[bytes]) -> tuple[IntArray, list[bytes]]:
    """Number the distinct items in order of first appearance; give all numbers and the items."""
    table = dict(zip(dict.fromkeys(items), itertools.count()))
    return np.fromiter(map(table.__getitem__, items), np.int64, len(items)), list(table)


def _in_samples(sample_of: IntArray, field_of: IntArray, num_fields: int) -> IntArray:
    """Order members by sample, then as in the archive; of equal names only the last stays."""
    pairs = sample_of * num_fields + field_of
    kept = np.arange(len(pairs))
    if (np.diff(pairs) > 0).all():  # as packers write them: nothing to sort, nothing twice
        return kept
    distinct, last_seen = np.unique(pairs[::-1], return_index=True)
    if len(distinct) < len(pairs):
        kept = np.sort(len(pairs) - 1 - last_seen)
    return kept[np.argsort(sample_of[kept], kind="stable")]


def _narrow(values: IntArray) -> Column:
    """Give non-negative values in the narrowest unsigned type that holds them."""
    largest = int(values.max(initial=0))
    return values.astype(np.min_scalar_type(largest) if largest else np.uint8)


# One index as bytes.


def for_ranges(data: TarBytes, key_split: KeySplit, path: str = "tar") -> ShardIndex:
    """Scan a tar, and give its index with checksums."""
    return with_checksums(build(scan(data, path), key_split, path), data)


def with_checksums(index: ShardIndex, tar: TarBytes) -> ShardIndex:
    """Give the index with the CRCs that let it be published: each read can then be checked."""
    stops = index.blocks.astype(np.int64) * BLOCK_NBYTES
    starts = stops - index.head_blocks.astype(np.int64) * BLOCK_NBYTES
    places = zip(starts.tolist(), stops.tolist(), strict=True)
    crcs = [zlib.crc32(tar[start:stop]) for start, stop in places]
    return replace(index, crcs=np.array(crcs, np.uint32))


def dump(index: ShardIndex, identity: TarIdentity) -> bytes:
    """Give an index as bytes, bound to a tar."""
    sections = [
        bytes(index.text[index.text_start : index.text_stop]),
        b"\0".join(map(to_bytes, index.fields)),
        *(
            column.astype(column.dtype.newbyteorder("<")).tobytes()
            for column in (
                *(index.key_starts, index.member_starts, index.blocks, index.sizes),
                *(index.field_ids, index.head_blocks, index.crcs),
            )
        ),
    ]
    position = _HEADER.size + _SECTIONS.size
    places = []
    body = bytearray()
    for section in sections:
        places += [position + len(body), len(section)]
        body += section
        body += bytes(-(position + len(body)) % _ALIGNMENT)
    rest = _HEADER.pack(
        *(_MAGIC, VERSION, 0, position + len(body), *identity, len(index), len(index.blocks)),
        *(index.num_files, index.num_orphans, index.num_duplicates),
        *(KEY_SPLITS.index(index.key_split), 0),
    )[16:]
    rest += _SECTIONS.pack(*places) + body
    return struct.pack("<8sII", _MAGIC, VERSION, zlib.crc32(rest)) + rest


def parse(
    data: bytes | mmap.mmap, start: int, stop: int, identity: TarIdentity, key_split: KeySplit
) -> ShardIndex | None:
    """Give the index that lies in ``data[start:stop]``, without copying its columns.

    Returns:
        None where it is damaged, of another version, of another tar, or of the other rule. What is
        given back was checked as a whole, once, and can be trusted to stay inside the tar.
    """
    if not _is_index(data, start, stop, identity, key_split):
        return None
    num_samples, num_members, num_files, num_orphans, num_duplicates, _, _ = _HEADER.unpack_from(
        data, start
    )[6:]
    nbytes = stop - start
    places = _SECTIONS.unpack_from(data, start + _HEADER.size)
    counts = (num_samples + 1, num_samples + 1, *[num_members] * 5)
    columns = []
    for number, count in enumerate(counts, start=2):
        at, length = places[2 * number : 2 * number + 2]
        dtype = _DTYPES.get(length / count) if length and count else _DTYPES[1]
        if dtype is None or at + length > nbytes or at % _ALIGNMENT:
            return None
        columns.append(np.frombuffer(data, dtype, length // dtype.itemsize, start + at))
    text_at, text_nbytes, fields_at, fields_nbytes = places[:4]
    if max(text_at + text_nbytes, fields_at + fields_nbytes) > nbytes:
        return None
    fields = bytes(data[start + fields_at : start + fields_at + fields_nbytes])
    key_starts, member_starts, blocks, sizes, field_ids, head_blocks, crcs = columns
    index = ShardIndex(
        text=data,
        text_start=start + text_at,
        text_stop=start + text_at + text_nbytes,
        key_starts=key_starts,
        member_starts=member_starts,
        blocks=blocks,
        sizes=sizes,
        field_ids=field_ids,
        head_blocks=head_blocks,
        crcs=crcs,
        fields=tuple(map(to_text, fields.split(b"\0"))) if fields else (),
        key_split=key_split,
        num_files=num_files,
        num_orphans=num_orphans,
        num_duplicates=num_duplicates,
    )
    # One that was made on this machine, undamaged, is as it was made. A published one is not ours.
    is_ours = identity.mtime_ns != _NO_TIME
    is_sound = is_ours or _is_sound(index, identity.nbytes, num_samples, num_members)
    return index if is_sound else None


def _is_index(
    data: bytes | mmap.mmap, start: int, stop: int, identity: TarIdentity, key_split: KeySplit
) -> bool:
    """Tell whether an undamaged index of this version, this tar and this rule lies there."""
    if stop > len(data) or stop - start < _HEADER.size + _SECTIONS.size:
        return False
    magic, version, crc, nbytes, *found = _HEADER.unpack_from(data, start)
    if (magic, version, nbytes) != (_MAGIC, VERSION, stop - start):
        return False
    if TarIdentity(*found[:2]) != identity or KEY_SPLITS[found[7] : found[7] + 1] != (key_split,):
        return False
    with memoryview(data) as view, view[start + 16 : stop] as rest:
        return bool(zlib.crc32(rest) == crc)


def _is_sound(  # noqa: PLR0911 - one question after the other
    index: ShardIndex, tar_nbytes: int, num_samples: int, num_members: int
) -> bool:
    """Tell whether an index that came from elsewhere can be used without looking again."""
    if len(index.key_starts) != num_samples + 1 or len(index.member_starts) != num_samples + 1:
        return False
    members = (index.blocks, index.sizes, index.field_ids, index.head_blocks, index.crcs)
    if {len(column) for column in members} != {num_members}:
        return False
    keys, starts = index.key_starts, index.member_starts
    if (int(keys[0]), int(keys[-1])) != (1, index.text_stop - index.text_start):
        return False
    if (int(starts[0]), int(starts[-1])) != (0, num_members):
        return False
    if not ((keys[1:] > keys[:-1]).all() and (starts[1:] > starts[:-1]).all()):
        return False
    if not num_members:
        return True
    largest = (int(index.blocks.max()) * BLOCK_NBYTES, int(index.sizes.max()))
    if max(largest) > tar_nbytes or int(index.field_ids.max()) >= len(index.fields):
        return False
    # Now that all are small, nothing can overflow.
    ends = index.blocks.astype(np.int64) * BLOCK_NBYTES + index.sizes.astype(np.int64)
    return bool(
        int(ends.max()) <= tar_nbytes
        and int(index.head_blocks.min()) > 0
        and (index.head_blocks <= index.blocks).all()
    )


def load(path: str, identity: TarIdentity, key_split: KeySplit) -> ShardIndex | None:
    """Give the index that this user stored under a path; None where there is none for this tar."""
    data = _contents(path, _SMALL_NBYTES, own=True)
    found = None if data is None else parse(data, 0, len(data), identity, key_split)
    if found is None or not len(found.crcs):
        return found
    # The tar is known to be the one that was indexed, so reads need not look at its headers.
    return replace(found, crcs=np.empty(0, np.uint32))


def load_for_ranges(path: str, key_split: KeySplit) -> tuple[ShardIndex, TarIdentity] | None:
    """Give the index that this user stored under a path, and which tar it is of, with checksums.

    To be used where that tar is not at hand: what is read has to be held against the checksums.
    """
    data = _contents(path, _SMALL_NBYTES, own=True)
    identity = None if data is None else _identity(data)
    if data is None or identity is None:
        return None
    found = parse(data, 0, len(data), identity, key_split)
    if found is None or len(found.crcs) != len(found.blocks):
        return None
    return found, identity


def stored_identity(path: str) -> TarIdentity | None:
    """Give which tar an index under a path says that it is of; None where there is no index."""
    data = _contents(path, _SMALL_NBYTES, own=True)
    return None if data is None else _identity(data)


def _identity(data: bytes | mmap.mmap) -> TarIdentity | None:
    if len(data) < _HEADER.size:
        return None
    magic, _, _, _, nbytes, mtime_ns, *_ = _HEADER.unpack_from(data, 0)
    return TarIdentity(nbytes, mtime_ns) if magic == _MAGIC else None


def _contents(
    path: str, small_nbytes: int, *, own: bool = False, handle: int | None = None
) -> bytes | mmap.mmap | None:
    """Read a small file, or map a larger one; None where that cannot be."""
    try:
        if handle is None:
            handle = os.open(path, os.O_RDONLY)  # a third of the time that open() takes
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if own and hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            return None  # somebody else's word, in a cache folder that users share
        if status.st_size <= small_nbytes:
            return os.read(handle, small_nbytes)
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # a folder, or empty
        return None
    finally:
        os.close(handle)


# All indexes of a dataset.


class PackHeader(NamedTuple):
    """How a pack begins; see specs/shard-index.md."""

    magic: bytes
    version: int
    crc: int
    nbytes: int
    num_shards: int
    total: int
    directory: int
    names: int
    names_nbytes: int
    hashes: int
    positions: int
    keys_crc: int
    width: int


def pack_header(data: bytes) -> PackHeader | None:
    """Give the header that some bytes begin with, or None where it is not that of a pack."""
    if len(data) < PACK_HEADER_NBYTES:
        return None
    header = PackHeader(*_PACK_HEADER.unpack_from(data, 0))
    is_pack = header.magic == _PACK_MAGIC and header.version == VERSION and header.width in (4, 8)
    return header if is_pack else None


def pack_directory(data: bytes, header: PackHeader) -> tuple[IntArray, list[bytes]]:
    """Give the columns of a directory, shape ``(4, num_shards)``, and the names behind them."""
    columns = np.frombuffer(data, "<u8", 4 * header.num_shards).reshape(4, -1)
    return columns, data[header.names - header.directory :].split(b"\0")


class Pack:
    """The indexes of all shards of a dataset, in one file, which is mapped unless it is small.

    Safe to share between threads and forked processes; unpickled, it is mapped again.

    Attributes:
        path: The file.
        num_samples: Samples in each shard, shape ``(num_shards,)``.
    """

    def __init__(self, path: str, data: bytes | mmap.mmap) -> None:
        self.path = path
        self._data = data
        header = PackHeader(*_PACK_HEADER.unpack_from(data, 0))
        # Copied, since what stays in the file is only touched after a look at the file's length.
        directory = bytes(data[header.directory : header.names + header.names_nbytes])
        (self._starts, self._lengths, self._tar_nbytes, self.num_samples), self._names = (
            pack_directory(directory, header)
        )
        self._hashes = np.frombuffer(data, "<u8", header.total, header.hashes)
        self._positions = np.frombuffer(data, f"<u{header.width}", header.total, header.positions)
        self._keys_crc = header.keys_crc

    def __len__(self) -> int:
        return len(self.num_samples)

    def __reduce__(self) -> Any:
        return load_pack, (self.path,)

    def is_named(self, number: int, name: str) -> bool:
        """Tell whether a shard of this base name was packed under this number."""
        return number < len(self) and self._names[number] == to_bytes(name)

    def tar_nbytes(self, number: int) -> int:
        """Give the length of the tar that was packed under a number."""
        return int(self._tar_nbytes[number])

    def index(self, number: int, tar_nbytes: int, key_split: KeySplit) -> ShardIndex | None:
        """Give the index of a shard; None where the tar, or the rule, is another one."""
        if not self._is_intact():
            return None
        start = int(self._starts[number])
        stop = start + int(self._lengths[number])
        return parse(self._data, start, stop, TarIdentity(tar_nbytes), key_split)

    def shards_with(self, key: str) -> set[int] | None:
        """Give the numbers of the shards that may have a key; None where the pack cannot tell."""
        if not (self._is_intact() and self._has_sound_keys):
            return None
        wanted = np.uint64(key_hash(to_bytes(key)))
        first, last = (int(np.searchsorted(self._hashes, wanted, side)) for side in _SIDES)
        ends = np.cumsum(self.num_samples)
        return set(np.searchsorted(ends, self._positions[first:last], side="right").tolist())

    def _is_intact(self) -> bool:
        """Tell whether the file still has its length: to touch what it lost would be the end."""
        return not self.is_mapped or self._data.size() == len(self._data)  # type: ignore[union-attr]

    @property
    def is_mapped(self) -> bool:
        """Whether it holds a descriptor: a small one is read."""
        return isinstance(self._data, mmap.mmap)

    @cached_property
    def _has_sound_keys(self) -> bool:
        """Whether the tables of keys are undamaged; read in full, once, when a key is wanted."""
        crc = zlib.crc32(self._positions.data, zlib.crc32(self._hashes.data))
        return bool(crc == self._keys_crc)


_SIDES: Final[tuple[Literal["left", "right"], ...]] = ("left", "right")


def load_pack(path: str, handle: int | None = None) -> Pack | None:
    """Map a pack; None where there is none, or it is damaged or of another version.

    Args:
        path: Where it is.
        handle: A descriptor of it, where it is open already; closed here.
    """
    data = _contents(path, _SMALL_NBYTES, handle=handle)
    header = None if data is None else pack_header(data[:PACK_HEADER_NBYTES])
    if data is None or header is None or header.nbytes != len(data):
        return None
    with memoryview(data) as view:
        checked = zlib.crc32(view[16:PACK_HEADER_NBYTES])
        checked = zlib.crc32(view[header.directory : header.names + header.names_nbytes], checked)
    sections = (
        (header.directory, 32 * header.num_shards),
        (header.names, header.names_nbytes),
        (header.hashes, 8 * header.total),
        (header.positions, header.width * header.total),
    )
    is_outside = any(start + nbytes > len(data) for start, nbytes in sections)
    if checked != header.crc or is_outside or header.names < header.directory:
        return None
    pack = Pack(path, data)
    is_sound = (
        len(pack._names) >= header.num_shards  # noqa: SLF001
        and int(pack.num_samples.sum()) == header.total
    )
    return pack if is_sound else None


def write_pack(file: IO[bytes], shards: Iterable[tuple[str, int, ShardIndex]]) -> None:
    """Write a pack into an empty file that can seek.

    Args:
        file: The file.
        shards: Base name, length of the tar, and index with checksums, for each shard in order.
    """
    file.write(bytes(_PACK_HEADER.size))
    entries: list[tuple[int, int, int, int]] = []
    names: list[bytes] = []
    hashes: list[npt.NDArray[np.uint64]] = []
    for name, tar_nbytes, index in shards:
        blob = dump(index, TarIdentity(tar_nbytes))
        entries.append((_align(file), len(blob), tar_nbytes, len(index)))
        names.append(to_bytes(name))
        text = bytes(index.text[index.text_start : index.text_stop])
        keys = text.split(b"\0")[1:-1] if len(index) else []
        hashes.append(np.fromiter(map(key_hash, keys), np.uint64, len(keys)))
        file.write(blob)
    directory = _align(file)
    columns = np.array(entries, "<u8").reshape(-1, 4).T.tobytes()
    joined = b"\0".join(names)
    file.write(columns + joined)
    all_hashes = np.concatenate([np.empty(0, np.uint64), *hashes])
    order = np.argsort(all_hashes, kind="stable")
    width = 4 if len(order) < 1 << 32 else 8
    tables = [all_hashes[order].astype("<u8").tobytes(), order.astype(f"<u{width}").tobytes()]
    places = []
    for table in tables:
        places.append(_align(file))
        file.write(table)
    header = _PACK_HEADER.pack(
        *(_PACK_MAGIC, VERSION, 0, file.tell(), len(names), len(order), directory),
        *(directory + len(columns), len(joined), *places),
        *(zlib.crc32(tables[1], zlib.crc32(tables[0])), width),
    )
    crc = zlib.crc32(columns + joined, zlib.crc32(header[16:]))
    file.seek(0)
    file.write(header[:12] + struct.pack("<I", crc) + header[16:])


def _align(file: IO[bytes]) -> int:
    """Fill up to the next aligned position and give it."""
    file.write(bytes(-file.tell() % _ALIGNMENT))
    return file.tell()


def key_hash(key: bytes) -> int:
    """Give the 64 bits by which a pack finds a key."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
