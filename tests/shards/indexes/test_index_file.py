"""Indexes as bytes: what is stored, when it is trusted, and that nothing else is."""

from __future__ import annotations

import struct
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sample_members, settle, write_tar

from wids.shards.indexes import index_file
from wids.shards.tars.index import ShardIndex, TarIdentity, index_tar

TIMED = TarIdentity(10240, 1_700_000_000_000_000_000, 1_700_000_000_000_000_001, (1 << 64) - 1)


def same(one: ShardIndex | None, other: ShardIndex) -> bool:
    """Whether two indexes have the same contents."""
    assert one is not None
    return all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in (
            (getattr(one, f.name), getattr(other, f.name))
            for f in fields(one)
            if not f.name.startswith("text")
        )
    ) and [one.key(i) for i in range(len(one))] == [other.key(i) for i in range(len(other))]


@pytest.fixture
def shard_path(tmp_path: Path) -> Path:
    members = [*sample_members(0, 7), ("README", b"?"), ("é.seg.png", b"x" * 700)]
    return settle(write_tar(tmp_path / "a.tar", [*members, ("s00003.new.txt", b"new")]))


@pytest.mark.parametrize("members", [[], [("README", b"")], sample_members(0, 300)])
def test_stored_index_is_read_back(members: list[tuple[str, bytes]], tmp_path: Path) -> None:
    """An index is read back as it was stored, for shards of no, few and many samples."""
    original = index_tar(write_tar(tmp_path / "a.tar", members).read_bytes())
    identity = TarIdentity((tmp_path / "a.tar").stat().st_size, 5)

    data = index_file.dump(original, identity)

    assert same(index_file.parse(data, 0, len(data), identity, "first"), original)
    shifted = b"x" * 8 + data + b"y"
    assert same(index_file.parse(shifted, 8, 8 + len(data), identity, "first"), original)


def test_file_has_the_specified_layout(tmp_path: Path) -> None:
    """The layout of specs/shard-index.md, read without the library."""
    members = [("a.txt", b"xyz"), ("b.cls", b"1"), ("b.txt", b"")]
    tar = write_tar(tmp_path / "a.tar", members).read_bytes()
    original = index_tar(tar)

    data = index_file.dump(original, TIMED)

    assert data[:8] == b"wids-idx"
    assert struct.unpack_from("<II", data, 8) == (2, zlib.crc32(data[16:]))
    assert struct.unpack_from("<QQqqQQQQII", data, 16) == (
        *(len(data), *TIMED),
        *(2, 3, 3, 0, 0),
    )
    places = [struct.unpack_from("<QQ", data, 88 + 16 * i) for i in range(10)]
    sections = [data[at : at + length] for at, length in places]
    assert all(at % 8 == 0 for at, _ in places)
    assert sections == [
        b"\0a\0b\0",
        b".txt\0.cls",
        bytes([1, 3, 5]),
        bytes([0, 1, 3]),
        bytes([1, 3, 5]),
        bytes([3, 1, 0]),
        bytes([0, 1, 0]),
        bytes([1, 1, 1]),
        struct.pack("<3I", *(zlib.crc32(tar[512 * head :][:512]) for head in (0, 2, 4))),
        b"",
    ]


def test_other_tar_rule_or_version_is_not_believed(shard_path: Path) -> None:
    """A stale, foreign, damaged or truncated index counts as missing (INDEX-3)."""
    data = index_file.dump(index_tar(shard_path.read_bytes()), TIMED)

    def parsed(data: bytes, identity: TarIdentity = TIMED, rule: Any = "first") -> Any:
        return index_file.parse(data, 0, len(data), identity, rule)

    assert parsed(data) is not None
    assert parsed(data, TIMED._replace(nbytes=TIMED.nbytes + 512)) is None
    assert parsed(data, TIMED._replace(mtime_ns=TIMED.mtime_ns + 1)) is None
    assert parsed(data, TIMED._replace(ctime_ns=TIMED.ctime_ns + 1)) is None
    assert parsed(data, TIMED._replace(inode=TIMED.inode - 1)) is None
    assert parsed(data, rule="last") is None
    assert parsed(data[:8] + struct.pack("<I", 1) + data[12:]) is None
    assert parsed(b"WIDS-idx" + data[8:]) is None
    for length in range(len(data)):
        assert parsed(data[:length]) is None
    for at in range(len(data)):
        assert parsed(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def forged(original: ShardIndex, **changes: Any) -> bytes:
    """Return an index with a correct CRC and wrong contents, as an attacker would make."""
    values = {f.name: getattr(original, f.name) for f in fields(original)}
    checked = {"head_crcs": np.zeros(len(original.blocks), np.uint32)}
    return index_file.dump(ShardIndex(**{**values, **checked, **changes}), TarIdentity(20480))


def test_forged_index_cannot_lead_outside(shard_path: Path) -> None:
    """A published index with a correct CRC still has to stay inside the tar (INDEX-3, SEC-8)."""
    original = index_tar(shard_path.read_bytes())
    num = len(original.blocks)
    attacks: dict[str, dict[str, Any]] = {
        "member beyond the end": {"blocks": np.full(num, 40, np.uint32)},
        "member far beyond the end": {"blocks": np.full(num, 2**63, np.uint64)},
        "member without a header": {"blocks": np.zeros(num, np.uint8)},
        "size beyond the end": {"sizes": np.full(num, 2**40, np.uint64)},
        "size that overflows": {"sizes": np.full(num, 2**64 - 512, np.uint64)},
        "field that does not exist": {"field_ids": np.full(num, 9, np.uint8)},
        "samples that go back": {"member_starts": original.member_starts[::-1].copy()},
        "samples past the end": {"member_starts": original.member_starts + np.uint8(1)},
        "keys that go back": {"key_starts": original.key_starts[::-1].copy()},
        "keys past the end": {"key_starts": original.key_starts + np.uint8(1)},
        "keys that begin elsewhere": {
            "key_starts": original.key_starts + (np.arange(len(original) + 1) == 3).astype(np.uint8)
        },
        "a key with a NUL": {"text": original.text.replace(b"s00004", b"s0\x00004")},
        "two keys that are one": {"text": original.text.replace(b"\0s00004", b"_s00004")},
        "too few sizes": {"sizes": original.sizes[:-1]},
        "too few checksums": {"head_crcs": np.zeros(1, np.uint32)},
        "too few payload checksums": {"payload_crcs": np.zeros(1, np.uint32)},
        "no checksums": {"head_crcs": np.zeros(0, np.uint32)},
        "samples that wrap around": {
            "member_starts": np.array(
                [0, 2**62, 2**63, 2**64 - 1, *original.member_starts[4:]], np.uint64
            )
        },
        "no header": {"head_blocks": np.zeros(num, np.uint8)},
        "header before the start": {"head_blocks": np.full(num, 200, np.uint8)},
    }
    good = forged(original)
    assert index_file.parse(good, 0, len(good), TarIdentity(20480), "first") is not None
    wide = {f.name: getattr(original, f.name) for f in fields(original)}
    wide = {name: c.astype(np.uint64) for name, c in wide.items() if isinstance(c, np.ndarray)}
    good = forged(original, **{**wide, "head_crcs": np.zeros(num, np.uint64)})
    assert index_file.parse(good, 0, len(good), TarIdentity(20480), "first") is not None
    for name, changes in attacks.items():
        data = forged(original, **changes)
        assert index_file.parse(data, 0, len(data), TarIdentity(20480), "first") is None, name
