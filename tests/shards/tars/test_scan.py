"""What `scan` reads, like ``tarfile`` and GNU tar, and what it remarks on."""

from __future__ import annotations

import io
import logging
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from conftest import need, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st
from tars_by_hand import (
    AWKWARD,
    END,
    FILE,
    FORMATS,
    LONG,
    build,
    extended,
    header,
    members_of,
    oracle,
    record,
    restamp,
)

import wids
from wids.shards.tars.scan import scan


@pytest.mark.parametrize("name", FORMATS)
def test_members_equal_tarfile(name: str) -> None:
    """In all three formats, names and bytes equal those that tarfile finds (TAR-1, TAR-2)."""
    members = AWKWARD + (LONG if name != "ustar" else [])

    data = build(members, FORMATS[name])

    assert members_of(data) == oracle(data) == [(n.encode(), d) for n, d in members]


def test_pax_header_for_each_member_is_read() -> None:
    """Fractional times give each member a PAX header, as webdataset's writer does (TAR-2)."""
    members = [(f"{i:05d}.txt", str(i).encode()) for i in range(5000)]

    data = build(members, tarfile.PAX_FORMAT, mtime=1.5)

    assert members_of(data) == [(n.encode(), d) for n, d in members]


def test_v7_archive_is_read() -> None:
    """Headers without magic are read; NUL is the type of files, and a final slash marks folders.

    TAR-1, TAR-7.
    """
    data = bytearray(build([("a.txt", b"one"), ("d.x/", b""), ("b.txt", b"two")], 0))
    for start in (0, 1024, 1536):
        data[start + 156] = 0
        data[start + 257 : start + 265] = bytes(8)
        restamp(data, start)

    assert members_of(bytes(data)) == [(b"a.txt", b"one"), (b"b.txt", b"two")]


def test_folders_links_and_devices() -> None:
    """Hard links have the bytes of their target; folders, symlinks and devices are skipped.

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
def test_archives_of_gnu_tar_are_read(name: str, tmp_path: Path) -> None:
    """Archives of the ``tar`` command are read in all its formats, with long and non-ASCII names.

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
    """An archive after an end marker is read too, with a line in the log (TAR-6)."""
    data = build([("a.txt", b"1")], 0) + build([("b.txt", b"2")], 0)

    with caplog.at_level(logging.INFO, "wids"):
        assert members_of(data) == [(b"a.txt", b"1"), (b"b.txt", b"2")]

    assert "another archive at byte 10240" in caplog.text


def test_unknown_bytes_after_the_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Unknown bytes after an end marker are ignored, with a warning (TAR-8)."""
    data = build([("a.txt", b"1")], 0) + b"garbage" * 100

    index = scan(data, "x.tar")

    assert index.names == [b"a.txt"]
    assert "x.tar: unknown bytes from byte 10240 on" in caplog.text
    assert "unknown bytes from byte 10240" in index.remarks[0]


def test_missing_end_marker_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An archive without the zeros at its end is read, with a warning (TAR-8)."""
    data = build([("a.txt", b"1")], 0)[:1024]

    assert members_of(data) == [(b"a.txt", b"1")]

    assert "no end marker" in caplog.text


NAMES = st.text(st.sampled_from("ab.é猫/ "), min_size=1, max_size=150).filter(
    lambda name: name.strip("/") == name and "//" not in name
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=12),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.sampled_from([0, 1.5]),
)
def test_scan_equals_tarfile(
    members: list[tuple[str, bytes]], tar_format: int, mtime: float
) -> None:
    """Wids reads whatever tarfile writes, with the same result."""
    data = build(members, tar_format, mtime=mtime)

    assert members_of(data) == oracle(data)


def test_more_members_than_a_batch(tmp_path: Path) -> None:
    """Batches follow each other without gaps, with unusual members in between."""
    members = [
        (f"{'n' * 120 if i % 997 == 0 else ''}{i:06d}.txt", b"x" * (i % 1100)) for i in range(9000)
    ]
    path = write_tar(tmp_path / "a.tar", members, tarfile.GNU_FORMAT)

    assert members_of(path.read_bytes()) == [(n.encode(), d) for n, d in members]


def test_pax_size_governs() -> None:
    """A PAX size overrides the header's, for the member and for the position of the next one.

    TAR-2.
    """
    smuggled = bytes(header(b"evil.txt", 0))
    data = extended(record("size", "512")) + bytes(header(b"a.txt", 0)) + smuggled + FILE + END

    assert members_of(data) == [(b"a.txt", smuggled), (b"a.txt", b"abc")]


def test_global_records_hold_until_overridden() -> None:
    """A global header applies to all later members, a local one only to the next (TAR-2)."""
    data = extended(record("path", "all.txt"), b"g") + FILE
    data += extended(record("path", "one.txt")) + FILE + FILE + END

    assert [name for name, _ in members_of(data)] == [b"all.txt", b"one.txt", b"all.txt"]


def test_signed_checksums_are_read() -> None:
    """Old Sun tars summed signed bytes (TAR-9)."""
    block = header("é.txt".encode(), 3)
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % (sum(block) - 256 * 2)

    assert members_of(bytes(block) + FILE[512:] + END) == [("é.txt".encode(), b"abc")]


def test_names_that_are_not_utf8_are_kept() -> None:
    """Names are bytes (TAR-5)."""
    data = bytes(header(b"\xff\xfe.txt", 3)) + FILE[512:] + END

    assert members_of(data) == [(b"\xff\xfe.txt", b"abc")]


def test_unusual_headers_throughout_are_read_in_time() -> None:
    """An archive whose sizes are all in base 256 takes time in proportion to its length."""
    block = bytes(header(b"a.txt", 0, stated=b"\x80" + (3).to_bytes(11, "big")))

    def seconds(num_members: int) -> float:
        data = (block + FILE[512:]) * num_members + END
        started = time.process_time()
        assert len(members_of(data)) == num_members
        return time.process_time() - started

    short_s, long_s = (min(seconds(n) for _ in range(3)) for n in (1000, 8000))
    assert long_s < 20 * short_s  # 64 times as long, if each member were looked for from the start


def test_tar_inside_a_tar_is_one_member() -> None:
    """Headers inside a member's bytes are bytes, however many there are."""
    inner = build([(f"{i}.txt", b"x") for i in range(300)], tarfile.USTAR_FORMAT)
    members = [("a.txt", b"1"), ("inner.tar", inner), ("b.txt", b"2"), ("inner2.tar", inner)]

    assert members_of(build(members, tarfile.USTAR_FORMAT)) == [(n.encode(), d) for n, d in members]


def test_many_end_markers_take_no_time() -> None:
    """An archive that ends thousands of times is read in proportion to its length."""

    def seconds(count: int) -> float:
        started_s = time.process_time()
        index = scan((bytes(header(b"a.txt", 0)) + bytes(512)) * count)
        assert (len(index.names), len(index.remarks)) == (count, 100)
        return time.process_time() - started_s

    short_s, long_s = (min(seconds(n) for _ in range(2)) for n in (200, 1600))
    assert long_s < 30 * short_s  # 64 times as long, if each were looked for from the start


@pytest.mark.parametrize(
    ("end", "warning"),
    [
        (FILE, "no end marker"),
        (FILE + bytes(50 * 512) + FILE + END, "25600 bytes of zeros"),
        (FILE + END + b"garbage" * 100, "unknown bytes"),
    ],
)
def test_many_archives_hide_no_warning(
    end: bytes, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However many archives are in a file, damage to the last one is logged (TAR-6, TAR-8)."""
    with caplog.at_level(logging.INFO, "wids"):
        index = scan((FILE + END) * 150 + end)

    assert warning in index.remarks[-1]
    assert [each.levelname for each in caplog.records] == ["INFO"] * 100 + ["WARNING"]


def test_hole_between_members_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Members that were overwritten with zeros cause a warning (TAR-8)."""
    data = bytearray(build([(f"{i}.txt", bytes([i + 1]) * 5000) for i in range(10)], 0))
    second, sixth = 512 + 5120, 5 * (512 + 5120)
    data[second:sixth] = bytes(sixth - second)

    assert len(members_of(bytes(data))) == 6

    assert f"another archive at byte {sixth}, after {sixth - second} bytes of zeros" in caplog.text


@pytest.mark.parametrize(
    ("num_blocks", "is_warning"),
    [(1, True), (2, False), (3, True), (17, True), (18, False), (19, True), (38, True)],
)
def test_zeros_that_no_packer_leaves_are_a_warning(
    num_blocks: int, is_warning: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An archive after 2 zero blocks, or after whole records of 10,240 bytes, is an archive.

    After other zeros it may be a tar inside a member whose header was overwritten (TAR-6, TAR-8).
    """
    inner = FILE + bytes(num_blocks * 512) + FILE
    data = inner + bytes(18 * 512) + inner + END

    with caplog.at_level(logging.INFO, "wids"):
        assert len(members_of(data)) == 4

    logged = [each for each in caplog.records if f"{num_blocks * 512} bytes" in each.getMessage()]
    assert [each.levelno == logging.WARNING for each in logged] == [is_warning] * len(logged)
    assert len(logged) >= 2


def test_signed_checksum_after_an_end_marker_is_read() -> None:
    """An archive after an end marker may have signed checksums too."""
    block = header("é.txt".encode(), 3)
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % (sum(block) - 256 * 2)

    found = members_of(FILE + END + bytes(block) + FILE[512:] + END)

    assert found == [(b"a.txt", b"abc"), ("é.txt".encode(), b"abc")]


def test_text_whose_signed_sum_is_zero_is_not_a_header(caplog: pytest.LogCaptureFixture) -> None:
    """A checksum field of zeros states nothing, whatever the signed sum of its block (TAR-9)."""
    data = bytearray(build([("a.txt", b"1"), ("./дддя猫猫", b"")], tarfile.PAX_FORMAT))
    assert data[1024:1038] == b"././@PaxHeader"
    data[1024:1536] = bytes(512)

    assert members_of(bytes(data)) == [(b"a.txt", b"1")]

    assert "unknown bytes" in caplog.text


def test_symbolic_links_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tar of links to files has no samples, which is said, also by the commands (TAR-7)."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("0.txt", "1.txt", "latest"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "../x.txt"
            archive.addfile(link)
    assert scan(path.read_bytes()).names == []
    text = '2 symbolic links such as "0.txt"'
    assert text in caplog.text
    assert "`tar -h`" in caplog.text
    wids.build_spec([path], dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    remarks: list[wids.Problem] = []
    assert wids.verify_spec(tmp_path / "a.json", on_remark=remarks.append) == []
    assert any(text in str(remark) for remark in remarks)
