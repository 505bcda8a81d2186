"""``tar.scan`` against ``tarfile`` and GNU tar, and what it refuses."""

from __future__ import annotations

import io
import logging
import os
import shutil
import subprocess
import tarfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from conftest import miss, need, raises, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.errors import ShardFormatError
from wids.tars.scan import scan

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}
AWKWARD = [
    ("plain.txt", b"one"),
    ("empty.txt", b""),
    ("exact.bin", b"x" * 512),
    ("./dotted/a.txt", b"two"),
    ("/absolute/a.txt", b"three"),
    ("d" * 60 + "/" + "e" * 60 + "/prefix.txt", b"four"),
    ("猫/犬.txt", b"five"),
    ("with blank.tar.gz", b"six"),
]
LONG = [("k" * 180 + ".jpg", b"seven"), ("f" * 140 + "/" + "鳥" * 30 + ".png", b"eight" * 300)]


def build(members: list[tuple[str, bytes]], tar_format: int, **attributes: Any) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def members_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """Give the members as wids finds them."""
    index = scan(data)
    return [
        (name, data[offset : offset + size])
        for name, offset, size in zip(index.names, index.offsets, index.sizes, strict=True)
    ]


def oracle(data: bytes) -> list[tuple[bytes, bytes]]:
    """Give the members as ``tarfile`` finds them."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            if info.isfile() or info.islnk():
                content = archive.extractfile(info)
                assert content is not None
                found.append((info.name.encode("utf-8", "surrogateescape"), content.read()))
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_members_equal_tarfile(name: str) -> None:
    """In all three formats, names and bytes are those that tarfile finds (TAR-1, TAR-2)."""
    members = AWKWARD + (LONG if name != "ustar" else [])

    data = build(members, FORMATS[name])

    assert members_of(data) == oracle(data) == [(n.encode(), d) for n, d in members]


def test_pax_header_for_each_member_is_read() -> None:
    """Fractional times give each member a PAX header, as webdataset's writer does (TAR-2)."""
    members = [(f"{i:05d}.txt", str(i).encode()) for i in range(5000)]

    data = build(members, tarfile.PAX_FORMAT, mtime=1.5)

    assert members_of(data) == [(n.encode(), d) for n, d in members]


def restamp(data: bytearray, start: int) -> None:
    """Write the right checksum into a header that was changed."""
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 155] = b"%06o\0" % sum(data[start : start + 512])


def test_v7_archive_is_read() -> None:
    """Headers without magic, with NUL as the type of files and a slash for folders.

    TAR-1, TAR-7.
    """
    data = bytearray(build([("a.txt", b"one"), ("d.x/", b""), ("b.txt", b"two")], 0))
    for start in (0, 1024, 1536):
        data[start + 156] = 0
        data[start + 257 : start + 265] = bytes(8)
        restamp(data, start)

    assert members_of(bytes(data)) == [(b"a.txt", b"one"), (b"b.txt", b"two")]


def test_folders_links_and_devices() -> None:
    """Hard links have the bytes of their target; folders, symlinks and devices are no members.

    TAR-4, TAR-7.
    """
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, kind, link in [
            ("d.x", tarfile.DIRTYPE, ""),
            ("a.txt", tarfile.REGTYPE, ""),
            ("hard.txt", tarfile.LNKTYPE, "a.txt"),
            ("soft.txt", tarfile.SYMTYPE, "a.txt"),
            ("null.dev", tarfile.CHRTYPE, ""),
            ("pipe.x", tarfile.FIFOTYPE, ""),
            ("b.txt", tarfile.CONTTYPE, ""),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = 3 if kind in (tarfile.REGTYPE, tarfile.CONTTYPE) else 0
            archive.addfile(info, io.BytesIO(b"abc"))

    assert members_of(stream.getvalue()) == [
        (b"a.txt", b"abc"),
        (b"hard.txt", b"abc"),
        (b"b.txt", b"abc"),
    ]


@pytest.mark.parametrize("name", ["ustar", "gnu", "posix", "oldgnu"])
def test_what_gnu_tar_writes_is_read(name: str, tmp_path: Path) -> None:
    """Archives of the ``tar`` command, in its formats, long and non-ASCII names included.

    TAR-1.
    """
    need(shutil.which("tar"), "no tar command on this machine")
    members = AWKWARD[:3] + AWKWARD[6:] + (LONG if name != "ustar" else [])
    for path, data in members:
        target = tmp_path / "in" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    command = ["tar", f"--format={name}", "-cf", "out.tar", "-C", "in", *[n for n, _ in members]]
    subprocess.run(command, cwd=tmp_path, check=True)

    found = members_of((tmp_path / "out.tar").read_bytes())

    assert found == [(n.encode(), d) for n, d in members]


def test_size_in_base_256_is_read() -> None:
    """Binary sizes, as GNU tar writes them for members of 8 GiB and more (TAR-3)."""
    data = bytearray(build([("a.txt", b"hello")], tarfile.GNU_FORMAT))
    data[124:136] = b"\x80" + (5).to_bytes(11, "big")
    restamp(data, 0)

    assert members_of(bytes(data)) == [(b"a.txt", b"hello")]


def test_concatenated_archives_are_one(caplog: pytest.LogCaptureFixture) -> None:
    """What follows an end marker and is an archive is read on, with a line in the log (TAR-6)."""
    data = build([("a.txt", b"1")], 0) + build([("b.txt", b"2")], 0)

    with caplog.at_level(logging.INFO, "wids"):
        assert members_of(data) == [(b"a.txt", b"1"), (b"b.txt", b"2")]

    assert "another archive at byte 10240" in caplog.text


def test_unknown_bytes_after_the_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What follows an end marker and is nothing known is ignored, with a warning (TAR-8)."""
    data = build([("a.txt", b"1")], 0) + b"garbage" * 100

    index = scan(data, "x.tar")

    assert index.names == [b"a.txt"]
    assert "x.tar: unknown bytes from byte 10240 on" in caplog.text
    assert "unknown bytes from byte 10240" in index.remarks[0]


def test_missing_end_marker_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An archive without its zeros at the end is read, with a warning (TAR-8)."""
    data = build([("a.txt", b"1")], 0)[:1024]

    assert members_of(data) == [(b"a.txt", b"1")]

    assert "no end marker" in caplog.text


NOT_TARS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected a tar, found an empty file"),
    "gzip": (b"\x1f\x8b\x08" + bytes(1000), "gzip data (a .tar.gz; unpack it with gunzip)"),
    "zip": (b"PK\x03\x04" + bytes(1000), "a zip archive"),
    "html": (b"<html><h1>404</h1>" + b" " * 600, "an error page that was saved as a shard"),
    "json": (b'{"error": "no"}' + b" " * 600, "JSON"),
    "text": (b"hello world " * 100, "bytes that begin with b'hello world hell'"),
    "short": (b"hello", "expected a header of 512 bytes, found bytes that begin with b'hello'"),
}


@pytest.mark.parametrize("name", NOT_TARS)
def test_what_is_no_tar_is_named(name: str) -> None:
    """Path, offset, expected, found and a remedy, for what users really have (TAR-12)."""
    data, found = NOT_TARS[name]

    with raises(ShardFormatError, "x.tar: at byte 0: ", found, "; "):
        scan(data, "x.tar")


def test_truncated_member_is_named() -> None:
    """A download that stopped inside a member names it and the bytes that it needs (TAR-10)."""
    data = build([("a.txt", b"1"), ("17.jpg", b"x" * 3000)], 0)[:2048]

    with raises(
        ShardFormatError,
        'x.tar: member "17.jpg" needs bytes 1536 to 4536, but the file has 2048; it is ',
    ):
        scan(data, "x.tar")


def test_every_truncation_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """Wherever an archive is cut: an error, or the members that are complete and a warning."""
    members = [("a.txt", b"1" * 700), ("b" * 120, b"2" * 600), ("c.txt", b"3")]
    data = build(members, tarfile.GNU_FORMAT)
    whole = members_of(data)
    for length in range(1, 6 * 1024, 7):
        caplog.clear()
        try:
            found = members_of(data[:length])
        except ShardFormatError:
            continue
        assert found == whole[: len(found)]
        assert "no end marker" in caplog.text or len(found) == len(whole)


@pytest.mark.parametrize(
    "options",
    [
        ["--format=gnu"],
        ["--format=pax", "--sparse-version=0.0"],
        ["--format=pax", "--sparse-version=0.1"],
        ["--format=pax", "--sparse-version=1.0"],
    ],
)
def test_sparse_members_are_refused_by_name(tmp_path: Path, options: list[str]) -> None:
    """GNU tar's sparse files, in the old form and in the PAX forms, cannot be read in place.

    TAR-11.
    """
    need(shutil.which("tar"), "no tar command on this machine")
    with open(tmp_path / "hole.bin", "wb") as file:
        file.write(b"x" * 512)
        file.seek(1 << 20)
        file.write(b"y" * 512)
    if os.stat(tmp_path / "hole.bin").st_blocks * 512 > 1 << 19:
        miss("the file system of this machine has no sparse files")
    subprocess.run(["tar", *options, "-Scf", "s.tar", "hole.bin"], cwd=tmp_path, check=True)

    with raises(ShardFormatError, "hole.bin", "sparse", "without --sparse"):
        scan((tmp_path / "s.tar").read_bytes())


def test_dangling_hard_link_is_refused() -> None:
    """A hard link whose target is not an earlier member has no bytes (TAR-13)."""
    data = build([("a.txt", b"")], 0, type=tarfile.LNKTYPE, linkname="gone.txt")

    with raises(ShardFormatError, 'hard link "a.txt" to an earlier member', '"gone.txt"'):
        scan(data)


def test_flipped_header_bit_is_noticed() -> None:
    """A header's checksum is verified (TAR-9)."""
    data = bytearray(build([("a.txt", b"1"), ("b.txt", b"2")], 0))
    data[1024] ^= 1

    with raises(ShardFormatError, "at byte 1024: expected the header of a member"):
        scan(bytes(data))


NAMES = st.text(st.sampled_from("ab.é猫/ "), min_size=1, max_size=150).filter(
    lambda name: name.strip("/") == name and "//" not in name
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=12),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.sampled_from([0, 1.5]),
)
def test_scan_equals_tarfile(
    members: list[tuple[str, bytes]], tar_format: int, mtime: float
) -> None:
    """Whatever tarfile writes and reads, wids reads alike."""
    data = build(members, tar_format, mtime=mtime)

    assert members_of(data) == oracle(data)


def test_more_members_than_a_batch(tmp_path: Path) -> None:
    """Batches join without a seam, with unusual members in between."""
    members = [
        (f"{'n' * 120 if i % 997 == 0 else ''}{i:06d}.txt", b"x" * (i % 1100)) for i in range(9000)
    ]
    path = write_tar(tmp_path / "a.tar", members, tarfile.GNU_FORMAT)

    assert members_of(path.read_bytes()) == [(n.encode(), d) for n, d in members]


def header(name: bytes, size: int, kind: bytes = b"0", **fields: bytes) -> bytearray:
    """Build a ustar header by hand."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = b"%011o\0" % size
    block[156:157] = kind
    block[257:265] = b"ustar\00000"
    for field, value in fields.items():
        start = {"stated": 124, "link": 157, "prefix": 345}[field]
        block[start : start + len(value)] = value
    restamp(block, 0)
    return block


def extended(body: bytes, kind: bytes = b"x") -> bytes:
    return bytes(header(b"PaxHeader", len(body), kind)) + body + bytes(-len(body) % 512)


def record(key: str, value: str) -> bytes:
    rest = f" {key}={value}\n".encode()
    length = len(rest) + len(str(len(rest)))
    length = len(rest) + len(str(length))
    return str(length).encode() + rest


END = bytes(1024)
FILE = bytes(header(b"a.txt", 3)) + b"abc" + bytes(509)


def test_pax_size_governs() -> None:
    """A PAX size overrides the header's, for the member and for where the next one begins.

    TAR-2.
    """
    smuggled = bytes(header(b"evil.txt", 0))
    data = extended(record("size", "512")) + bytes(header(b"a.txt", 0)) + smuggled + FILE + END

    assert members_of(data) == [(b"a.txt", smuggled), (b"a.txt", b"abc")]


def test_global_records_hold_until_overridden() -> None:
    """A global header counts for all members after it, a local one for the next alone (TAR-2)."""
    data = extended(record("path", "all.txt"), b"g") + FILE
    data += extended(record("path", "one.txt")) + FILE + FILE + END

    assert [name for name, _ in members_of(data)] == [b"all.txt", b"one.txt", b"all.txt"]


def test_signed_checksums_are_read() -> None:
    """Old Suns summed signed bytes (TAR-9)."""
    block = header("é.txt".encode(), 3)
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % (sum(block) - 256 * 2)

    assert members_of(bytes(block) + FILE[512:] + END) == [("é.txt".encode(), b"abc")]


def test_names_that_are_not_utf8_are_kept() -> None:
    """A name is bytes (TAR-5)."""
    data = bytes(header(b"\xff\xfe.txt", 3)) + FILE[512:] + END

    assert members_of(data) == [(b"\xff\xfe.txt", b"abc")]


ATTACKS: dict[str, tuple[bytes, str]] = {
    "terabyte claimed in a kilobyte": (
        bytes(header(b"a.txt", 0, stated=b"\x80" + (1 << 40).to_bytes(11, "big"))) + END,
        f'member "a.txt" needs bytes 512 to {512 + (1 << 40)}, but the file has 1536',
    ),
    "size of more than 63 bits": (
        bytes(header(b"a.txt", 0, stated=b"\x80" + (1 << 63).to_bytes(11, "big"))) + END,
        'expected a size for member "a.txt"',
    ),
    "negative size in base 256": (
        bytes(header(b"a.txt", 0, stated=b"\xff" * 12)) + END,
        'expected a size for member "a.txt"',
    ),
    "size with a minus": (
        bytes(header(b"a.txt", 0, stated=b"-0000001000\0")) + END,
        "b'-0000001000\\x00'",
    ),
    "size with an underscore": (
        bytes(header(b"a.txt", 0, stated=b"00000_00003\0")) + FILE[512:] + END,
        "b'00000_00003\\x00'",
    ),
    "size with a plus": (
        bytes(header(b"a.txt", 0, stated=b"+0000000003\0")) + FILE[512:] + END,
        'expected a size for member "a.txt"',
    ),
    "size with a prefix": (
        bytes(header(b"a.txt", 0, stated=b"0o000000003\0")) + FILE[512:] + END,
        'expected a size for member "a.txt"',
    ),
    "PAX size with a minus": (
        extended(record("size", "-512")) + FILE + END,
        "expected a PAX size for member \"a.txt\", found b'-512'",
    ),
    "PAX size beyond all": (
        extended(record("size", "9" * 30)) + FILE + END,
        "expected a PAX size",
    ),
    "PAX size past the end": (
        extended(record("size", "99999")) + FILE + END,
        'member "a.txt" needs bytes',
    ),
    "PAX record of absurd length": (extended(b"999999999 path=x\n") + FILE + END, "PAX records"),
    "PAX record that ends early": (extended(b"5 path=x\n") + FILE + END, "PAX records"),
    "PAX record of length zero": (extended(b"0 path=x\n") + FILE + END, "PAX records"),
    "PAX record with a sign": (extended(b"+9 path=x\n") + FILE + END, "PAX records"),
    "PAX record without a key": (extended(b"5 =x\n") + FILE + END, "PAX records"),
    "PAX record without an equals": (extended(b"8 pathx\n") + FILE + END, "PAX records"),
    "PAX path with a NUL": (extended(record("path", "a\0b")) + FILE + END, "expected a PAX path"),
    "PAX path that is empty": (extended(record("path", "")) + FILE + END, "expected a PAX path"),
    "two paths for one member": (
        extended(record("path", "x")) + extended(record("path", "y")) + FILE + END,
        'expected one path for a member, found "x" and "y"',
    ),
    "PAX path against a GNU name": (
        extended(b"x\0", b"L") + extended(record("path", "y")) + FILE + END,
        'expected one path for a member, found "x" and "y"',
    ),
    "endless extended headers": (
        extended(record("mtime", "1")) * 100 + FILE + END,
        "expected at most 8 extended headers before a member",
    ),
    "huge extended header": (
        bytes(header(b"x", (1 << 20) + 1, b"x")) + bytes(1 << 21) + FILE + END,
        "expected an extended header of at most 1048576 bytes, found 1048577",
    ),
    "extended header with nothing after it": (
        FILE + extended(record("mtime", "1")) + END,
        "expected the member that an extended header announces",
    ),
    "data behind a folder": (
        bytes(header(b"d/", 512, b"5")) + FILE + END,
        'expected no data for member "d/" of type 5, found 512 bytes',
    ),
    "data behind a hard link": (
        FILE + bytes(header(b"b.txt", 512, b"1", link=b"a.txt")) + FILE + END,
        'expected no data for member "b.txt" of type 1',
    ),
    "unknown type": (bytes(header(b"a.txt", 3, b"Z")) + FILE[512:] + END, "found type b'Z'"),
    "continuation of another volume": (
        bytes(header(b"a.txt", 3, b"M")) + FILE[512:] + END,
        "found type b'M'",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_is_refused(attack: str) -> None:
    """Each is an error with its place, whether it comes first or after plain members.

    TAR-9, TAR-10, TAR-11, TAR-14, TAR-15.
    """
    data, message = ATTACKS[attack]

    for before in (b"", FILE * 3):
        with pytest.raises(ShardFormatError) as caught:
            scan(before + data, "x.tar")
        if not before or "bytes 512 to" not in message:
            assert message in str(caught.value)


def test_claims_cost_no_memory() -> None:
    """The index of a kilobyte that claims a terabyte is refused within megabytes (SEC-6)."""
    data, _ = ATTACKS["terabyte claimed in a kilobyte"]
    tracemalloc.start()
    with pytest.raises(ShardFormatError):
        scan(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1 << 22


def test_unusual_headers_throughout_are_read_in_time() -> None:
    """An archive whose sizes are all in base 256 takes the strict lane, and no longer than it."""
    block = bytes(header(b"a.txt", 0, stated=b"\x80" + (3).to_bytes(11, "big")))
    data = (block + FILE[512:]) * 5000 + END
    plain = FILE * 5000 + END
    started = time.perf_counter()
    assert len(members_of(data)) == 5000
    unusual_s, started = time.perf_counter() - started, time.perf_counter()
    assert len(members_of(plain)) == 5000

    assert unusual_s < 100 * (time.perf_counter() - started)


def test_tar_inside_a_tar_is_one_member() -> None:
    """Headers inside a member's bytes are bytes, however many there are."""
    inner = build([(f"{i}.txt", b"x") for i in range(300)], tarfile.USTAR_FORMAT)
    members = [("a.txt", b"1"), ("inner.tar", inner), ("b.txt", b"2"), ("inner2.tar", inner)]

    assert members_of(build(members, tarfile.USTAR_FORMAT)) == [(n.encode(), d) for n, d in members]


def test_short_files_are_named_too() -> None:
    """An error page is shorter than a header."""
    with raises(ShardFormatError, "at byte 0: expected a header of 512 bytes, found HTML or XML"):
        scan(b"<html>404 not found</html>")


def test_many_end_markers_take_no_time() -> None:
    """An archive that ends twenty thousand times is read in proportion to its length."""
    started = time.perf_counter()

    index = scan((bytes(header(b"a.txt", 0)) + bytes(512)) * 20_000)

    assert len(index.names) == 20_000
    assert len(index.remarks) == 100
    assert time.perf_counter() - started < 10


def test_hole_between_members_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Members that became zeros are missed aloud (TAR-8)."""
    data = bytearray(build([(f"{i}.txt", bytes([i + 1]) * 5000) for i in range(10)], 0))
    second, sixth = 512 + 5120, 5 * (512 + 5120)
    data[second:sixth] = bytes(sixth - second)

    assert len(members_of(bytes(data))) == 6

    assert f"another archive at byte {sixth}, after {sixth - second} bytes of zeros" in caplog.text


def test_signed_checksum_after_an_end_marker_is_read() -> None:
    """An archive that follows another one may be an old one."""
    block = header("é.txt".encode(), 3)
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % (sum(block) - 256 * 2)

    found = members_of(FILE + END + bytes(block) + FILE[512:] + END)

    assert found == [(b"a.txt", b"abc"), ("é.txt".encode(), b"abc")]
