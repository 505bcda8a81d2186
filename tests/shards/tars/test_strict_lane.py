"""What a scan refuses: files that are not tars, damage, and attacks."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from conftest import miss, need, raises
from tars_by_hand import (
    END,
    FILE,
    FORMATS,
    build,
    extended,
    header,
    members_of,
    record,
)

import wids
from wids.errors import ShardFormatError
from wids.shards.tars.scan import scan

NOT_TARS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected a tar, found an empty file"),
    "gzip": (b"\x1f\x8b\x08" + bytes(1000), "gzip data (a .tar.gz; unpack it with gunzip)"),
    "zip": (b"PK\x03\x04" + bytes(1000), "a zip archive"),
    "html": (b"<html><h1>404</h1>" + b" " * 600, "an error page that was saved as a shard"),
    "json": (b'{"error": "no"}' + b" " * 600, "JSON"),
    "text": (b"hello world " * 100, "a list of shards is named .txt) that begins with 'hello"),
    "yaml": (b"a: b\nurls: [1]\n", "expected a header of 512 bytes, found text (a spec is JSON"),
    "bytes": (b"\x00\x01hello", "expected a header of 512 bytes, found bytes that begin with"),
}


@pytest.mark.parametrize("name", NOT_TARS)
def test_file_that_is_not_a_tar_is_described(name: str) -> None:
    """The error has path, offset, what was expected and found, and a remedy (TAR-12)."""
    data, found = NOT_TARS[name]

    with pytest.raises(ShardFormatError) as caught:
        scan(data, "x.tar")
    message = str(caught.value)
    assert message.startswith("x.tar: at byte 0: ")
    assert found in message
    # What is not a tar may be intact: the remedy is not to fetch it again, and never to delete it.
    assert not data or message.endswith("(storage_options)")


def test_truncated_member_is_named() -> None:
    """A download that stopped inside a member names it and the bytes that it needs (TAR-10)."""
    data = build([("a.txt", b"1"), ("17.jpg", b"x" * 3000)], 0)[:2048]

    with raises(
        ShardFormatError,
        'x.tar: member "17.jpg" needs bytes 1536 to 4536, but the file has 2048; it is ',
    ):
        scan(data, "x.tar")


def test_every_truncation_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """Wherever an archive is cut, there is an error, or a warning with the complete members."""
    members = [("a.txt", b"1" * 700), ("b" * 120, b"2" * 600), ("c.txt", b"3")]
    data = build(members, tarfile.GNU_FORMAT)
    complete = members_of(data)
    for length in range(1, 6 * 1024, 7):
        caplog.clear()
        try:
            found = members_of(data[:length])
        except ShardFormatError:
            continue
        assert found == complete[: len(found)]
        assert "no end marker" in caplog.text or len(found) == len(complete)


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


@pytest.mark.parametrize(
    ("name", "link"), [("a.txt", "./a.txt"), ("./a.txt", "a.txt"), ("d/a.txt", "d/./a.txt")]
)
def test_hard_links_are_found_as_by_others(name: str, link: str, tmp_path: Path) -> None:
    """A link may name its target by another path to the same place; the last one counts (TAR-4)."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for stored, data in ((name, b"old"), (f"./{name}", b"new!")):
            member = tarfile.TarInfo(stored)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        member = tarfile.TarInfo("b.txt")
        member.type, member.linkname = tarfile.LNKTYPE, link
        tar.addfile(member)
    with tarfile.open(path) as tar:
        file = tar.extractfile("b.txt")
        expected = file.read() if file else b""
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    need(shutil.which("tar"), "needs GNU tar or libarchive")
    subprocess.run(["tar", "-xf", path, "-C", unpacked], check=True)

    with wids.Shard(path) as shard:
        samples = {sample["__key__"]: sample for sample in shard}
    assert samples["b"][".txt"] == expected == (unpacked / "b.txt").read_bytes() == b"new!"


def test_flipped_header_bit_is_noticed() -> None:
    """A header's checksum is verified (TAR-9)."""
    data = bytearray(build([("a.txt", b"1"), ("b.txt", b"2")], 0))
    data[1024] ^= 1

    with raises(ShardFormatError, "at byte 1024: expected the header of a member"):
        scan(bytes(data))


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
    """Each attack is an error with its position, first in a tar or after plain members.

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


def test_short_file_is_described() -> None:
    """A file that is shorter than a header is recognized as well."""
    with raises(ShardFormatError, "at byte 0: expected a header of 512 bytes, found HTML or XML"):
        scan(b"<html>404 not found</html>")


@pytest.mark.parametrize("form", ["pax", "gnu"])
@pytest.mark.parametrize("name_nbytes", [101, 300, 511, 600, 1100])
def test_hole_in_a_long_name_is_refused(form: str, name_nbytes: int) -> None:
    """A block of zeros in the body of an extended header does not make another name (TAR-14).

    No checksum covers that body; the header of the member has the beginning of the name.
    """
    data = build([("n" * name_nbytes, b"1")], FORMATS[form])
    body_nbytes = int(data[124:135], 8)
    for start in range(512, 512 + body_nbytes, 512):
        with raises(ShardFormatError, "tar: at byte 0: expected"):
            members_of(data[:start] + bytes(512) + data[start + 512 :])


def test_padding_that_a_size_includes_is_not_a_hole() -> None:
    """The sizes of extended headers may include the NULs up to the end of a block."""
    for body, kind in ((record("path", "b.txt"), b"x"), (b"b.txt", b"L")):
        padded = body + bytes(512 - len(body))
        assert members_of(extended(padded, kind) + FILE + END) == [(b"b.txt", b"abc")]


@pytest.mark.parametrize("body", [b"a\0b.txt\0", b"b.tx\0\0", b"b.txt\0" + bytes(506) + b"\1"])
def test_zeros_inside_a_long_name_are_refused(body: bytes) -> None:
    """A GNU long name ends where its size says, and not at an earlier zero (TAR-14)."""
    with raises(ShardFormatError, f"a GNU long name of {len(body)} bytes", "damaged"):
        members_of(extended(body, b"L") + FILE + END)
